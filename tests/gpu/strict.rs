//! A convolution whose result is not at a multiple of 16 bytes, on the software GPU with
//! `SOFTGPU_STRICT`: an error, after which the device is as after a kernel with a misaligned address.

use candelabrum::memory::Convolution;
use candelabrum::memory::cuda::Gpu;
use candelabrum_testkit::ranks::{RanksOf, is_rank};

use crate::device::gpu;
use crate::linear::is_software_gpu;

const SIZES: Convolution = Convolution {
    batch: 1,
    in_channels: 1,
    out_channels: 2,
    groups: 1,
    in_size: (4, 4),
    out_size: (2, 2),
    kernel: (3, 3),
    stride: (1, 1),
    padding: (0, 0),
    dilation: (1, 1),
};

/// Prints the results with the gradient of the weight at the beginning of memory and after 4 bytes.
#[test]
fn convolutions_main() {
    if !is_rank() {
        return;
    }
    let gpu = Gpu::of(&gpu().unwrap()).unwrap();
    let numbers = |len| {
        let mut numbers = gpu.numbers(len).unwrap();
        numbers.span_mut().unwrap().fill(1.0).unwrap();
        numbers
    };
    let (xs, dys) = (numbers(SIZES.input_len()), numbers(SIZES.output_len()));
    let mut room = numbers(SIZES.weight_len() + 1);
    for first in [0, 1] {
        let xs = xs.span().unwrap().cuda().unwrap();
        let dys = dys.span().unwrap().cuda().unwrap();
        let dweight = room.span_mut().unwrap().cuda().unwrap();
        let dweight = dweight.range(first..first + SIZES.weight_len());
        let result = gpu.convolve_back_to_weight(&SIZES, dweight.into(), xs.into(), dys.into());
        eprintln!("from {first}: {:?}", result.is_ok());
    }
    eprintln!("later: {:?}", gpu.numbers(1).map(drop));
}

#[test]
fn a_convolution_into_a_misaligned_address_is_an_error_that_stays() {
    if gpu().filter(|_| is_software_gpu()).is_none() {
        return;
    }
    let rank = RanksOf::test("strict::convolutions_main").env("SOFTGPU_STRICT", 1);
    let text = rank.run_all_good(1).remove(0).text;
    for expected in [
        "from 0: true",
        "from 1: false",
        "cudnnConvolutionBackwardFilter: the address of the result is 4 modulo 16",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}
