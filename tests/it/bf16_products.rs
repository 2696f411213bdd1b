//! Training with products in bf16 reaches the losses of f32. The precision counts for the whole process, so the test
//! starts one of its own.

use std::time::Duration;

use candelabrum::models::{Cnn, Gpt, GptConfig, ResNet18, Stem};
use candelabrum::nn::ops::{ProductPrecision, bf16_instructions};
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::{Backend, RanksOf, is_rank};
use candelabrum_testkit::{integers, uniform};

const STEPS: u64 = 300;

/// The steps at the end over which the loss is averaged.
const LAST: usize = 50;

const CLASSES: usize = 10;

/// Images of a class: its own picture with noise. Each fifth label is wrong, so no loss becomes 0.
fn images(step: u64, batch: usize, shape: [usize; 3]) -> (Tensor, Tensor) {
    let [channels, height, width] = shape;
    let pictures = uniform((CLASSES, channels, height, width), 1, -0.5, 0.5, DType::F32).unwrap();
    let labels = integers(batch, 2 * step, CLASSES as u32).unwrap();
    let noise = uniform((batch, channels, height, width), 2 * step + 1, -0.5, 0.5, DType::F32);
    let images = (pictures.index_select(&labels, 0).unwrap() + noise.unwrap()).unwrap();
    let wrong = batch.div_ceil(5);
    let any = integers(wrong, 7 * step, CLASSES as u32).unwrap();
    let right = labels.narrow(0, wrong, batch - wrong).unwrap();
    (images, Tensor::cat(&[any, right], 0).unwrap())
}

/// Sequences whose next token is one of four, by the token before.
fn tokens(step: u64, batch: usize, length: usize) -> (Tensor, Tensor) {
    let choices: Vec<u32> = integers(batch * (length + 1), step, 4).unwrap().to_vec1().unwrap();
    let mut rows = Vec::new();
    for choices in choices.chunks(length + 1) {
        let mut token = 0;
        for choice in choices {
            token = (5 * token + 7 * choice + 1) % 96;
            rows.push(token);
        }
    }
    let all = Tensor::from_vec(rows, (batch, length + 1), &Device::Cpu).unwrap();
    (all.narrow(1, 0, length).unwrap(), all.narrow(1, 1, length).unwrap().contiguous().unwrap())
}

/// The mean loss of the last steps of a training on these batches.
fn train<M: Model>(
    precision: ProductPrecision,
    lr: f32,
    model: impl FnOnce(&Params) -> M,
    batch: impl Fn(u64) -> (Tensor, Tensor),
) -> f64 {
    let params = Params::with_product_precision(5, precision);
    let model = model(&params);
    model.compile_with(&params, &batch(0).0).unwrap();
    let mut opt = DistOpt::new(Sgd::new(lr).momentum(0.9), &params, &World::single()).unwrap();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (xs, ys) = batch(step);
        let option = DistOption::Fp32;
        let (_, loss) = model.train_one_batch(&mut opt, &xs, &ys, option, 0.0).unwrap();
        losses.push(f64::from(loss.to_scalar::<f32>().unwrap()));
    }
    let last = &losses[losses.len() - LAST..];
    assert!(last.iter().sum::<f64>() / (LAST as f64) < 0.9 * losses[0], "it learns: {losses:?}");
    last.iter().sum::<f64>() / LAST as f64
}

/// Compares the losses of a training in both precisions. They may be 1% apart, or as far as those of two
/// trainings in f32 whose rates differ by a factor of 1.00001.
fn check(name: &str, train: impl Fn(ProductPrecision, f32) -> f64) {
    let exact = train(ProductPrecision::F32, 1.0);
    let rounded = train(ProductPrecision::Bf16, 1.0);
    // How far two trainings in f32 are apart that differ by little.
    let other = train(ProductPrecision::F32, 1.0 + 1e-5);
    println!(
        "{name}: loss {exact:.5} in f32, {rounded:.5} with products in bf16, {other:.5} in f32 \
         with another rate"
    );
    let apart = |loss: f64| (loss / exact - 1.0).abs();
    assert!(apart(rounded) < apart(other).max(0.01), "{name}: {exact}, {rounded}, {other}");
    assert!(exact != rounded, "{name}: nothing is rounded");
}

#[test]
#[ignore = "minutes"]
fn losses_are_those_of_f32_after_300_steps() {
    let alone = RanksOf::new(training_main).over(Backend::Alone);
    print!("{}", alone.limit(Duration::from_secs(3600)).run_all_good(1)[0].text);
}

/// Not a test: the process of the training.
#[test]
fn training_main() {
    if !is_rank() {
        return;
    }
    println!("instructions: {:?}", bf16_instructions());
    check("MNIST CNN", |precision, factor| {
        let model = |params: &Params| Cnn::new(&params.root(), CLASSES);
        train(precision, factor * 0.005, model, |step| images(step, 32, [1, 28, 28]))
    });
    check("GPT", |precision, factor| {
        let model = |params: &Params| Gpt::new(&params.root(), GptConfig::tiny());
        train(precision, factor * 0.05, model, |step| tokens(step, 4, 64))
    });
    check("ResNet-18", |precision, factor| {
        let model = |params: &Params| ResNet18::with_stem(&params.root(), CLASSES, Stem::Small);
        train(precision, factor * 0.01, model, |step| images(step, 10, [3, 32, 32]))
    });
}
