//! cuBLASLt's products with their epilogues, in every type, against sums in f64.

use candle_core::cuda_backend::cudarc::cublaslt::{Activation, CudaBlasLT, Matmul, MatmulConfig};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaView, DeviceRepr};
use half::{bf16, f16};

use crate::child;

/// A number type of products.
trait Number: DeviceRepr + Copy {
    const TOLERANCE: f64;
    fn rounded(x: f64) -> Self;
    fn value(self) -> f64;
}

macro_rules! number {
    ($type:ty, $tolerance:literal, $from:expr, $into:expr) => {
        impl Number for $type {
            const TOLERANCE: f64 = $tolerance;
            fn rounded(x: f64) -> Self {
                $from(x)
            }
            fn value(self) -> f64 {
                $into(self)
            }
        }
    };
}
// cudarc asks for TF32.
number!(f32, 3e-3, |x| x as f32, f64::from);
number!(f16, 1e-3, f16::from_f64, f16::to_f64);
number!(bf16, 8e-3, bf16::from_f64, bf16::to_f64);

fn numbers<T: Number>(count: usize, seed: usize) -> Vec<T> {
    let number = |i: usize| ((i + seed) * 7919 % 2003) as f64 / 1001.5 - 1.0;
    (0..count).map(number).map(T::rounded).collect()
}

/// The product of an (m, k) and a (k, n) matrix, column by column.
fn config(m: usize, n: usize, k: usize, transa: bool, transb: bool) -> MatmulConfig {
    MatmulConfig {
        transa,
        transb,
        transc: false,
        m: m as u64,
        n: n as u64,
        k: k as u64,
        alpha: 1.0,
        lda: if transa { k } else { m } as i64,
        ldb: if transb { n } else { k } as i64,
        beta: 0.0,
        ldc: m as i64,
        stride_a: None,
        stride_b: None,
        stride_c: None,
        stride_bias: None,
        batch_size: None,
    }
}

fn every_epilogue<T: Number>()
where
    CudaBlasLT: Matmul<T>,
{
    let stream = CudaContext::new(0).expect("the software GPU").new_stream().unwrap();
    let blas = CudaBlasLT::new(stream.clone()).unwrap();
    let at = |i: usize, j: usize, rows: usize, columns: usize, turned: bool| {
        if turned { j + i * columns } else { i + j * rows }
    };
    for (m, n, k) in [(1, 1, 1), (5, 3, 7), (16, 33, 20)] {
        for (transa, transb) in [(false, false), (true, false), (false, true), (true, true)] {
            let (a, b) = (numbers::<T>(m * k, 1), numbers::<T>(k * n, 2));
            let bias = numbers::<T>(m, 3);
            let [on_a, on_b, on_bias] = [&a, &b, &bias].map(|x| stream.clone_htod(x).unwrap());
            for (with_bias, activation) in [
                (false, None),
                (true, None),
                (false, Some(Activation::Relu)),
                (true, Some(Activation::Relu)),
                (false, Some(Activation::Gelu)),
                (true, Some(Activation::Gelu)),
            ] {
                let mut c = stream.clone_htod(&numbers::<T>(m * n, 4)).unwrap();
                let config = config(m, n, k, transa, transb);
                let on_bias = with_bias.then_some(&on_bias);
                // SAFETY: the slices have the lengths of the configuration.
                unsafe { blas.matmul(config, &on_a, &on_b, &mut c, on_bias, activation.as_ref()) }
                    .unwrap();
                let c = stream.clone_dtoh(&c).unwrap();
                for j in 0..n {
                    for i in 0..m {
                        let term = |l| {
                            let a = a[at(i, l, m, k, transa)];
                            a.value() * b[at(l, j, k, n, transb)].value()
                        };
                        let sum: f64 = (0..k).map(term).sum();
                        let x = if with_bias { sum + bias[i].value() } else { sum };
                        let inner =
                            (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                        let expected = match activation {
                            None => x,
                            Some(Activation::Relu) => x.max(0.0),
                            Some(Activation::Gelu) => 0.5 * x * (1.0 + inner.tanh()),
                        };
                        let y = c[i + j * m].value();
                        let error = (y - expected).abs() / (1.0 + expected.abs());
                        let case = format!("{m} x {n} x {k} {transa} {transb} {with_bias}");
                        let close = error < T::TOLERANCE;
                        assert!(close, "{case} {activation:?} ({i}, {j}): {y}, not {expected}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_epilogue_agrees_in_f32() {
    every_epilogue::<f32>();
}

#[test]
fn every_epilogue_agrees_in_f16() {
    every_epilogue::<f16>();
}

#[test]
fn every_epilogue_agrees_in_bf16() {
    every_epilogue::<bf16>();
}

/// Prints the results of products with a matrix or a bias that is too short, and with an address that
/// is not aligned as it was promised.
fn mistakes() {
    let stream = CudaContext::new(0).expect("the software GPU").new_stream().unwrap();
    let blas = CudaBlasLT::new(stream.clone()).unwrap();
    let memory = |count: usize| stream.clone_htod(&vec![1f32; count]).unwrap();
    let [a, b, bias] = [12, 20, 3].map(memory);
    let result = |a: CudaView<'_, f32>, b: CudaView<'_, f32>, bias: CudaView<'_, f32>, len| {
        let mut c = memory(len);
        // SAFETY: the software GPU finds what is wrong.
        let done = unsafe {
            blas.matmul(
                config(3, 5, 4, false, false),
                &a,
                &b,
                &mut c.slice_mut(..),
                Some(&bias),
                None,
            )
        };
        done.is_ok()
    };
    let short = memory(11);
    println!("right: {}", result(a.slice(..), b.slice(..), bias.slice(..), 15));
    println!("matrix: {}", result(short.slice(..), b.slice(..), bias.slice(..), 15));
    println!("result: {}", result(a.slice(..), b.slice(..), bias.slice(..), 14));
    println!("bias: {}", result(a.slice(..), b.slice(..), bias.slice(1..), 15));
    let shifted = memory(13);
    println!("address: {}", result(shifted.slice(1..), b.slice(..), bias.slice(..), 15));
}

#[test]
fn a_product_outside_of_its_memory_is_an_error() {
    if child::is_child() {
        return mistakes();
    }
    let name = "products::a_product_outside_of_its_memory_is_an_error";
    let ended = child::run(name, &[]);
    assert!(ended.status.success(), "{}", ended.output);
    for expected in [
        "right: true",
        "matrix: false",
        "result: false",
        "bias: false",
        "address: false",
        "cublasLtMatmul reads outside of an allocation",
        "cublasLtMatmul writes outside of an allocation",
        "cublasLtMatmul: an address is not aligned as its algorithm needs it",
    ] {
        assert!(ended.output.contains(expected), "{expected}: {}", ended.output);
    }
}
