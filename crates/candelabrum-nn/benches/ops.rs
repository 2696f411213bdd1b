//! The fused operations at the shapes of the MNIST CNN (batch 64), raw candle beside each.
//!
//! ```text
//! RAYON_NUM_THREADS=1 cargo bench -p candelabrum-nn
//! ```
//!
//! `backward` includes what candle adds around a custom op: the sum that makes a scalar, and zeros
//! plus an addition per gradient. The max-pool backward of raw candle is wrong, but does its work.

#![expect(clippy::unwrap_used, reason = "a bench has nobody to hand an error to")]

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{self, BatchNormConfig, Conv2dConfig, Pool2dConfig};
use candelabrum_testkit::{mnist_cnn_recipe, uniform};
use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor, Var};
use divan::Bencher;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    divan::main();
}

/// Whose operations run.
#[derive(Debug, Clone, Copy)]
enum By {
    Fused,
    RawCandle,
}

const BOTH: [By; 2] = [By::Fused, By::RawCandle];
const RELU: Option<Activation> = Some(Activation::Relu);

fn conv2d(by: By, xs: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    match by {
        By::Fused => ops::conv2d(xs, weight, Some(bias), Conv2dConfig::default(), RELU),
        By::RawCandle => {
            xs.conv2d(weight, 0, 1, 1, 1)?.broadcast_add(&bias.reshape((1, (), 1, 1))?)?.relu()
        }
    }
}

fn linear(by: By, xs: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
    match by {
        By::Fused => ops::linear(xs, weight, Some(bias), RELU),
        By::RawCandle => xs.matmul(&weight.t()?)?.broadcast_add(bias)?.relu(),
    }
}

fn max_pool2d(by: By, xs: &Tensor) -> Result<Tensor> {
    match by {
        By::Fused => ops::max_pool2d(xs, Pool2dConfig::square(2)),
        By::RawCandle => xs.max_pool2d(2),
    }
}

/// Loss of the whole network.
fn cnn(by: By, params: &[Var], images: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let ys = max_pool2d(by, &conv2d(by, images, &params[0], &params[1])?)?;
    let ys = max_pool2d(by, &conv2d(by, &ys, &params[2], &params[3])?)?;
    let ys = linear(by, &ys.flatten_from(1)?, &params[4], &params[5])?;
    match by {
        By::Fused => {
            let logits = ops::linear(&ys, &params[6], Some(&params[7]), None)?;
            ops::softmax_cross_entropy(&logits, labels)
        }
        By::RawCandle => {
            let logits = ys.matmul(&params[6].t()?)?.broadcast_add(&params[7])?;
            candle_nn::loss::cross_entropy(&logits, labels)
        }
    }
}

fn variable(shape: &[usize], seed: u64) -> Tensor {
    let values = uniform(shape, seed, -1.0, 1.0, DType::F32).unwrap();
    Var::from_tensor(&values).unwrap().into_inner()
}

/// Benches `f` and its backward; `f` is built once, outside of the timing.
fn forward(bencher: Bencher<'_, '_>, f: impl Fn() -> Result<Tensor>) {
    bencher.bench_local(|| f().unwrap());
}

fn backward(bencher: Bencher<'_, '_>, f: impl Fn() -> Result<Tensor>) {
    let loss = f().unwrap().sum_all().unwrap();
    bencher.bench_local(|| loss.backward().unwrap());
}

mod conv1 {
    use super::{BOTH, Bencher, By, conv2d, variable};

    /// Images are no variables: nobody asks for their gradient.
    fn run(by: By) -> impl Fn() -> candle_core::Result<candle_core::Tensor> {
        let images = variable(&[64, 1, 28, 28], 1).detach();
        let (weight, bias) = (variable(&[20, 1, 5, 5], 2), variable(&[20], 3));
        move || conv2d(by, &images, &weight, &bias)
    }

    #[divan::bench(args = BOTH)]
    fn forward(bencher: Bencher<'_, '_>, by: By) {
        super::forward(bencher, run(by));
    }

    #[divan::bench(args = BOTH)]
    fn backward(bencher: Bencher<'_, '_>, by: By) {
        super::backward(bencher, run(by));
    }
}

mod conv2 {
    use super::{BOTH, Bencher, By, conv2d, variable};

    fn run(by: By) -> impl Fn() -> candle_core::Result<candle_core::Tensor> {
        let xs = variable(&[64, 20, 12, 12], 1);
        let (weight, bias) = (variable(&[50, 20, 5, 5], 2), variable(&[50], 3));
        move || conv2d(by, &xs, &weight, &bias)
    }

    #[divan::bench(args = BOTH)]
    fn forward(bencher: Bencher<'_, '_>, by: By) {
        super::forward(bencher, run(by));
    }

    #[divan::bench(args = BOTH)]
    fn backward(bencher: Bencher<'_, '_>, by: By) {
        super::backward(bencher, run(by));
    }
}

mod pool1 {
    use super::{BOTH, Bencher, By, max_pool2d, variable};

    fn run(by: By) -> impl Fn() -> candle_core::Result<candle_core::Tensor> {
        let xs = variable(&[64, 20, 24, 24], 1);
        move || max_pool2d(by, &xs)
    }

    #[divan::bench(args = BOTH)]
    fn forward(bencher: Bencher<'_, '_>, by: By) {
        super::forward(bencher, run(by));
    }

    #[divan::bench(args = BOTH)]
    fn backward(bencher: Bencher<'_, '_>, by: By) {
        super::backward(bencher, run(by));
    }
}

mod linear1 {
    use super::{BOTH, Bencher, By, linear, variable};

    fn run(by: By) -> impl Fn() -> candle_core::Result<candle_core::Tensor> {
        let xs = variable(&[64, 800], 1);
        let (weight, bias) = (variable(&[500, 800], 2), variable(&[500], 3));
        move || linear(by, &xs, &weight, &bias)
    }

    #[divan::bench(args = BOTH)]
    fn forward(bencher: Bencher<'_, '_>, by: By) {
        super::forward(bencher, run(by));
    }

    #[divan::bench(args = BOTH)]
    fn backward(bencher: Bencher<'_, '_>, by: By) {
        super::backward(bencher, run(by));
    }
}

/// A block of ResNet-18 on CIFAR-10, at its third stage.
#[divan::bench]
fn batch_norm2d_step(bencher: Bencher<'_, '_>) {
    let (xs, weight, bias) = (variable(&[64, 64, 8, 8], 1), variable(&[64], 2), variable(&[64], 3));
    let config = BatchNormConfig { activation: RELU, ..Default::default() };
    let norm = || ops::batch_norm2d(&xs, Some(&weight), Some(&bias), None, config);
    bencher.bench_local(|| step(&norm().unwrap()));
}

#[divan::bench]
fn layer_norm_step(bencher: Bencher<'_, '_>) {
    let (xs, weight, bias) = (variable(&[2048, 512], 1), variable(&[512], 2), variable(&[512], 3));
    let norm = || ops::layer_norm(&xs, &[512], Some(&weight), Some(&bias), 1e-5);
    bencher.bench_local(|| step(&norm().unwrap()));
}

/// The backward of what a forward has just made.
fn step(ys: &Tensor) -> GradStore {
    ys.sum_all().unwrap().backward().unwrap()
}

/// Forward and backward of the whole network; the optimizer is not part of it.
#[divan::bench(args = BOTH)]
fn cnn_step(bencher: Bencher<'_, '_>, by: By) {
    let parameters = mnist_cnn_recipe::parameters().unwrap();
    let vars = parameters.iter().map(|(_, values)| Var::from_tensor(values).unwrap());
    let vars: Vec<Var> = vars.collect();
    let (images, labels) = mnist_cnn_recipe::batch(0).unwrap();
    let step = || cnn(by, &vars, &images, &labels).unwrap().backward().unwrap();
    bencher
        .counter(divan::counter::ItemsCount::new(mnist_cnn_recipe::BATCH_SIZE))
        .bench_local(step);
}
