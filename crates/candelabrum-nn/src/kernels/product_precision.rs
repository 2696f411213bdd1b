//! In which precision products of f32 numbers are computed.

use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::cuda::set_gemm_reduced_precision_f32;

use super::float::Float;
use super::gemm::bf16::InstructionSet;

/// How f32 numbers are multiplied in matrix products and convolutions. Sums are f32 in any case.
///
/// # Precision
///
/// `Bf16` rounds each factor to the 8 significant bits of bf16 (to nearest, ties to even; a subnormal
/// number becomes 0, and one above 3.39e38 infinite), so a factor has a relative error of up to 2⁻⁹.
/// Infinities and NaN are kept. Subnormal sums become 0. All that is not a product of two tensors stays f32: parameters, activations, sums,
/// normalisations, losses and updates. This is what PyTorch computes after
/// `torch.set_float32_matmul_precision("medium")`.
///
/// `Tf32` lets a GPU shorten each factor to the 11 significant bits of TF32, which has the exponents of f32, so a
/// factor has a relative error of less than 2⁻¹⁰. The rest stays f32, as above. cuBLAS and cuDNN decide for each product whether
/// they do so: a GPU of compute capability below 8.0 does not, and small products may stay f32. This is what PyTorch
/// computes after `torch.set_float32_matmul_precision("high")` with its convolutions in TF32, their default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProductPrecision {
    /// Factors keep their 24 bits.
    #[default]
    F32,
    /// On the CPU, factors are rounded to bf16, with [instructions](bf16_instructions) for products in bf16 or
    /// with those of f32. On a GPU, products of f32 numbers stay f32.
    Bf16,
    /// On a GPU, factors are rounded to TF32. On the CPU products stay f32.
    Tf32,
}

static BF16: AtomicBool = AtomicBool::new(false);
static TF32: AtomicBool = AtomicBool::new(false);

/// Sets the precision of the products of f32 numbers, for all threads of this process.
///
/// It counts for the operations of [`ops`](crate::ops) from now on, backward passes included. Steps that were
/// recorded as CUDA graphs keep their precision.
///
/// [`Bf16`](ProductPrecision::Bf16) counts on the CPU alone, and there not for products of f64 numbers, depthwise
/// convolutions and candle's own operations.
///
/// [`Tf32`](ProductPrecision::Tf32) counts on GPUs alone, and there for candle's own matrix products too, because it
/// turns on `candle_core::cuda::set_gemm_reduced_precision_f32`. Another precision after `Tf32` turns that switch
/// off. A program that turns it on itself gets TF32 as well.
///
/// # Cost
///
/// A product of few rows or columns is not worth the rounding and stays f32 (docs/log/2026-11-23-bf16.md), but for those
/// with the hidden state in recurrent layers. Where the processor has no instructions, a step takes 1.1 to 1.5 times as
/// long as in f32 (docs/log/2026-11-29-amx.md).
pub fn set_product_precision(precision: ProductPrecision) {
    BF16.store(precision == ProductPrecision::Bf16, Ordering::Relaxed);
    let tf32 = precision == ProductPrecision::Tf32;
    if TF32.swap(tf32, Ordering::Relaxed) || tf32 {
        set_gemm_reduced_precision_f32(tf32);
    }
}

/// The precision that was [set](set_product_precision).
pub fn product_precision() -> ProductPrecision {
    match (BF16.load(Ordering::Relaxed), TF32.load(Ordering::Relaxed)) {
        (true, _) => ProductPrecision::Bf16,
        (false, true) => ProductPrecision::Tf32,
        (false, false) => ProductPrecision::F32,
    }
}

/// The name of the instructions by which this process multiplies in bf16: `AMX`, if the operating system lets the process
/// use it, or `AVX512-BF16`. `None` if the processor has none that are faster than those of f32, which then multiply the
/// rounded factors.
///
/// The instructions decide in which order products are summed, so the bits of results differ from processor to processor.
pub fn bf16_instructions() -> Option<&'static str> {
    InstructionSet::detect().name()
}

/// The instructions for products of numbers of this type in bf16, if they are to be used.
pub(crate) fn bf16<T: Float>() -> Option<InstructionSet> {
    let asked = BF16.load(Ordering::Relaxed) && T::f32s(&[]).is_some();
    asked.then(InstructionSet::detect)
}
