//! Attention and the last layer at the shapes of small language models, with what they replace.
//!
//! ```text
//! RAYON_NUM_THREADS=1 cargo bench -p candelabrum-nn --bench transformers
//! ```
//!
//! A `step` is a forward and a backward pass.

#![expect(clippy::unwrap_used, reason = "a bench has nobody to hand an error to")]

use candelabrum_nn::ops::{self, AttentionConfig, CrossEntropyConfig, Rotary};
use candelabrum_testkit::{integers, uniform};
use candle_core::{DType, Tensor, Var};
use divan::Bencher;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    divan::main();
}

/// Sequences, tokens, heads, size of a head.
const SHAPES: [(usize, usize, usize, usize); 4] =
    [(16, 64, 4, 32), (8, 256, 6, 64), (2, 1024, 6, 64), (1, 2048, 12, 64)];

/// Rows, features, classes.
const LAST_LAYERS: [(usize, usize, usize); 3] =
    [(1024, 128, 96), (2048, 384, 96), (2048, 384, 16_384)];

fn variable(shape: &[usize], seed: u64) -> Tensor {
    let values = uniform(shape, seed, -1.0, 1.0, DType::F32).unwrap();
    Var::from_tensor(&values).unwrap().into_inner()
}

fn qkv((batch, length, heads, dim): (usize, usize, usize, usize)) -> Tensor {
    variable(&[batch, length, 3 * heads * dim], 1)
}

fn causal(heads: usize) -> AttentionConfig {
    AttentionConfig { causal: true, ..AttentionConfig::new(heads) }
}

#[divan::bench(args = SHAPES)]
fn forward(bencher: Bencher<'_, '_>, shape: (usize, usize, usize, usize)) {
    let (qkv, config) = (qkv(shape).detach(), causal(shape.2));
    bencher.bench_local(|| ops::attention(&qkv, None, config).unwrap());
}

#[divan::bench(args = SHAPES)]
fn step(bencher: Bencher<'_, '_>, shape: (usize, usize, usize, usize)) {
    let (qkv, config) = (qkv(shape), causal(shape.2));
    bencher.bench_local(|| run(&qkv, config));
}

#[divan::bench(args = SHAPES)]
fn step_rotary(bencher: Bencher<'_, '_>, shape: (usize, usize, usize, usize)) {
    let config = AttentionConfig { rotary: Some(Rotary::default()), ..causal(shape.2) };
    let qkv = qkv(shape);
    bencher.bench_local(|| run(&qkv, config));
}

#[divan::bench(args = &SHAPES[..3])]
fn step_composite(bencher: Bencher<'_, '_>, &shape: &(usize, usize, usize, usize)) {
    let (qkv, config) = (qkv(shape), causal(shape.2));
    bencher.bench_local(|| ops::with_composites(|| run(&qkv, config)));
}

#[divan::bench(args = LAST_LAYERS)]
fn last_layer_step(bencher: Bencher<'_, '_>, (rows, features, classes): (usize, usize, usize)) {
    let (xs, weight) = (variable(&[rows, features], 1), variable(&[classes, features], 2));
    let labels = integers(rows, 3, classes as u32).unwrap();
    let config = CrossEntropyConfig::default();
    let loss = || ops::linear_cross_entropy(&xs, &weight, None, &labels, config).unwrap();
    bencher.bench_local(|| loss().backward().unwrap());
}

/// The same with all logits at once.
#[divan::bench(args = LAST_LAYERS)]
fn last_layer_apart_step(
    bencher: Bencher<'_, '_>,
    (rows, features, classes): (usize, usize, usize),
) {
    let (xs, weight) = (variable(&[rows, features], 1), variable(&[classes, features], 2));
    let labels = integers(rows, 3, classes as u32).unwrap();
    let loss = || {
        let logits = ops::linear(&xs, &weight, None, None).unwrap();
        ops::softmax_cross_entropy(&logits, &labels).unwrap()
    };
    bencher.bench_local(|| loss().backward().unwrap());
}

fn run(qkv: &Tensor, config: AttentionConfig) {
    ops::attention(qkv, None, config).unwrap().sum_all().unwrap().backward().unwrap();
}
