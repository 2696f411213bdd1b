//! Products by cuBLASLt that end with a bias and an activation: whether there is an algorithm, how exact
//! it is, and what its ReLU does with NaN. The answers decide which activations the library may leave to
//! cuBLASLt.

use anyhow::{Result, ensure};
use candelabrum_memory::ElementType;
use candle_core::WithDType;
use cudarc::cublaslt::sys::cublasStatus_t;
use cudarc::cublaslt::{Activation, CudaBlasLT, Matmul, MatmulConfig};
use cudarc::driver::{CudaSlice, DeviceRepr, ValidAsZeroBits};
use half::{bf16, f16};
use serde_json::json;

use crate::numbers::{bound, distance, drawn};
use crate::probe::{Probe, say};
use crate::products::reference;

/// Rows, inner size and columns.
const SIZE: (usize, usize, usize) = (64, 100, 48);

const FUNCTIONS: [Option<Activation>; 3] = [None, Some(Activation::Relu), Some(Activation::Gelu)];

/// The function in f64; GELU by its approximation with tanh.
fn applied(function: Option<&Activation>, x: f64) -> f64 {
    match function {
        None => x,
        // Unlike `max`, it keeps a NaN.
        Some(Activation::Relu) => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Some(Activation::Gelu) => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

/// Every epilogue in one type. In f32 the product itself is rounded to TF32, so the activation is also
/// compared with the one of the numbers that cuBLASLt gives without it.
pub(crate) fn all(probe: &Probe, element: ElementType) -> Result<bool> {
    match element {
        ElementType::F16 => every::<f16>(probe, element),
        ElementType::Bf16 => every::<bf16>(probe, element),
        _ => every::<f32>(probe, element),
    }
}

/// The product with a bias; nothing if there is no algorithm.
pub(crate) fn linear(probe: &Probe, blas: &CudaBlasLT, element: ElementType) -> Result<Vec<f32>> {
    let [a, b, bias] = operands(element);
    let operands = (&*a, &*b, Some(&*bias));
    let got = match element {
        ElementType::F16 => run::<f16>(probe, blas, operands, None),
        ElementType::Bf16 => run::<bf16>(probe, blas, operands, None),
        _ => run::<f32>(probe, blas, operands, None),
    };
    Ok(got?.unwrap_or_default())
}

/// The factors and the bias.
fn operands(element: ElementType) -> [Vec<f32>; 3] {
    let (rows, inner, columns) = SIZE;
    [
        drawn(element, rows * inner, 1),
        drawn(element, inner * columns, 2),
        drawn(element, columns, 3),
    ]
}

fn every<T: WithDType + DeviceRepr + ValidAsZeroBits>(
    probe: &Probe,
    element: ElementType,
) -> Result<bool>
where
    CudaBlasLT: Matmul<T>,
{
    let (_, inner, columns) = SIZE;
    let blas = CudaBlasLT::new(probe.stream.clone())?;
    let [a, b, bias] = operands(element);
    let sums = reference(&a, &b, SIZE);
    let mut good = true;
    for with_bias in [false, true] {
        let bias = with_bias.then_some(&*bias);
        let mut plain: Option<Vec<f32>> = None;
        for function in &FUNCTIONS {
            let name = format!("{function:?}");
            let got = run::<T>(probe, &blas, (&a, &b, bias), function.as_ref())?;
            let Some(got) = got else {
                say(&json!({"function": name, "bias": with_bias, "algorithm": false}));
                continue;
            };
            let added = |at: usize| bias.map_or(0.0, |bias| f64::from(bias[at % columns]));
            let expected: Vec<f64> = sums
                .iter()
                .enumerate()
                .map(|(at, x)| applied(function.as_ref(), x + added(at)))
                .collect();
            let (apart, largest) = distance(&got, &expected);
            if function.is_none() {
                plain = Some(got.clone());
            }
            // As the tests compare: the largest difference as a part of 1 + |x|.
            let of_activation = plain.as_ref().map(|plain| {
                let errors = got.iter().zip(plain).map(|(&y, &x)| {
                    let expected = applied(function.as_ref(), f64::from(x));
                    (f64::from(y) - expected).abs() / (1.0 + expected.abs())
                });
                errors.fold(0.0, f64::max)
            });
            let is_right = apart <= bound(element, true);
            say(&json!({
                "function": name, "bias": with_bias, "algorithm": true, "distance": apart,
                "largest": largest, "error_of_activation": of_activation,
                "right": is_right,
            }));
            // The library leaves no function to cuBLASLt: what these are like is for the record.
            good &= is_right || function.is_some();
        }
    }
    // A row of the first factor has a NaN, so the whole row of the result must be NaN.
    let mut with_nan = a.clone();
    with_nan[inner + 1] = f32::NAN;
    let got = run::<T>(probe, &blas, (&with_nan, &b, None), Some(&Activation::Relu))?;
    if let Some(got) = got {
        let kept = got[columns..2 * columns].iter().filter(|x| x.is_nan()).count();
        say(&json!({"relu_of_nan": {"kept": kept, "of": columns}}));
    }
    Ok(good)
}

/// The product with its epilogue. `None` if cuBLASLt has no algorithm.
fn run<T: WithDType + DeviceRepr + ValidAsZeroBits>(
    probe: &Probe,
    blas: &CudaBlasLT,
    (a, b, bias): (&[f32], &[f32], Option<&[f32]>),
    function: Option<&Activation>,
) -> Result<Option<Vec<f32>>>
where
    CudaBlasLT: Matmul<T>,
{
    let (rows, inner, columns) = SIZE;
    ensure!(a.len() == rows * inner && b.len() == inner * columns, "the sizes of a product");
    let upload = |values: &[f32]| -> Result<CudaSlice<T>> {
        let values: Vec<T> = values.iter().map(|&x| T::from_f64(f64::from(x))).collect();
        Ok(probe.stream.clone_htod(&values)?)
    };
    let (a, b, bias) = (upload(a)?, upload(b)?, bias.map(upload).transpose()?);
    let mut out = probe.stream.alloc_zeros::<T>(rows * columns)?;
    // cuBLASLt has columns one after the other, so it computes the transposed product.
    let config = MatmulConfig {
        transa: false,
        transb: false,
        transc: false,
        m: columns as u64,
        n: rows as u64,
        k: inner as u64,
        alpha: 1.0,
        lda: columns as i64,
        ldb: inner as i64,
        beta: 0.0,
        ldc: columns as i64,
        stride_a: None,
        stride_b: None,
        stride_c: None,
        stride_bias: None,
        batch_size: None,
    };
    // SAFETY: the slices have the lengths of the configuration.
    let done = unsafe { blas.matmul(config, &b, &a, &mut out, bias.as_ref(), function) };
    match done {
        Err(error) if error.0 == cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED => Ok(None),
        Err(error) => Err(error.into()),
        Ok(()) => {
            let values = probe.stream.clone_dtoh(&out)?;
            Ok(Some(values.into_iter().map(|x| x.to_f64() as f32).collect()))
        }
    }
}
