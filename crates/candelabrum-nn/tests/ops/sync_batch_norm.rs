//! Batch normalisation by the statistics of several replicas, here threads of one process.

use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use candelabrum_nn::layers::BatchNorm2d;
use candelabrum_nn::ops::{
    BatchNorm, BatchNormConfig, Conv2dConfig, RunningStatistics, add, batch_norm2d,
    batch_norm2d_add, batch_norm2d_conv2d, conv2d, sync_batch_norm2d, with_composites,
};
use candelabrum_nn::{Activation, Init, Params, StatisticsExchange};
use candelabrum_testkit::assert_close;
use candle_core::{DType, Device, Module, Result, Tensor, Var};

use crate::random;

/// One of several threads that run the same model.
#[derive(Debug)]
struct Replica {
    number: usize,
    barrier: Arc<Barrier>,
    sent: Arc<Mutex<Vec<Vec<f64>>>>,
}

impl StatisticsExchange for Replica {
    fn all_gather(&self, values: &[f64]) -> Result<Vec<f64>> {
        self.sent.lock().expect("nobody panics")[self.number] = values.to_vec();
        self.barrier.wait();
        let all = self.sent.lock().expect("nobody panics").concat();
        self.barrier.wait();
        Ok(all)
    }
}

fn replicas(count: usize) -> Vec<Arc<dyn StatisticsExchange>> {
    let barrier = Arc::new(Barrier::new(count));
    let sent = Arc::new(Mutex::new(vec![Vec::new(); count]));
    let replica = |number| {
        let (barrier, sent) = (Arc::clone(&barrier), Arc::clone(&sent));
        Arc::new(Replica { number, barrier, sent }) as Arc<dyn StatisticsExchange>
    };
    (0..count).map(replica).collect()
}

struct Outcome {
    ys: Tensor,
    /// By input, weight and bias.
    gradients: Vec<Tensor>,
    mean: Tensor,
    variance: Tensor,
}

/// Forward and backward. The loss is the sum of the result times `weights`.
fn pass(
    inputs: &[Tensor; 3],
    weights: &Tensor,
    config: BatchNormConfig,
    exchange: Option<&Arc<dyn StatisticsExchange>>,
) -> Result<Outcome> {
    let channels = inputs[0].dim(1)?;
    let params = Params::on(0, inputs[0].dtype(), &Device::Cpu);
    let running = RunningStatistics {
        mean: params.root().buffer("mean", channels, Init::ZEROS)?,
        variance: params.root().buffer("variance", channels, Init::Const(1.0))?,
    };
    let vars = inputs.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
    let (xs, affine) = (&vars[0], [Some(vars[1].as_tensor()), Some(vars[2].as_tensor())]);
    let ys = match exchange {
        None => batch_norm2d(xs, affine[0], affine[1], Some(&running), config)?,
        Some(exchange) => {
            sync_batch_norm2d(xs, affine[0], affine[1], Some(&running), config, exchange)?
        }
    };
    let grads = (&ys * weights)?.sum_all()?.backward()?;
    let gradients = vars.iter().map(|var| grads.get(var).expect("a gradient").clone()).collect();
    let (mean, variance) = (running.mean.value(), running.variance.value());
    Ok(Outcome { ys: ys.detach(), gradients, mean, variance })
}

fn bits(tensor: &Tensor) -> Result<Vec<u64>> {
    // f32 widened to f64 keeps its value, and NaN and -0 do not occur by chance.
    let values = tensor.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    Ok(values.into_iter().map(f64::to_bits).collect())
}

#[test]
fn one_replica_has_the_bits_of_the_plain_operation() -> Result<()> {
    let alone = &replicas(1)[0];
    // Without kernels in f64 the plain operation is a composite, whose sums have another order.
    let in_f64 = cfg!(feature = "f64").then_some(DType::F64);
    for dtype in [DType::F32].into_iter().chain(in_f64) {
        for dims in [&[3, 2, 3, 5][..], &[4, 3, 9, 9], &[6, 5]] {
            let channels = dims[1];
            let of =
                |shape: &[usize], seed| random(shape, seed)?.affine(3.0, 40.0)?.to_dtype(dtype);
            let inputs = [of(dims, 1)?, of(&[channels], 2)?, of(&[channels], 3)?];
            let weights = random(dims, 4)?.to_dtype(dtype)?;
            for activation in [None, Some(Activation::Relu), Some(Activation::Gelu)] {
                let config = BatchNormConfig { activation, ..Default::default() };
                let plain = pass(&inputs, &weights, config, None)?;
                let sync = pass(&inputs, &weights, config, Some(alone))?;
                assert_eq!(bits(&sync.ys)?, bits(&plain.ys)?);
                assert_eq!(bits(&sync.mean)?, bits(&plain.mean)?);
                assert_eq!(bits(&sync.variance)?, bits(&plain.variance)?);
                for (sync, plain) in sync.gradients.iter().zip(&plain.gradients) {
                    assert_eq!(bits(sync)?, bits(plain)?);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn replicas_with_parts_are_one_with_the_whole() -> Result<()> {
    compare_parts_with_the_whole(|pass| pass())
}

#[test]
fn composites_of_replicas_with_parts_are_the_kernel_with_the_whole() -> Result<()> {
    compare_parts_with_the_whole(|pass| with_composites(pass))
}

/// `by` runs the pass of a replica.
fn compare_parts_with_the_whole(
    by: impl Fn(&dyn Fn() -> Result<Outcome>) -> Result<Outcome> + Sync,
) -> Result<()> {
    let by = &by;
    for (plane, activation) in [(3, None), (6, Some(Activation::Relu)), (6, None)] {
        // A part may have one image, none or several.
        let parts = [1, 0, 4, 2];
        let dims = [parts.iter().sum(), 3, plane, plane];
        let inputs = [random(&dims[..], 1)?.affine(1.0, 5.0)?, random(3, 2)?, random(3, 3)?];
        let weights = random(&dims[..], 4)?;
        let config = BatchNormConfig { activation, ..Default::default() };
        let whole = pass(&inputs, &weights, config, None)?;

        let exchanges = replicas(parts.len());
        let own: Vec<Outcome> = thread::scope(|scope| {
            let mut start = 0;
            let mut started = Vec::new();
            for (exchange, count) in exchanges.iter().zip(parts) {
                let part = |all: &Tensor| all.narrow(0, start, count)?.contiguous();
                let xs = part(&inputs[0])?;
                let (inputs, weights) =
                    ([xs, inputs[1].clone(), inputs[2].clone()], part(&weights)?);
                start += count;
                let work = move || by(&|| pass(&inputs, &weights, config, Some(exchange)));
                started.push(scope.spawn(work));
            }
            started.into_iter().map(|work| work.join().expect("a replica")).collect::<Result<_>>()
        })?;
        let joined = |part: fn(&Outcome) -> &Tensor| {
            Tensor::cat(&own.iter().map(part).collect::<Vec<_>>(), 0)
        };
        assert_close(&joined(|own| &own.ys)?, &whole.ys, 0.0, 1e-12);
        assert_close(&joined(|own| &own.gradients[0])?, &whole.gradients[0], 0.0, 1e-11);
        for number in [1, 2] {
            let mut sum = own[0].gradients[number].clone();
            for own in &own[1..] {
                sum = (sum + &own.gradients[number])?;
            }
            assert_close(&sum, &whole.gradients[number], 0.0, 1e-11);
        }
        let first = &own[0];
        for own in &own {
            assert_close(&own.mean, &whole.mean, 0.0, 1e-12);
            assert_close(&own.variance, &whole.variance, 0.0, 1e-12);
            assert_eq!(bits(&own.mean)?, bits(&first.mean)?);
            assert_eq!(bits(&own.variance)?, bits(&first.variance)?);
        }
    }
    Ok(())
}

/// Two operations and one of both exchange the same statistics.
#[test]
fn replicas_with_the_operations_around_it_have_the_bits_of_two_operations() -> Result<()> {
    let config = BatchNormConfig { activation: Some(Activation::Relu), ..Default::default() };
    let padded = Conv2dConfig { padding: (1, 1), ..Conv2dConfig::default() };
    let step = |exchange: &Arc<dyn StatisticsExchange>, seed: u64, is_fused: bool| {
        let shapes: [&[usize]; 4] = [&[3, 2, 6, 5], &[2], &[2], &[2, 2, 3, 3]];
        let vars =
            (seed..).zip(shapes).map(|(seed, shape)| Var::from_tensor(&random(shape, seed)?));
        let vars = vars.collect::<Result<Vec<_>>>()?;
        let [xs, weight, bias, kernel] = &vars[..] else { unreachable!("four shapes") };
        let (weight, bias) = (Some(weight.as_tensor()), Some(bias.as_tensor()));
        let norm = BatchNorm { weight, bias, running: None, exchange: Some(exchange), config };
        let ys = if is_fused {
            let ys = batch_norm2d_conv2d(xs, norm, kernel, None, padded, None)?;
            batch_norm2d_add(&ys, norm, xs)?
        } else {
            let ys = sync_batch_norm2d(xs, weight, bias, None, config, exchange)?;
            let ys = conv2d(&ys, kernel, None, padded, None)?;
            let linear = BatchNormConfig { activation: None, ..config };
            let ys = sync_batch_norm2d(&ys, weight, bias, None, linear, exchange)?;
            add(&ys, xs, config.activation)?
        };
        let grads = ys.sqr()?.sum_all()?.backward()?;
        let gradients = vars.iter().map(|var| bits(grads.get(var).expect("a gradient")));
        [bits(&ys)].into_iter().chain(gradients).collect::<Result<Vec<_>>>()
    };
    let exchanges = replicas(3);
    thread::scope(|scope| {
        let started: Vec<_> = (0..)
            .zip(&exchanges)
            .map(|(rank, exchange)| {
                scope.spawn(move || -> Result<()> {
                    let seed = 10 * rank;
                    assert!(step(exchange, seed, true)? == step(exchange, seed, false)?);
                    Ok(())
                })
            })
            .collect();
        started.into_iter().try_for_each(|work| work.join().expect("a replica"))
    })
}

#[test]
fn a_store_switches_its_layers_in_training_only() -> Result<()> {
    #[derive(Debug)]
    struct Refuses;
    impl StatisticsExchange for Refuses {
        fn all_gather(&self, _: &[f64]) -> Result<Vec<f64>> {
            candle_core::bail!("nobody hears me")
        }
    }
    let params = Params::new(0);
    let norm = BatchNorm2d::new(&params.root().pp("norm"));
    let xs = random((2, 3, 4, 4), 1)?.to_dtype(DType::F32)?;
    norm.forward(&xs)?;
    params.set_statistics_exchange(Some(Arc::new(Refuses)));
    let error = norm.forward(&xs).expect_err("it must ask").to_string();
    assert!(error.contains("nobody hears me"), "{error}");
    params.eval();
    norm.forward(&xs)?;
    params.train();
    params.set_statistics_exchange(None);
    norm.forward(&xs)?;

    let own = BatchNorm2d::new(&params.root().pp("own")).synchronized(Arc::new(Refuses));
    assert!(own.forward(&xs).is_err());
    Ok(())
}

#[test]
fn one_value_in_all_batches_together_is_refused() -> Result<()> {
    let alone = &replicas(1)[0];
    let xs = random((1, 3), 1)?;
    let config = BatchNormConfig::default();
    let error = sync_batch_norm2d(&xs, None, None, None, config, alone).expect_err("one value");
    assert!(error.to_string().contains("all replicas"), "{error}");
    Ok(())
}
