//! Batch normalisation over ranks: N ranks with parts of a batch compute like one rank with all.
//!
//! The ranks are real processes. Each rank also computes the whole batch alone, with the plain
//! layer and without any exchange, and compares the results.

use candelabrum::candle::{Result, Var};
use candelabrum::dist::{
    BufferSync, Error, Group, parameters_sha256, synchronize_batch_norm, synchronize_buffers,
};
use candelabrum::nn::Init;
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::RanksOf;
use candelabrum_testkit::{assert_close, integers, uniform};

use crate::ranks::{on_processes, world_of_rank};

/// Two convolutions with a normalisation each. The activations are smooth: rounding switches none.
struct Net {
    conv1: Conv2d,
    norm1: BatchNorm2d,
    conv2: Conv2d,
    norm2: BatchNorm2d,
    out: Linear,
}

impl Net {
    fn new(scope: &Scope) -> Self {
        let norm =
            |name: &str, activation| BatchNorm2d::new(&scope.pp(name)).activation(activation);
        Self {
            conv1: Conv2d::new(&scope.pp("conv1"), 4, 3),
            norm1: norm("norm1", Activation::Tanh),
            conv2: Conv2d::new(&scope.pp("conv2"), 6, 3),
            norm2: norm("norm2", Activation::Gelu),
            out: Linear::new(&scope.pp("out"), 3),
        }
    }
}

impl Model for Net {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.norm1.forward(&self.conv1.forward(xs)?)?;
        let xs = self.norm2.forward(&self.conv2.forward(&xs)?)?;
        self.out.forward(&xs.flatten_from(1)?)
    }
}

const IMAGE: (usize, usize, usize) = (2, 8, 8);

/// A model of its own, with the same initial values everywhere.
fn net(dtype: DType) -> (Params, Net) {
    let params = Params::on(0, dtype, &Device::Cpu);
    let net = Net::new(&params.root());
    net.compile(&params, (1, IMAGE.0, IMAGE.1, IMAGE.2)).unwrap();
    (params, net)
}

fn images(count: usize, seed: u64, dtype: DType) -> Tensor {
    // Every image has another mean, and the mean of a batch is not 0.
    let each = uniform((count, 1, 1, 1), seed + 1, -2.0, 2.0, dtype).unwrap();
    let shape = (count, IMAGE.0, IMAGE.1, IMAGE.2);
    uniform(shape, seed, 0.0, 1.0, dtype).unwrap().broadcast_add(&each).unwrap()
}

/// The gradients of the loss of `xs` by `xs` and by all parameters. The loss is a sum and not a
/// mean, so that parts of a batch add up to the whole.
fn gradients(params: &Params, net: &Net, xs: &Tensor, weights: &Tensor) -> (Tensor, Vec<Tensor>) {
    let xs = Var::from_tensor(xs).unwrap();
    let ys = net.forward(&xs).unwrap();
    let grads = (&ys * weights).unwrap().sum_all().unwrap().backward().unwrap();
    let of = |tensor: &Tensor| grads.get(tensor).unwrap().clone();
    let mut all = vec![ys.detach()];
    all.extend(params.list().iter().map(|param| of(param.tensor())));
    (of(&xs), all)
}

/// The first image and the number of images of a rank's part. The parts have different sizes.
fn part(rank: usize, world_size: usize) -> (usize, usize) {
    let sizes: &[usize] = if world_size == 2 { &[1, 4] } else { &[2, 0, 3] };
    (sizes[..rank].iter().sum(), sizes[rank])
}

#[test]
fn ranks_with_parts_of_any_size_compute_as_one_with_the_whole() {
    let Some(world) = on_processes(
        RanksOf::new(ranks_with_parts_of_any_size_compute_as_one_with_the_whole),
        &[2, 3],
    ) else {
        return;
    };
    let (start, len) = part(world.rank(), world.world_size());
    let weights = uniform((5, 3), 3, -1.0, 1.0, DType::F64).unwrap();
    let xs = images(5, 1, DType::F64);
    let of = |all: &Tensor| all.narrow(0, start, len).unwrap().contiguous().unwrap();

    let (whole_params, whole) = net(DType::F64);
    let (whole_dxs, whole_results) = gradients(&whole_params, &whole, &xs, &weights);
    let (params, net) = net(DType::F64);
    synchronize_batch_norm(&params, &world.group());
    let (dxs, results) = gradients(&params, &net, &of(&xs), &of(&weights));

    assert_close(&results[0], &of(&whole_results[0]), 0.0, 1e-11);
    assert_close(&dxs, &of(&whole_dxs), 0.0, 1e-11);
    for (own, whole) in results.iter().zip(&whole_results).skip(1) {
        let mut sum = own.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        world.comm().all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        let sum = Tensor::from_vec(sum, own.shape(), &Device::Cpu).unwrap();
        assert_close(&sum, whole, 0.0, 1e-10);
    }
    for (own, whole) in params.buffers().iter().zip(whole_params.buffers()) {
        assert_close(&own.value(), &whole.value(), 1e-12, 1e-12);
    }
    // Evaluation exchanges nothing, so rank 0 can do it alone.
    if world.is_root() {
        params.eval();
        whole_params.eval();
        let expected = whole.forward(&xs).unwrap();
        assert_close(&net.forward(&xs).unwrap(), &expected, 0.0, 1e-11);
    }
}

#[test]
fn vectors_are_normalised_over_ranks() {
    let Some(world) = on_processes(RanksOf::new(vectors_are_normalised_over_ranks), &[2, 3]) else {
        return;
    };
    let (start, len) = part(world.rank(), world.world_size());
    let [all, weights] = [1, 3].map(|seed| uniform((5, 4), seed, -1.0, 2.0, DType::F64).unwrap());
    let of = |all: &Tensor| all.narrow(0, start, len).unwrap().contiguous().unwrap();
    let run = |xs: &Tensor, weights: &Tensor, together: bool| {
        let params = Params::on(0, DType::F64, &Device::Cpu);
        if together {
            synchronize_batch_norm(&params, &world.group());
        }
        let xs = Var::from_tensor(xs).unwrap();
        let norm = BatchNorm1d::new(&params.root()).activation(Activation::Tanh);
        let ys = norm.forward(&xs).unwrap();
        let grads = (&ys * weights).unwrap().sum_all().unwrap().backward().unwrap();
        (ys.detach(), grads.get(&xs).unwrap().clone())
    };
    let (ys, dxs) = run(&of(&all), &of(&weights), true);
    let (whole_ys, whole_dxs) = run(&all, &weights, false);
    assert_close(&ys, &of(&whole_ys), 0.0, 1e-11);
    assert_close(&dxs, &of(&whole_dxs), 0.0, 1e-11);
}

const STEPS: u64 = 10;
const GLOBAL_BATCH: usize = 12;

/// Trains on part `rank` of `count` of the same global batches.
fn train(world: &World, sync: bool, (rank, count): (usize, usize)) -> Params {
    let (params, net) = net(DType::F32);
    if sync {
        synchronize_batch_norm(&params, &world.group());
    }
    let sgd = Sgd::new(0.05).momentum(0.9).weight_decay(1e-4);
    let mut opt = DistOpt::new(sgd, &params, world).unwrap();
    let len = GLOBAL_BATCH / count;
    for step in 0..STEPS {
        let of = |all: &Tensor| all.narrow(0, rank * len, len).unwrap().contiguous().unwrap();
        let xs = of(&images(GLOBAL_BATCH, 100 + 2 * step, DType::F32));
        let ys = of(&integers(GLOBAL_BATCH, 900 + step, 3).unwrap());
        net.train_one_batch(&mut opt, &xs, &ys, DistOption::Fp32, 0.05).unwrap();
    }
    params
}

/// The values of parameters and buffers, each with its name.
fn values(params: &Params) -> Vec<(String, Tensor)> {
    let list = params.list().into_iter();
    let list = list.map(|param| (param.name().to_owned(), param.tensor().detach()));
    list.chain(params.buffers().iter().map(|b| (b.name().to_owned(), b.value()))).collect()
}

/// Largest difference of an element, relative to the largest of its tensor.
fn difference(a: &Params, b: &Params) -> f32 {
    let largest = |t: &Tensor| {
        t.abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap()
    };
    let pairs = values(a).into_iter().zip(values(b));
    // The gradient of a bias before a normalisation is 0 except for rounding.
    let pairs = pairs.filter(|((name, _), _)| !name.contains("conv") || !name.ends_with("bias"));
    let of = |((_, a), (_, b)): ((String, Tensor), (String, Tensor))| {
        largest(&(&a - &b).unwrap()) / largest(&b)
    };
    pairs.map(of).fold(0.0, f32::max)
}

/// Buffers as bits, to be compared between ranks.
fn buffer_bits(params: &Params) -> Vec<u8> {
    let of = |state: &candelabrum::nn::Buffer| state.value().to_vec1::<f32>().unwrap();
    params.buffers().iter().flat_map(of).flat_map(f32::to_le_bytes).collect()
}

#[test]
fn ten_steps_of_training_are_those_of_one_rank_with_the_whole_batch() {
    let Some(world) = on_processes(
        RanksOf::new(ten_steps_of_training_are_those_of_one_rank_with_the_whole_batch),
        &[2, 3],
    ) else {
        return;
    };
    candelabrum::train::set_threads(1).unwrap();
    let place = (world.rank(), world.world_size());
    let whole = train(&World::single(), false, (0, 1));
    let together = train(&world, true, place);
    let apart = train(&world, false, place);

    let (sync, plain) = (difference(&together, &whole), difference(&apart, &whole));
    println!("\nrank {}: differs by {sync:.1e}, without exchange {plain:.1e}", world.rank());
    // Ten steps amplify the rounding of f32 to some 1e-5. Statistics of parts differ by much more.
    assert!(sync < 1e-4, "{sync}");
    assert!(plain > 1e-1, "{plain}");

    let digests = world.comm().all_gather_text(&parameters_sha256(&together).unwrap()).unwrap();
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    let own = buffer_bits(&together);
    let all = world.comm().all_gather(&own).unwrap();
    assert!(all.chunks(own.len()).all(|other| other == own), "running statistics differ");
}

#[test]
fn rank_that_fails() {
    let Some(world) = world_of_rank() else { return };
    let params = Params::new(0);
    synchronize_batch_norm(&params, &world.group());
    let norm = BatchNorm2d::new(&params.root().pp("norm"));
    if std::env::var("CASE").unwrap() == "leaves" {
        if world.is_root() {
            let xs = uniform((2, 3, 4, 4), 1, 0.0, 1.0, DType::F32).unwrap();
            let error = Error::from(norm.forward(&xs).unwrap_err());
            assert!(matches!(error, Error::PeerLeft { peer: 1, .. }), "{error:?}");
        }
        return;
    }
    // Every rank has another model, and all ranks receive the same error.
    let channels = 3 + world.rank();
    let xs = uniform((2, channels, 4, 4), 1, 0.0, 1.0, DType::F32).unwrap();
    let error = Error::from(norm.forward(&xs).unwrap_err());
    assert!(matches!(error, Error::Disagreement { rank: 1, .. }), "{error:?}");
}

#[test]
fn errors_of_the_exchange_reach_the_user_as_they_are() {
    for case in ["leaves", "differs"] {
        RanksOf::new(rank_that_fails).env("CASE", case).run_all_good(2);
    }
}

#[test]
fn buffers_become_rank_0s_or_the_mean_or_stay() {
    let Some(world) = on_processes(RanksOf::new(buffers_become_rank_0s_or_the_mean_or_stay), &[3])
    else {
        return;
    };
    let group: Group = world.group();
    for dtype in [DType::F32, DType::F64] {
        let params = Params::on(0, dtype, &Device::Cpu);
        let of =
            |name: &str, shape: &[usize]| params.root().buffer(name, shape, Init::ZEROS).unwrap();
        let (a, b) = (of("a", &[2, 2]), of("b", &[1]));
        let check = |how: BufferSync, expected: [f64; 5]| {
            let own = 0.1 + world.rank() as f64;
            a.update_in_place(|index, _| own + index as f64).unwrap();
            b.update_in_place(|_, _| -own).unwrap();
            synchronize_buffers(&params, &*group, how).unwrap();
            let expected = Tensor::new(&expected, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let matrix = expected.narrow(0, 0, 4).unwrap().reshape((2, 2)).unwrap();
            assert_close(&a.value(), &matrix, 1e-7, 0.0);
            assert_close(&b.value(), &expected.narrow(0, 4, 1).unwrap(), 1e-7, 0.0);
        };
        check(BufferSync::Broadcast, [0.1, 1.1, 2.1, 3.1, -0.1]);
        // Ranks 0, 1 and 2.
        check(BufferSync::Average, [1.1, 2.1, 3.1, 4.1, -1.1]);
        let own = 0.1 + world.rank() as f64;
        check(BufferSync::Local, [own, own + 1.0, own + 2.0, own + 3.0, -own]);
    }
    // Not the same model: one buffer more on rank 2.
    let params = Params::new(0);
    for number in 0..1 + world.rank() / 2 {
        params.root().buffer(&format!("b{number}"), 2, Init::ZEROS).unwrap();
    }
    let error = synchronize_buffers(&params, &*group, BufferSync::Broadcast).unwrap_err();
    assert!(matches!(error, Error::Disagreement { rank: 2, .. }), "{error:?}");
}

/// A rank without a batch cannot take part in the exchange of statistics. That is found before the first
/// step, and not in the last one of an epoch.
#[test]
fn a_rank_without_a_batch_is_refused_at_the_start() {
    let Some(world) =
        on_processes(RanksOf::new(a_rank_without_a_batch_is_refused_at_the_start), &[1, 2])
    else {
        return;
    };
    let several = world.world_size() > 1;
    let group: Group = (&world).into();
    let config = || DistOptConfig { uneven: true, ..DistOptConfig::default() };
    let xs = images(9, 1, DType::F32);
    let data = TensorDataset::labelled(xs.clone(), integers(9, 2, 3).unwrap()).unwrap();
    for whole_store in [true, false] {
        let model = |params: &Params| {
            let net = Net::new(&params.root());
            let exchange = candelabrum::dist::statistics_exchange(&group);
            if whole_store {
                return net;
            }
            Net { norm2: net.norm2.synchronized(exchange), ..net }
        };
        let start = |config| {
            let params = Params::new(0);
            let net = model(&params);
            net.compile(&params, (1, IMAGE.0, IMAGE.1, IMAGE.2)).unwrap();
            let opt = DistOpt::with_config(Sgd::new(0.1), &params, &world, config).unwrap();
            if whole_store {
                synchronize_batch_norm(&params, &group);
            }
            (params, net, opt)
        };
        let is_refused = |error: &str| {
            let parts = ["`uneven`", "synchronized batch normalisation", "leave `uneven` out"];
            parts.iter().for_each(|part| assert!(error.contains(part), "{error}"));
        };

        // A loop of the user's own.
        let (params, net, mut opt) = start(config());
        assert_eq!(opt.check_uneven().is_err(), several);
        let before = parameters_sha256(&params).unwrap();
        let loss = net.forward(&xs).unwrap().sqr().unwrap().mean_all().unwrap();
        let result = opt.backward_and_update(&loss);
        if several {
            is_refused(&result.unwrap_err().to_string());
            assert_eq!(parameters_sha256(&params).unwrap(), before);
        } else {
            result.unwrap();
        }

        // `fit`, whose last batch has nothing for the last rank.
        let fit = FitConfig {
            epochs: 1,
            batch_size: 4 / world.world_size(),
            uneven: true,
            ..FitConfig::default()
        };
        let (_, net, opt) = start(config());
        let mut trainer = Trainer::new(net, opt);
        let result = trainer.fit(&data, &data, &fit, &mut std::io::sink());
        if several {
            is_refused(&result.unwrap_err().to_string());
        } else {
            result.unwrap();
        }
        assert_eq!(trainer.position().step, if several { 0 } else { 3 });

        // The optimizer must be set to it, which is found at the start, too.
        let (_, net, opt) = start(DistOptConfig::default());
        let mut trainer = Trainer::new(net, opt);
        let error = trainer.fit(&data, &data, &fit, &mut std::io::sink()).unwrap_err();
        assert!(error.to_string().contains("uneven is false"), "{error}");
        assert_eq!(trainer.position().step, 0);
    }
}
