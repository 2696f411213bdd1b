//! The fully connected layer on a GPU: products with a bias and an activation have the numbers of the CPU, also
//! where cuBLASLt does not add the bias.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use candelabrum::candle::Var;
use candelabrum::memory::cuda::{CudaMatrix, CudaNumbers, CudaSpan, Gpu};
use candelabrum::nn::{Activation, ops};
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::{RanksOf, is_rank};
use candelabrum_testkit::{assert_close, uniform};

use crate::device::gpu;
use crate::events;
use crate::memory::on;

const ACTIVATIONS: [Option<Activation>; 5] = [
    None,
    Some(Activation::Relu),
    Some(Activation::GeluTanh),
    Some(Activation::Gelu),
    Some(Activation::Tanh),
];

const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Rows, inputs and outputs.
const SIZES: [(usize, usize, usize); 8] = [
    (0, 3, 4),
    (1, 1, 1),
    (1, 5, 8),
    (3, 0, 2),
    (5, 4, 16),
    (7, 13, 5),
    (33, 100, 24),
    (64, 50, 10),
];

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i + seed) * 7919 % 2003) as f32 / 1001.5 - 1.0).collect()
}

fn assert_all_close(actual: &[f32], expected: &[f64], case: &str) {
    assert_eq!(actual.len(), expected.len(), "{case}");
    for (i, (y, expected)) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(*y) - expected).abs() / (1.0 + expected.abs());
        assert!(error < 1e-5, "{case}: element {i} is {y}, not {expected}");
    }
}

/// Numbers of a span.
fn read(span: CudaSpan<'_>) -> Vec<f32> {
    let mut numbers = vec![0.0; span.len()];
    span.download(&mut numbers).unwrap();
    numbers
}

/// The matrices, the bias and the result begin at number `offset` of their memory. Returns whether
/// cuBLASLt computed the product.
fn check(
    device: &Device,
    (rows, inner, columns): (usize, usize, usize),
    [turned_a, turned_b]: [bool; 2],
    offset: usize,
) -> bool {
    let case = format!("{rows} x {inner} x {columns}, {turned_a} {turned_b}, offset {offset}");
    let gpu = Gpu::from_device(device).unwrap();
    let (a, b) = (numbers(rows * inner + offset, 1), numbers(inner * columns + offset, 2));
    let bias = numbers(columns + offset, 3);
    let at = |i: usize, j: usize, rows: usize, columns: usize, turned: bool| {
        offset + if turned { j * rows + i } else { i * columns + j }
    };
    let number = |i: usize, j: usize| {
        let term = |l| {
            let a = a[at(i, l, rows, inner, turned_a)];
            f64::from(a) * f64::from(b[at(l, j, inner, columns, turned_b)])
        };
        let sum: f64 = (0..inner).map(term).sum();
        sum + f64::from(bias[offset + j])
    };
    let expected: Vec<f64> =
        (0..rows * columns).map(|i| number(i / columns, i % columns)).collect();
    let size = |(rows, columns), turned| if turned { (columns, rows) } else { (rows, columns) };

    let memory = [on(device, &a), on(device, &b), on(device, &bias)];
    let [a, b, bias] = memory.each_ref().map(|flat| {
        let span = flat.span().unwrap().cuda().unwrap();
        CudaNumbers::from(span.range(offset..span.len()))
    });
    let a = CudaMatrix { values: a, size: size((rows, inner), turned_a), transposed: turned_a };
    let b = CudaMatrix { values: b, size: size((inner, columns), turned_b), transposed: turned_b };
    let mut out = gpu.numbers(rows * columns + offset).unwrap();
    let results = offset..offset + rows * columns;
    let ys = out.span_mut().unwrap().cuda().unwrap().range(results.clone());
    let done = gpu.affine(ys.into(), a, b, bias).unwrap();
    if done {
        let ys = read(out.span().unwrap().cuda().unwrap().range(results));
        assert_all_close(&ys, &expected, &case);
    }
    done
}

pub(crate) fn is_software_gpu() -> bool {
    std::env::var_os("SOFTGPU_HOME").is_some()
}

#[test]
fn every_product_gets_its_bias() {
    let Some(device) = gpu() else { return };
    let mut computed = 0;
    for size in SIZES {
        for turned in [[false, false], [true, false], [false, true], [true, true]] {
            for offset in [0, 1, 2, 4] {
                let done = check(&device, size, turned, offset);
                computed += usize::from(done);
                let expected = size.0 == 0 || size.1 > 0;
                // Nobody knows which products a real cuBLASLt leaves out.
                assert!(done == expected || !is_software_gpu(), "{size:?} {offset}: {done}");
            }
        }
    }
    assert!(computed > 0, "cuBLASLt computed nothing");
}

/// The result of a layer and its gradients.
fn pass(
    device: &Device,
    (rows, inputs, outputs): (usize, usize, usize),
    with_bias: bool,
    activation: Option<Activation>,
) -> Vec<Tensor> {
    let random = |shape: &[usize], seed| {
        uniform(shape, seed, -1.0, 1.0, DType::F32).unwrap().to_device(device).unwrap()
    };
    let var = |shape: &[usize], seed| Var::from_tensor(&random(shape, seed)).unwrap();
    let (xs, weight) = (var(&[rows, inputs], 1), var(&[outputs, inputs], 2));
    let bias = var(&[outputs], 3);
    let bias = with_bias.then_some(&bias);
    let ys = ops::linear(&xs, &weight, bias.map(Var::as_tensor), activation).unwrap();
    let grads = (&ys * random(&[rows, outputs], 4)).unwrap().sum_all().unwrap().backward().unwrap();
    let mut all = vec![ys.detach()];
    all.extend(
        [Some(&xs), Some(&weight), bias]
            .into_iter()
            .flatten()
            .map(|var| grads.get(var).expect("every input has a gradient").clone()),
    );
    all
}

#[test]
fn layers_and_their_gradients_are_those_of_the_cpu() {
    let Some(device) = gpu() else { return };
    if is_rank() {
        events::print();
    }
    for size in SIZES {
        for with_bias in [false, true] {
            for activation in ACTIVATIONS {
                let on_gpu = pass(&device, size, with_bias, activation);
                let on_cpu = pass(&Device::Cpu, size, with_bias, activation);
                for (on_gpu, on_cpu) in on_gpu.iter().zip(&on_cpu) {
                    assert_close(&on_gpu.to_device(&Device::Cpu).unwrap(), on_cpu, 1e-5, 1e-5);
                }
            }
        }
    }
}

/// A sum that is not a number must reach the loss, which says so.
#[test]
fn relu_keeps_what_is_no_number() {
    let Some(device) = gpu() else { return };
    let mut xs = numbers(4 * 16, 1);
    xs[16 + 5] = f32::NAN;
    let xs = Tensor::from_vec(xs, (4, 16), &device).unwrap();
    let weight = Tensor::from_vec(numbers(24 * 16, 2), (24, 16), &device).unwrap();
    let bias = Tensor::from_vec(numbers(24, 3), 24, &device).unwrap();
    for bias in [None, Some(&bias)] {
        let ys = ops::linear(&xs, &weight, bias, Some(Activation::Relu)).unwrap();
        for (row, ys) in ys.to_vec2::<f32>().unwrap().iter().enumerate() {
            assert!(ys.iter().all(|y| y.is_nan() == (row == 1)), "row {row}: {ys:?}");
        }
    }
}

/// Runs [`layers_and_their_gradients_are_those_of_the_cpu`] on the software GPU, and returns what it traced.
fn traced(name: &str, value: impl ToString) -> Option<String> {
    gpu().filter(|_| is_software_gpu())?;
    let rank = RanksOf::new(layers_and_their_gradients_are_those_of_the_cpu).env(name, value);
    Some(rank.env("SOFTGPU_TRACE", 1).run_all_good(1).remove(0).text)
}

#[test]
fn without_an_algorithm_layers_are_the_same() {
    let Some(text) = traced("SOFTGPU_NO_ALGORITHM", 1) else { return };
    assert!(!text.lines().any(|line| line.starts_with("WARN ")), "{text}");
    assert!(!text.contains("softgpu: cublasLtMatmul "), "{text}");
    assert!(text.contains("softgpu: launch activate "), "{text}");
}

#[test]
fn without_the_library_layers_are_the_same() {
    let Some(home) = std::env::var_os("SOFTGPU_HOME").map(PathBuf::from) else { return };
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(home.join("run")).unwrap() {
        let file = file.unwrap();
        if !file.file_name().to_string_lossy().starts_with("libcublasLt") {
            symlink(file.path(), folder.path().join(file.file_name())).unwrap();
        }
    }
    let Some(text) = traced("LD_LIBRARY_PATH", folder.path().display()) else { return };
    let warnings: Vec<&str> = text.lines().filter(|line| line.starts_with("WARN ")).collect();
    assert!(matches!(warnings[..], [one] if one.contains("libcublasLt.so.13")), "{warnings:?}");
    assert!(!text.contains("softgpu: cublasLtMatmul "), "{text}");
    assert!(text.contains("softgpu: launch activate "), "{text}");
}

#[test]
fn a_layer_is_one_product_and_at_most_one_kernel() {
    let Some(device) = gpu().filter(|_| is_software_gpu()) else { return };
    if is_rank() {
        for dtype in TYPES {
            for activation in ACTIVATIONS {
                let [xs, weight, bias] = [&[4, 6][..], &[16, 6], &[16]].map(|shape| {
                    let tensor = uniform(shape, 1, -1.0, 1.0, dtype).unwrap();
                    tensor.to_device(&device).unwrap()
                });
                eprintln!("begin {dtype:?} {activation:?}");
                ops::linear(&xs, &weight, Some(&bias), activation).unwrap();
                eprintln!("end");
            }
        }
        return;
    }
    let rank = RanksOf::new(a_layer_is_one_product_and_at_most_one_kernel).env("SOFTGPU_TRACE", 1);
    let text = rank.run_all_good(1).remove(0).text;
    for dtype in TYPES {
        for (activation, expected) in ACTIVATIONS.iter().zip([
            // cuBLASLt's calls, cuBLAS's calls, kernels
            [1, 0, 0],
            [0, 1, 1],
            [1, 0, 1],
            [1, 0, 1],
            [0, 1, 1],
        ]) {
            let begin = format!("begin {dtype:?} {activation:?}\n");
            let (_, rest) = text.split_once(&begin).unwrap();
            let (layer, _) = rest.split_once("end\n").unwrap();
            let counts = ["cublasLtMatmul", "gemm", "launch"]
                .map(|call| layer.matches(&format!("softgpu: {call} ")).count());
            assert_eq!(counts, expected, "{dtype:?} {activation:?}: {layer}");
        }
    }
}
