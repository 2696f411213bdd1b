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
    let noise = |seed| uniform((64, 64), seed, -1.0, 1.0, DType::F32).unwrap();
    let (xs, weight) = (noise(1), noise(2));
    let product = |device: &Device| {
        let [xs, weight] = [&xs, &weight].map(|tensor| tensor.to_device(device).unwrap());
        let ys = ops::linear(&xs, &weight, None, None).unwrap();
        ys.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    let exact = product(&Device::Cpu);
    let error = |ys: Vec<f32>| {
        ys.iter().zip(&exact).map(|(y, exact)| (y - exact).abs()).fold(0.0, f32::max)
    };
    assert!(error(product(world.device())) < 1e-5);
    set_gemm_reduced_precision_f32(true);
    let rounded = error(product(world.device()));
    assert!((1e-5..2e-2).contains(&rounded), "{rounded}");
}

#[test]
fn products_are_rounded_where_candles_switch_says_so() {
    ranks("tf32::switch_main", 1);
}
