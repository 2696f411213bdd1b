//! Attention at the shapes of small language models, with its composite beside it.
//!
//! ```text
//! RAYON_NUM_THREADS=1 cargo bench -p candelabrum-nn --bench attention
//! ```
//!
//! Each line is a forward and a backward pass of all sequences of a batch, from packed projections.

#![expect(clippy::unwrap_used, reason = "a bench has nobody to hand an error to")]

use candelabrum_nn::ops::{self, AttentionConfig, Rotary};
use candelabrum_testkit::uniform;
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

fn qkv((batch, length, heads, dim): (usize, usize, usize, usize)) -> Tensor {
    let values = uniform((batch, length, 3 * heads * dim), 1, -1.0, 1.0, DType::F32).unwrap();
    Var::from_tensor(&values).unwrap().into_inner()
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

fn run(qkv: &Tensor, config: AttentionConfig) {
    ops::attention(qkv, None, config).unwrap().sum_all().unwrap().backward().unwrap();
}
