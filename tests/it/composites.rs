//! Every model has the same losses in training by kernels and by composites of candle's operations.

use candelabrum::candle::backprop::GradStore;
use candelabrum::models::{
    CharLstm, CharLstmConfig, Cnn, GruClassifier, GruClassifierConfig, Mlp, MobileNetV2, ResNet18,
    ResNet50,
};
use candelabrum::nn::ops::{softmax_cross_entropy, with_composites};
use candelabrum::prelude::*;
use candelabrum_testkit::{assert_close, integers, uniform};

const STEPS: u64 = 20;
const BATCHES: u64 = 4;
const CLASSES: usize = 5;
const TOKENS: usize = 20;

/// The loss of each step. Every call has the same initial values and the same batches.
fn losses<M: Model>(
    rate: f64,
    new: impl Fn(&Scope) -> M,
    batch: impl Fn(u64) -> Tensor,
    labels: impl Fn(&Tensor, u64) -> Tensor,
) -> Vec<f32> {
    let params = Params::new(3);
    let model = new(&params.root());
    params.eval();
    model.forward(&batch(0)).unwrap(); // creates the parameters
    params.train();
    let sgd = Sgd::new(rate).momentum(0.9);
    let mut opt = DistOpt::new(sgd, &params, &World::single()).unwrap();
    let step = |step| {
        let xs = batch(step % BATCHES);
        let labels = labels(&xs, step % BATCHES);
        let (_, loss) =
            model.train_one_batch(&mut opt, &xs, &labels, DistOption::Fp32, 0.05).unwrap();
        loss.to_scalar::<f32>().unwrap()
    };
    (0..STEPS).map(step).collect()
}

fn compare<M: Model>(rate: f64, new: impl Fn(&Scope) -> M, batch: impl Fn(u64) -> Tensor) {
    compare_with(rate, new, batch, class_of_each);
}

/// The classes of the examples of a batch.
fn class_of_each(xs: &Tensor, number: u64) -> Tensor {
    integers(xs.dim(0).unwrap(), number, CLASSES as u32).unwrap()
}

fn compare_with<M: Model>(
    rate: f64,
    new: impl Fn(&Scope) -> M,
    batch: impl Fn(u64) -> Tensor,
    labels: impl Fn(&Tensor, u64) -> Tensor,
) {
    let by_kernels = losses(rate, &new, &batch, &labels);
    let by_candle = with_composites(|| losses(rate, &new, &batch, &labels));
    let mut pairs = by_kernels.iter().zip(&by_candle);
    let are_close = pairs.all(|(kernel, candle)| (kernel - candle).abs() <= 1e-4);
    assert!(are_close, "{by_kernels:?}, {by_candle:?}");
    assert_ne!(by_kernels[0], by_kernels[19]);
}

/// A function from the number of a batch to its images.
fn images(shape: [usize; 4]) -> impl Fn(u64) -> Tensor {
    move |number| uniform(&shape[..], number, -1.0, 1.0, DType::F32).unwrap()
}

#[test]
fn the_convolutional_network() {
    compare(0.01, |scope| Cnn::new(scope, CLASSES), images([4, 1, 28, 28]));
}

#[test]
fn the_multilayer_perceptron() {
    compare(0.01, |scope| Mlp::new(scope, CLASSES), images([8, 1, 6, 6]));
}

/// The rate is small because this network amplifies rounding errors: with 2e-5 the losses differ by
/// 7e-5 after 20 steps, although the gradients are equal (see the next test).
#[test]
fn the_residual_network() {
    compare(4e-6, |scope| ResNet18::new(scope, CLASSES), images([4, 3, 40, 40]));
}

/// In f64 rounding is so small that it hides no difference between the gradients.
#[test]
fn the_residual_networks_gradients_in_f64() {
    compare_gradients(|scope| ResNet18::new(scope, CLASSES));
    compare_gradients(|scope| ResNet50::new(scope, CLASSES));
}

/// Its blocks have convolutions of single channels, and ReLU6.
#[test]
fn the_mobile_networks_gradients_in_f64() {
    compare_gradients(|scope| MobileNetV2::with_dropout(scope, CLASSES, 0.0));
}

fn compare_gradients<M: Model>(new: impl Fn(&Scope) -> M) {
    let params = Params::on(3, DType::F64, &Device::Cpu);
    let model = new(&params.root());
    let xs = uniform((3, 3, 40, 40), 1, -1.0, 1.0, DType::F64).unwrap();
    let labels = integers(3, 2, CLASSES as u32).unwrap();
    let loss = || softmax_cross_entropy(&model.forward(&xs).unwrap(), &labels).unwrap();
    let by_kernels = loss().backward().unwrap();
    let by_candle = with_composites(loss).backward().unwrap();
    for param in params.list() {
        let gradient = |store: &GradStore| store.get(param.tensor()).unwrap().clone();
        let (kernel, candle) = (gradient(&by_kernels), gradient(&by_candle));
        let largest = kernel.abs().unwrap().max_all().unwrap().to_scalar::<f64>().unwrap();
        // The next batch norm takes away what a shift before it adds, so its gradient is only rounding.
        assert_close(&candle, &kernel, 0.0, 1e-10 * largest + 1e-12);
    }
}

#[test]
fn the_classifier_of_sequences() {
    let config =
        GruClassifierConfig { vocabulary: TOKENS, embedding: 8, hidden: 16, classes: CLASSES };
    let tokens = |number| integers((6, 9), number, TOKENS as u32).unwrap();
    compare(0.01, |scope| GruClassifier::new(scope, config), tokens);
}

#[test]
fn the_model_of_characters() {
    let config = CharLstmConfig { vocabulary: TOKENS, embedding: 8, hidden: 16 };
    let tokens = |number| integers((6, 9), number, TOKENS as u32).unwrap();
    let next = |_: &Tensor, number| tokens(number + 1);
    compare_with(0.01, |scope| CharLstm::new(scope, config), tokens, next);
}
