//! Attention on a GPU: its launches, and memory that grows with the length of the sequences. The software
//! GPU counts both. Without it the tests are left out.

use candelabrum::candle::{Result, Var};
use candelabrum::nn::ops::{AttentionConfig, Rotary, attention, with_composites};
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::{RanksOf, is_rank};
use candelabrum_testkit::uniform;

use crate::device::gpu;
use crate::linear::is_software_gpu;

/// A forward and a backward pass of one sequence of this length, with one head of eight columns.
fn pass(gpu: &Device, length: usize, rotary: Option<Rotary>) -> Result<()> {
    let qkv = uniform((1, length, 24), 1, -1.0, 1.0, DType::F32)?.to_device(gpu)?;
    let qkv = Var::from_tensor(&qkv)?;
    let config = AttentionConfig { causal: true, rotary, ..AttentionConfig::new(1) };
    let ys = attention(&qkv, None, config)?;
    let grads = ys.sum_all()?.backward()?;
    let gradient = grads.get(&qkv).expect("a gradient").flatten_all()?.to_vec1::<f32>()?;
    assert!(gradient.iter().all(|g| g.is_finite()));
    Ok(())
}

#[test]
fn a_pass_is_one_launch_forward_and_three_backward() {
    let Some(gpu) = gpu() else { return };
    if is_rank() {
        pass(&gpu, 130, None).unwrap();
        return pass(&gpu, 130, Some(Rotary::default())).unwrap();
    }
    let rank =
        RanksOf::new(a_pass_is_one_launch_forward_and_three_backward).env("SOFTGPU_TRACE", 1);
    let text = rank.run_all_good(1).remove(0).text;
    if !text.contains("softgpu: launch ") {
        return;
    }
    let count = |kernel: &str| text.matches(&format!("softgpu: launch {kernel}")).count();
    let kernels = ["64 ", "deltas ", "key_gradients_64 ", "query_gradients_64 "];
    assert_eq!(kernels.map(|kernel| count(&format!("attention_{kernel}"))), [2; 4]);
    // The angles of rotary positions are made where there are any.
    assert_eq!((count("attention_angles "), count("attention_")), (1, 9));
}

/// In MiB: 33 for the workspaces of the stream, and 3 for the rest. All scores of a sequence of this length take 4.
const MEMORY: usize = 36;
const LENGTH: usize = 1024;

#[test]
fn no_memory_grows_with_the_square_of_the_length() {
    let Some(gpu) = gpu().filter(|_| is_software_gpu()) else { return };
    let ranks = RanksOf::new(no_memory_grows_with_the_square_of_the_length);
    ranks.env("SOFTGPU_MEMORY_MB", MEMORY).run_in_test(&[1]);
    if is_rank() {
        pass(&gpu, LENGTH, None).unwrap();
        let error = with_composites(|| pass(&gpu, LENGTH, None)).unwrap_err().to_string();
        assert!(error.contains("OUT_OF_MEMORY"), "{error}");
    }
}
