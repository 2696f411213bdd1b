//! In which precision products of f32 numbers are computed on the CPU.

use std::sync::atomic::{AtomicBool, Ordering};

use super::float::Float;
use super::gemm::bf16::Instructions;

/// How the CPU multiplies f32 numbers in matrix products and convolutions. Sums are f32 in any case.
///
/// # Precision
///
/// `Bf16` rounds each factor to the 8 significant bits of bf16 (to nearest, ties to even; a subnormal
/// number becomes 0, and one above 3.39e38 infinite), so a factor has a relative error of up to 2⁻⁹.
/// Infinities and NaN are kept. Subnormal sums become 0. All that is not a product of two tensors stays f32: parameters, activations, sums,
/// normalisations, losses and updates. This is what PyTorch computes after
/// `torch.set_float32_matmul_precision("medium")`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProductPrecision {
    /// Factors keep their 24 bits.
    #[default]
    F32,
    /// Factors are rounded to bf16, where the processor has [instructions](bf16_instructions) for it.
    /// Elsewhere products stay f32.
    Bf16,
}

static BF16: AtomicBool = AtomicBool::new(false);

/// Sets the precision of the products of f32 numbers on the CPU, for all threads of this process.
///
/// It counts for the operations of [`ops`](crate::ops) from now on, backward passes included. Products
/// of f64 numbers and on a GPU, the products with the hidden state in recurrent layers, depthwise
/// convolutions and candle's own operations are not affected.
///
/// # Cost
///
/// A product of few rows or columns is not worth the rounding and stays f32 (docs/kernels.md).
pub fn set_product_precision(precision: ProductPrecision) {
    BF16.store(precision == ProductPrecision::Bf16, Ordering::Relaxed);
}

/// The precision that was [set](set_product_precision).
pub fn product_precision() -> ProductPrecision {
    if BF16.load(Ordering::Relaxed) { ProductPrecision::Bf16 } else { ProductPrecision::F32 }
}

/// The name of the instructions by which this processor multiplies in bf16: `AVX512-BF16`. `None` if it
/// has none that this crate uses, so that products are f32 in any case.
pub fn bf16_instructions() -> Option<&'static str> {
    Instructions::detect().map(|_| Instructions::NAME)
}

/// The instructions for products of numbers of this type in bf16, if they are to be used.
pub(super) fn bf16<T: Float>() -> Option<Instructions> {
    let asked = BF16.load(Ordering::Relaxed) && T::f32s(&[]).is_some();
    if asked { Instructions::detect() } else { None }
}
