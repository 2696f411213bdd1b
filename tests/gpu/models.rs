//! Models train on the GPU with the losses that they have on the CPU.

use candelabrum::models::{Cnn, GruClassifier, GruClassifierConfig, Mlp, ResNet18};
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::RanksOf;
use candelabrum_testkit::{integers, uniform};

use crate::device::gpu;

const STEPS: u64 = 20;
const BATCHES: u64 = 4;
const CLASSES: usize = 5;
const TOKENS: usize = 20;

/// The loss of each step on `device`. Every call has the same initial values and the same batches.
fn losses<M: Model>(
    device: &Device,
    dtype: DType,
    rate: f64,
    new: &impl Fn(&Scope) -> M,
    batch: &impl Fn(u64) -> Tensor,
) -> Vec<f32> {
    let params = Params::on(3, dtype, device);
    let model = new(&params.root());
    let batch = |number| {
        let xs = batch(number);
        let dtype = if xs.dtype().is_float() { dtype } else { xs.dtype() };
        xs.to_dtype(dtype).unwrap().to_device(device).unwrap()
    };
    params.eval();
    model.forward(&batch(0)).unwrap(); // creates the parameters
    params.train();
    let sgd = Sgd::new(rate).momentum(0.9);
    let mut opt = DistOpt::new(sgd, &params, &World::single()).unwrap();
    let step = |step| {
        let xs = batch(step % BATCHES);
        let labels = integers(xs.dim(0).unwrap(), step % BATCHES, CLASSES as u32).unwrap();
        let labels = labels.to_device(device).unwrap();
        let (_, loss) =
            model.train_one_batch(&mut opt, &xs, &labels, DistOption::Fp32, 0.05).unwrap();
        loss.to_scalar::<f32>().unwrap()
    };
    (0..STEPS).map(step).collect()
}

/// The largest differences of the losses in the first pass over the batches, and later.
type Limits = [f32; 2];
const LIMITS: Limits = [1e-4; 2];

fn compare<M: Model>(
    rate: f64,
    limits: Limits,
    new: impl Fn(&Scope) -> M,
    batch: impl Fn(u64) -> Tensor,
) {
    let Some(gpu) = gpu() else { return };
    let on_cpu = losses(&Device::Cpu, DType::F32, rate, &new, &batch);
    let on_gpu = losses(&gpu, DType::F32, rate, &new, &batch);
    let limit = |step| limits[usize::from(step >= BATCHES as usize)];
    let mut pairs = on_cpu.iter().zip(&on_gpu).enumerate();
    let are_close = pairs.all(|(step, (cpu, gpu))| (cpu - gpu).abs() <= limit(step));
    assert!(are_close, "{on_cpu:?}, {on_gpu:?}");
    assert_ne!(on_cpu[0], on_cpu[19]);
}

/// A function from the number of a batch to its images.
fn images(shape: [usize; 4]) -> impl Fn(u64) -> Tensor {
    move |number| uniform(&shape[..], number, -1.0, 1.0, DType::F32).unwrap()
}

#[test]
fn the_convolutional_network() {
    compare(0.01, LIMITS, |scope| Cnn::new(scope, CLASSES), images([4, 1, 28, 28]));
}

#[test]
fn an_algorithm_that_cudnn_advises_and_refuses_is_not_taken() {
    if gpu().is_some() {
        let network = RanksOf::test("models::the_convolutional_network");
        network.env("SOFTGPU_DNN_REFUSES", 1).run_all_good(1);
    }
}

#[test]
fn the_multilayer_perceptron() {
    compare(0.01, LIMITS, |scope| Mlp::new(scope, CLASSES), images([8, 1, 6, 6]));
}

/// The rate is small because this network amplifies rounding errors (see tests/it/composites.rs). So the first
/// losses must agree to about 40 units in the last place, which is what the sums of up to 4608 products in 18
/// layers leave of each other. After some updates the differences of roundings have grown a hundredfold: two
/// orders of the sums (`SOFTGPU_NOISE`) differ by 3.5e-6 in the first four steps and by 5.5e-4 in twenty.
#[test]
fn the_residual_network() {
    compare(4e-6, [1e-5, 2e-3], |scope| ResNet18::new(scope, CLASSES), images([4, 3, 40, 40]));
}

#[test]
fn the_classifier_of_sequences() {
    let config =
        GruClassifierConfig { vocabulary: TOKENS, embedding: 8, hidden: 16, classes: CLASSES };
    let tokens = |number| integers((6, 9), number, TOKENS as u32).unwrap();
    compare(0.01, LIMITS, |scope| GruClassifier::new(scope, config), tokens);
}

/// Half-precision parameters with f32 masters. The tolerance is that of tests/it/half_precision.rs.
#[test]
fn the_convolutional_network_in_half_precision() {
    let Some(gpu) = gpu() else { return };
    let (new, batch) = (|scope: &Scope| Cnn::new(scope, CLASSES), images([4, 1, 28, 28]));
    let exact = losses(&Device::Cpu, DType::F32, 0.003, &new, &batch);
    for (dtype, tolerance) in [(DType::F16, 2e-2), (DType::BF16, 0.12)] {
        let losses = losses(&gpu, dtype, 0.003, &new, &batch);
        // Later the network has amplified the rounding errors.
        let mut pairs = losses.iter().zip(&exact).take(12);
        let are_close = pairs.all(|(half, exact)| (half - exact).abs() <= tolerance);
        assert!(are_close, "{dtype:?}: {losses:?}, {exact:?}");
    }
}
