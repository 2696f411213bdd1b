//! The fused operations against central differences, PyTorch and plain loops.

mod activations;
mod arithmetic;
mod attention;
mod avg_pool2d;
mod behaviour;
mod channel_norms;
mod composites;
mod convolutions;
mod embedding;
mod frozen_weights;
mod fused_norms;
mod golden;
mod hooks;
mod linear_cross_entropy;
mod loss;
mod mixing;
mod naive_conv2d;
mod norms;
mod on_a_gpu;
mod other_losses;
mod profile;
mod rearrange;
mod recompute;
mod recurrent;
mod reproducibility;
mod residual;
mod sync_batch_norm;
mod threads;
mod transformers;

use std::path::PathBuf;

use candelabrum_testkit::uniform;
use candle_core::{DType, Result, Shape, Tensor};

/// Uniform in `[-1, 1)`, f64.
fn random(shape: impl Into<Shape>, seed: u64) -> Result<Tensor> {
    uniform(shape, seed, -1.0, 1.0, DType::F64)
}

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}
