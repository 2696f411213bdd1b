//! Convolutions whose input, weight and results begin between two multiples of 16 bytes: cuDNN never sees such an
//! address, and the results have the bits of aligned ones.

use candelabrum::memory::Convolution;
use candelabrum::memory::cuda::{CudaNumbers, Gpu};
use candelabrum_testkit::ranks::{RanksOf, is_rank};

use crate::device::gpu;
use crate::memory::{bits, on};

const SIZES: Convolution = Convolution {
    batch: 2,
    in_channels: 3,
    out_channels: 2,
    groups: 1,
    in_size: (5, 4),
    out_size: (3, 2),
    kernel: (3, 3),
    stride: (1, 1),
    padding: (0, 0),
    dilation: (1, 1),
};

/// The bits of the three products, where every operand begins at this number of its memory.
fn products(gpu: &Gpu, offset: usize) -> [Vec<u32>; 3] {
    let lengths = [SIZES.input_len(), SIZES.weight_len(), SIZES.output_len()];
    let numbers = |len: usize| -> Vec<f32> {
        // The first `offset` numbers belong to nobody.
        let value = |i: usize| ((i * 7919 + len) % 2003) as f32 / 1001.5 - 1.0;
        (0..offset).map(|_| f32::NAN).chain((0..len).map(value)).collect()
    };
    let memory = lengths.map(|len| on(&gpu.device(), &numbers(len)));
    let [xs, weight, ys] = memory.each_ref().map(|flat| {
        let span = flat.span().unwrap().cuda().unwrap();
        CudaNumbers::from(span.range(offset..span.len()))
    });
    let mut results =
        [lengths[2], lengths[0], lengths[1]].map(|len| gpu.numbers(offset + len).unwrap());
    let [forward, to_input, to_weight] = results.each_mut().map(|flat| {
        let span = flat.span_mut().unwrap().cuda().unwrap();
        let len = span.len();
        span.range(offset..len).into()
    });
    gpu.convolve(&SIZES, forward, xs, weight).unwrap();
    gpu.convolve_back_to_input(&SIZES, to_input, weight, ys).unwrap();
    gpu.convolve_back_to_weight(&SIZES, to_weight, xs, ys).unwrap();
    results.map(|flat| bits(&flat)[offset..].to_vec())
}

#[test]
fn convolutions_begin_anywhere() {
    let Some(gpu) = gpu() else { return };
    RanksOf::new(convolutions_begin_anywhere).env("SOFTGPU_STRICT", 1).run_in_test(&[1]);
    if is_rank() {
        let gpu = Gpu::from_device(&gpu).unwrap();
        let aligned = products(&gpu, 0);
        for offset in [1, 2, 4] {
            assert!(products(&gpu, offset) == aligned, "from number {offset} on");
        }
    }
}
