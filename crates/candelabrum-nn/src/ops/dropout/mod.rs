//! Inverted dropout whose mask is a pure function of the seed.
//!
//! Element `i` is kept and scaled by `1 / (1 - p)` if the `i`-th number of a counter-based
//! generator (SplitMix64: Steele, Lea and Flood 2014) is at least `p`. The backward computes the
//! same mask again, so no mask is stored, and the result does not depend on threads.

mod gpu;

use candle_core::{Result, Tensor, bail};

use crate::autograd::fused::{self, Backward, FusedOp, GpuKernels};
use crate::kernels::float::Float;
use crate::kernels::parallel::in_blocks;
use crate::kernels::scratch::Pooled;
use candelabrum_memory::hash::{GOLDEN, mix};
use candelabrum_memory::simd::simd;

const NAME: &str = "dropout";

/// Sets each element to 0 with probability `p` and scales the other elements by `1 / (1 - p)`.
///
/// Equal seeds give equal masks: use a new seed for every call.
///
/// # Errors
///
/// If `p` lies outside of `[0, 1)`, or the dtype is no float.
pub fn dropout(xs: &Tensor, p: f32, seed: u64) -> Result<Tensor> {
    if !(0.0..1.0).contains(&p) {
        bail!("{NAME}: probability {p} outside of [0, 1)");
    }
    fused::run(DropoutOp { p, seed }, xs.shape(), &[Some(xs)])
}

struct DropoutOp {
    p: f32,
    seed: u64,
}

impl DropoutOp {
    /// The factor of the kept elements.
    fn scale(&self) -> f64 {
        1.0 / (1.0 - f64::from(self.p))
    }

    /// The start of the sequence of numbers.
    fn key(&self) -> u64 {
        mix(self.seed)
    }

    /// The threshold for the upper 32 bits of each number.
    fn threshold(&self) -> u64 {
        (f64::from(self.p) * 2f64.powi(32)).round() as u64
    }

    fn apply<T: Float>(&self, xs: &[T], ys: &mut [T]) {
        let (key, threshold, scale) = (self.key(), self.threshold(), T::from_f64(self.scale()));
        in_blocks(ys, |start, ys| {
            let xs = &xs[start..][..ys.len()];
            let first = key.wrapping_add((start as u64).wrapping_mul(GOLDEN));
            simd(
                #[inline(always)]
                || {
                    for ((y, &x), counter) in ys.iter_mut().zip(xs).zip(1u64..) {
                        let number = mix(first.wrapping_add(counter.wrapping_mul(GOLDEN)));
                        // Not `x * mask`: a dropped NaN or infinity must become 0.
                        *y = (x * scale).keep_if(number >> 32 >= threshold);
                    }
                },
            );
        });
    }
}

impl FusedOp for DropoutOp {
    const NAME: &'static str = NAME;

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        self.apply(inputs[0], ys);
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        if let Some(dxs) = pass.grads.take(0) {
            self.apply(pass.dys, dxs);
        }
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        Some(self)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs)] = inputs else { unreachable!("one input") };
        // The kernel's own mask, taken from its result for ones.
        let mut kept = vec![0_f32; xs.elem_count()];
        self.apply(&vec![1.0; xs.elem_count()], &mut kept);
        let kept: Vec<u8> = kept.into_iter().map(|kept| u8::from(kept != 0.0)).collect();
        let kept = Tensor::from_vec(kept, xs.shape(), xs.device())?;
        kept.where_cond(&xs.affine(self.scale(), 0.0)?, &xs.zeros_like()?)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn element_i_depends_on_the_seed_and_i_alone_across_blocks() -> Result<()> {
        let ones = Tensor::ones(70_001, DType::F32, &Device::Cpu)?;
        let ys = dropout(&ones, 0.25, 42)?.to_vec1::<f32>()?;
        let threshold = 1u64 << 30;
        for (i, y) in ys.into_iter().enumerate() {
            let number = mix(mix(42).wrapping_add((i as u64 + 1).wrapping_mul(GOLDEN)));
            assert_eq!(y != 0.0, number >> 32 >= threshold, "element {i}");
        }
        Ok(())
    }
}
