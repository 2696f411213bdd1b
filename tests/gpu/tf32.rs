//! TF32 is used where a program asks for it, by `--precision tf32` or by candle's own switch.

use candelabrum::candle::Var;
use candelabrum::candle::cuda::{gemm_reduced_precision_f32, set_gemm_reduced_precision_f32};
use candelabrum::nn::ops::{self, Conv2dConfig, ProductPrecision, product_precision};
use candelabrum::prelude::*;
use candelabrum::train::cli::Precision;
use candelabrum_testkit::uniform;

use crate::ranks::on_ranks;

/// The numbers in a sum. cuBLAS may compute a small product without its units for TF32 although they are
/// permitted.
const SUM: usize = 512;

/// The results of an operation on two factors, and of its backward pass, on this device.
fn values(
    device: &Device,
    factors: [&Tensor; 2],
    f: impl Fn(&Tensor, &Tensor) -> Tensor,
) -> [Vec<f32>; 3] {
    let [xs, weight] =
        factors.map(|factor| Var::from_tensor(&factor.to_device(device).unwrap()).unwrap());
    let ys = f(&xs, &weight);
    let gradients = ys.sum_all().unwrap().backward().unwrap();
    [&ys, gradients.get(&xs).unwrap(), gradients.get(&weight).unwrap()]
        .map(|tensor| tensor.flatten_all().unwrap().to_vec1().unwrap())
}

/// The largest differences between the device's numbers and the CPU's.
fn differences(
    device: &Device,
    factors: [&Tensor; 2],
    f: impl Fn(&Tensor, &Tensor) -> Tensor,
) -> [f32; 3] {
    let (here, exact) = (values(device, factors, &f), values(&Device::Cpu, factors, &f));
    [0, 1, 2].map(|i| {
        let pairs = here[i].iter().zip(&exact[i]);
        pairs.map(|(y, exact)| (y - exact).abs()).fold(0.0, f32::max)
    })
}

/// The largest errors on the device: of a product by cuBLAS, of one with a bias by cuBLASLt, of a convolution by
/// cuDNN, and of their gradients.
fn errors(device: &Device) -> Vec<f32> {
    let noise = |shape: &[usize], seed| uniform(shape, seed, -1.0, 1.0, DType::F32).unwrap();
    // The results are as large as those of sums of 64 numbers, and so are the errors.
    let small = |tensor: Tensor| (tensor * (64.0 / SUM as f64).sqrt()).unwrap();
    let (xs, weight) = (noise(&[SUM, SUM], 1), small(noise(&[SUM, SUM], 2)));
    let bias = noise(&[SUM], 3);
    let product = |bias: Option<&Tensor>| {
        differences(device, [&xs, &weight], |xs, weight| {
            let bias = bias.map(|bias| bias.to_device(xs.device()).unwrap());
            ops::linear(xs, weight, bias.as_ref(), None).unwrap()
        })
    };
    let images = noise(&[2, SUM / 8, 16, 16], 4);
    let filters = small(noise(&[SUM / 8, SUM / 8, 3, 3], 5));
    let convolution = differences(device, [&images, &filters], |images, filters| {
        let config = Conv2dConfig { padding: (1, 1), ..Conv2dConfig::default() };
        ops::conv2d(images, filters, None, config, None).unwrap()
    });
    [product(None), product(Some(&bias)), convolution].concat()
}

/// Sums of 512 products in f32, below 16: each rounding is up to 2^-21, and 512 random ones are about
/// sqrt(512) 2^-21 = 1e-5 together. cuDNN's transformed convolutions (Winograd's, by FFT) add the terms with
/// factors, and their errors are some ten times as large: 1.7e-4 on an H200.
const LARGEST_IN_F32: f32 = 5e-4;

/// TF32 rounds each factor by up to 2^-11 of it, which makes about 1e-3.
const LARGEST_IN_TF32: f32 = 5e-2;

#[track_caller]
fn assert_exact(device: &Device) -> Vec<f32> {
    let errors = errors(device);
    assert!(errors.iter().all(|&error| error < LARGEST_IN_F32), "{errors:?}");
    errors
}

/// `exact` are the errors in f32.
#[track_caller]
fn assert_rounded(device: &Device, exact: &[f32]) {
    let errors = errors(device);
    let is_rounded = |(error, exact): (&f32, &f32)| (4.0 * exact..LARGEST_IN_TF32).contains(error);
    // The last one is the gradient of a convolution's weight: cuDNN may advise an algorithm without TF32 for it.
    let last = errors.len() - 1;
    let all_but_the_last = errors.iter().zip(exact).take(last).all(is_rounded);
    assert!(all_but_the_last && errors[last] < LARGEST_IN_TF32, "{errors:?}, in f32 {exact:?}");
}

/// In a process of its own, because the switch is the process's.
#[test]
fn products_are_rounded_where_candles_switch_says_so() {
    let Some(world) = on_ranks(products_are_rounded_where_candles_switch_says_so, &[1]) else {
        return;
    };
    let exact = assert_exact(world.device());
    set_gemm_reduced_precision_f32(true);
    assert_rounded(world.device(), &exact);
    // A program that does not ask for a precision keeps what it has set itself.
    drop(Precision::F32.params(0, world.device()));
    assert!(gemm_reduced_precision_f32());
}

/// As above.
#[test]
fn products_and_convolutions_are_rounded_where_the_option_says_so() {
    let Some(world) =
        on_ranks(products_and_convolutions_are_rounded_where_the_option_says_so, &[1])
    else {
        return;
    };
    let device = world.device();
    let exact = assert_exact(device);
    let params = Precision::Tf32.params(0, device);
    assert_eq!((params.dtype(), product_precision()), (DType::F32, ProductPrecision::Tf32));
    assert_eq!(Precision::Tf32.describe(device), "f32 with products in tf32");
    Precision::Tf32.check(device).unwrap();
    assert_rounded(device, &exact);
    drop(Precision::F32.params(0, device));
    assert_exact(device);
    assert!(!gemm_reduced_precision_f32());
}
