//! TF32 is used where a program asks for it, by candle's own switch.

use candelabrum::candle::cuda::set_gemm_reduced_precision_f32;
use candelabrum::nn::ops;
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::is_rank;
use candelabrum_testkit::uniform;

use crate::ranks::{ranks, world};

/// In a process of its own, because the switch is the process's.
#[test]
fn switch_main() {
    if !is_rank() {
        return;
    }
    let world = world();
    // cuBLAS may compute a small product without its units for TF32 although they are permitted.
    const SIZE: usize = 512;
    let noise = |seed| uniform((SIZE, SIZE), seed, -1.0, 1.0, DType::F32).unwrap();
    // The results are as large as those of 64 x 64, and so are the errors.
    let (xs, weight) = (noise(1), (noise(2) * (64.0 / SIZE as f64).sqrt()).unwrap());
    let bias = uniform(SIZE, 3, -1.0, 1.0, DType::F32).unwrap();
    // By cuBLAS without a bias, by cuBLASLt with it.
    let product = |device: &Device, with_bias: bool| {
        let [xs, weight, bias] =
            [&xs, &weight, &bias].map(|tensor| tensor.to_device(device).unwrap());
        let ys = ops::linear(&xs, &weight, with_bias.then_some(&bias), None).unwrap();
        ys.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    let errors = || {
        [false, true].map(|with_bias| {
            let exact = product(&Device::Cpu, with_bias);
            let ys = product(world.device(), with_bias);
            ys.iter().zip(&exact).map(|(y, exact)| (y - exact).abs()).fold(0.0, f32::max)
        })
    };
    // Sums of 512 products in f32, below 16: each rounding is up to 2^-21, and 512 random ones are about
    // sqrt(512) 2^-21 = 1e-5 together, by another order of the terms, too. TF32 rounds each factor by up
    // to 2^-11 of it, which makes about 1e-3.
    const LIMIT: f32 = 1e-4;
    let exact = errors();
    assert!(exact.iter().all(|&error| error < LIMIT), "{exact:?}");
    set_gemm_reduced_precision_f32(true);
    let rounded = errors();
    assert!(rounded.iter().all(|error| (LIMIT..2e-2).contains(error)), "{rounded:?}");
}

#[test]
fn products_are_rounded_where_candles_switch_says_so() {
    ranks("tf32::switch_main", 1);
}
