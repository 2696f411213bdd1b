//! Parameters in f16 and bf16 train by their f32 masters.

use candelabrum::dist::{DistOptConfig, LossScale, parameters_sha256};
use candelabrum::models::{Cnn, Gpt, GptConfig, GruClassifier, GruClassifierConfig, Mlp, ResNet18};
use candelabrum::nn::{Init, Param};
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::RanksOf;
use candelabrum_testkit::{integers, uniform};

use crate::ranks::on_processes;

const CLASSES: usize = 5;

/// The losses of a network in `dtype`, and the digest of its masters.
fn train(world: &World, dtype: DType, steps: u64, option: DistOption) -> (Vec<f32>, String) {
    let params = Params::on(3, dtype, &Device::Cpu);
    let model = Cnn::new(&params.root(), CLASSES);
    let rank = world.rank() as u64;
    let images = |step: u64| {
        let images = uniform((4, 1, 28, 28), 10 * (step % 3) + rank, -1.0, 1.0, DType::F32);
        images.unwrap().to_dtype(dtype).unwrap()
    };
    model.compile_with(&params, &images(0)).unwrap();
    let sgd = Sgd::new(0.003).momentum(0.9);
    let mut opt = DistOpt::new(sgd, &params, world).unwrap();
    let step = |step: u64| {
        let labels = integers(4, 10 * (step % 3) + rank, CLASSES as u32).unwrap();
        let (_, loss) =
            model.train_one_batch(&mut opt, &images(step), &labels, option, 0.3).unwrap();
        loss.to_scalar::<f32>().unwrap()
    };
    let losses = (0..steps).map(step).collect();
    opt.average_parameters().unwrap();
    for param in params.list() {
        let mut master = vec![0.0; param.var().elem_count()];
        param.with_values(|values| values.copy_to_slice(&mut master)).unwrap();
        let rounded = Tensor::new(master, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let bits = |tensor: &Tensor| {
            let values = tensor.flatten_all().unwrap().to_dtype(DType::F32).unwrap();
            values.to_vec1::<f32>().unwrap()
        };
        assert_eq!(bits(param.tensor()), bits(&rounded), "{}", param.name());
    }
    (losses, parameters_sha256(&params).unwrap())
}

#[test]
fn losses_are_those_of_f32_up_to_rounding() {
    let world = World::single();
    let exact = train(&world, DType::F32, 12, DistOption::Fp32).0;
    for (dtype, tolerance) in [(DType::F16, 1e-2), (DType::BF16, 0.12)] {
        let losses = train(&world, dtype, 12, DistOption::Fp32).0;
        let mut pairs = losses.iter().zip(&exact);
        let are_close = pairs.all(|(half, exact)| (half - exact).abs() <= tolerance);
        assert!(are_close, "{dtype:?}: {losses:?}, {exact:?}");
        assert_ne!(losses[0], losses[9]);
    }
}

/// A training of a few steps and an evaluation. Running statistics are f32 in every type.
fn check<M: Model>(rate: f64, tolerances: [f32; 2], new: impl Fn(&Scope) -> M, xs: &Tensor) {
    let labels = integers(xs.dim(0).unwrap(), 1, CLASSES as u32).unwrap();
    let losses = |dtype: DType| {
        let params = Params::on(3, dtype, &Device::Cpu);
        let model = new(&params.root());
        let xs = if xs.dtype().is_float() { xs.to_dtype(dtype).unwrap() } else { xs.clone() };
        model.compile_with(&params, &xs).unwrap();
        assert!(params.buffers().iter().all(|buffer| buffer.value().dtype() == DType::F32));
        let mut opt = DistOpt::new(Sgd::new(rate), &params, &World::single()).unwrap();
        let mut losses = Vec::new();
        for _ in 0..4 {
            let step = model.train_one_batch(&mut opt, &xs, &labels, DistOption::Fp32, 0.0);
            losses.push(step.unwrap().1.to_scalar::<f32>().unwrap());
        }
        let output = params.in_mode(false, || model.forward(&xs)).unwrap();
        assert_eq!(output.dtype(), dtype);
        let loss = SoftMaxCrossEntropy::new().forward(&output, &labels).unwrap();
        losses.push(loss.to_scalar().unwrap());
        losses
    };
    let exact = losses(DType::F32);
    assert!(exact[3] < exact[0], "{exact:?}");
    for (dtype, tolerance) in [DType::F16, DType::BF16].into_iter().zip(tolerances) {
        let half = losses(dtype);
        let mut pairs = half.iter().zip(&exact);
        let are_close = pairs.all(|(half, exact)| (half - exact).abs() <= tolerance);
        assert!(are_close, "{dtype:?}: {half:?}, {exact:?}");
        assert_ne!(half, exact);
    }
}

#[test]
fn every_model_trains_and_evaluates() {
    let images = |shape: [usize; 4]| uniform(&shape[..], 5, -1.0, 1.0, DType::F32).unwrap();
    check(0.05, [1e-2, 0.1], |scope| Mlp::new(scope, CLASSES), &images([8, 1, 6, 6]));
    // This network amplifies rounding errors (see tests/it/composites.rs).
    check(4e-6, [0.1, 0.2], |scope| ResNet18::new(scope, CLASSES), &images([4, 3, 40, 40]));
    let config = GruClassifierConfig { vocabulary: 20, embedding: 8, hidden: 16, classes: CLASSES };
    let tokens = integers((6, 9), 2, 20).unwrap();
    check(0.05, [1e-2, 0.1], |scope| GruClassifier::new(scope, config), &tokens);
}

/// The first steps show when the gradient of a parameter is complete. The table of the tokens has two
/// uses, and later steps compute the last layer by another operation.
#[test]
fn a_language_model_trains_by_its_logits_and_without_them() {
    let config = GptConfig {
        vocabulary: 11,
        context: 6,
        layers: 2,
        width: 12,
        heads: 3,
        ..GptConfig::default()
    };
    let (tokens, targets) = (integers((4, 6), 2, 11).unwrap(), integers((4, 6), 3, 11).unwrap());
    for (dtype, tied) in [(DType::BF16, true), (DType::BF16, false), (DType::F16, true)] {
        let losses = |dtype| {
            let params = Params::on(3, dtype, &Device::Cpu);
            let model = Gpt::new(&params.root(), GptConfig { tied, ..config });
            model.compile_with(&params, &tokens).unwrap();
            // A bucket for each parameter.
            let buckets =
                DistOptConfig { first_bucket_bytes: 1, bucket_bytes: 1, ..Default::default() };
            let sgd = Sgd::new(0.5);
            let mut opt = DistOpt::with_config(sgd, &params, &World::single(), buckets).unwrap();
            let mut losses = Vec::new();
            for step in 0..6 {
                let option = DistOption::Fp32;
                let loss = if step < 3 || step == 5 {
                    let loss = model.loss(&model.forward(&tokens).unwrap(), &targets).unwrap();
                    opt.backward_and_update_with(&loss, option, 0.0).unwrap();
                    loss
                } else {
                    model.train_one_batch(&mut opt, &tokens, &targets, option, 0.0).unwrap().1
                };
                losses.push(loss.to_scalar::<f32>().unwrap());
            }
            losses
        };
        let (half, exact) = (losses(dtype), losses(DType::F32));
        let mut pairs = half.iter().zip(&exact);
        assert!(pairs.all(|(half, exact)| (half - exact).abs() < 0.02), "{half:?}, {exact:?}");
        assert!(exact[5] < exact[0], "{exact:?}");
    }
}

/// A thousand updates of 1e-4, each less than half a unit in the last place of a bf16 near 1.
#[test]
fn small_updates_are_not_lost() {
    let params = Params::on(0, DType::BF16, &Device::Cpu);
    let weight = params.root().param("weight", 3, Init::Const(1.0)).unwrap();
    let mut opt = DistOpt::new(Sgd::new(1e-4), &params, &World::single()).unwrap();
    for _ in 0..1000 {
        let loss = weight.tensor().sum_all().unwrap();
        opt.backward_and_update(&loss).unwrap();
    }
    let values = weight.tensor().to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
    assert!(values.iter().all(|value| (value - 0.9).abs() < 0.004), "{values:?}");
}

#[test]
fn a_value_that_is_set_replaces_the_master() {
    let params = Params::on(0, DType::F16, &Device::Cpu);
    let weight = params.root().param("weight", 2, Init::Const(1.0)).unwrap();
    weight.update_in_place(|mut values| values.fill(0.25)).unwrap().unwrap();
    weight
        .set(&Tensor::new(&[3f32, 4.0], &Device::Cpu).unwrap().to_dtype(DType::F16).unwrap())
        .unwrap();
    let mut values = [0.0; 2];
    weight.with_values(|numbers| numbers.copy_to_slice(&mut values)).unwrap();
    assert_eq!(values, [3.0, 4.0]);
}

#[test]
fn ranks_have_equal_masters() {
    let Some(world) = on_processes(RanksOf::new(ranks_have_equal_masters), &[2]) else { return };
    candelabrum::train::set_threads(1).unwrap();
    for dtype in [DType::F16, DType::BF16] {
        for option in [DistOption::Fp32, DistOption::PartialUpdate, DistOption::SparseTopK] {
            let digest = train(&world, dtype, 5, option).1;
            let digests = world.comm().all_gather_text(&digest).unwrap();
            assert!(digests.iter().all(|other| *other == digest), "{option}: {digests:?}");
        }
    }
}

fn one_weight(dtype: DType, loss_scale: LossScale) -> (Param, DistOpt) {
    let params = Params::on(0, dtype, &Device::Cpu);
    let weight = params.root().param("weight", 2, Init::ZEROS).unwrap();
    let config = DistOptConfig { loss_scale, ..DistOptConfig::default() };
    let world = World::single();
    let opt = DistOpt::with_config(Sgd::new(1.0), &params, &world, config).unwrap();
    (weight, opt)
}

/// The master's first value.
fn value(weight: &Param) -> f32 {
    let mut values = [0.0; 2];
    weight.with_values(|numbers| numbers.copy_to_slice(&mut values)).unwrap();
    values[0]
}

/// A loss whose gradient is `slope`, by a product in the type of the parameter.
fn sloped(weight: &Param, slope: f64) -> Tensor {
    let loss = weight.tensor().sum_all().unwrap().to_dtype(DType::F32).unwrap();
    (loss * slope).unwrap()
}

#[test]
fn a_scaled_loss_saves_gradients_that_f16_would_lose() {
    // The smallest number above 0 in f16 is 6e-8.
    for (loss_scale, expected) in [(LossScale::Off, 0.0), (LossScale::Fixed(65_536.0), -1e-6)] {
        let (weight, mut opt) = one_weight(DType::F16, loss_scale);
        for _ in 0..100 {
            opt.backward_and_update(&sloped(&weight, 1e-8)).unwrap();
        }
        assert!((f64::from(value(&weight)) - expected).abs() < 1e-8, "{loss_scale:?}");
    }
}

#[test]
fn a_power_of_two_changes_no_bit_in_f32() {
    let trained = |loss_scale| {
        let (weight, mut opt) = one_weight(DType::F32, loss_scale);
        for step in 0..5 {
            let loss = (sloped(&weight, 0.3).sqr().unwrap() * f64::from(step)).unwrap();
            opt.accumulate(&sloped(&weight, 0.01)).unwrap();
            opt.backward_and_update_with(&loss, DistOption::Fp32, 0.0).unwrap();
        }
        value(&weight).to_bits()
    };
    assert_eq!(trained(LossScale::Off), trained(LossScale::Fixed(4096.0)));
}

#[test]
fn a_dynamic_scale_falls_until_no_gradient_overflows() {
    let initial = 65_536.0;
    let (weight, mut opt) = one_weight(DType::F16, LossScale::Dynamic { initial, interval: 100 });
    for _ in 0..10 {
        opt.backward_and_update_with(&sloped(&weight, 10.0), DistOption::Fp32, 0.0).unwrap();
    }
    // 10 times 65,536, 32,768, 16,384 and 8,192 are too large for f16.
    assert_eq!(opt.figures(DistOption::Fp32).skipped, 4);
    assert_eq!(opt.take_notes().len(), 4);
    assert_eq!(value(&weight), -60.0);
    let bad = (sloped(&weight, 1.0) * f64::INFINITY).unwrap();
    let error = opt.backward_and_update_with(&bad, DistOption::Fp32, 0.0).unwrap_err();
    assert!(error.to_string().contains("the loss is not finite"), "{error}");
}
