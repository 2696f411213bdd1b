//! Inverted dropout whose mask is a pure function of the seed.
//!
//! Element `i` is kept if the `i`-th number of a counter-based generator (SplitMix64: Steele, Lea
//! and Flood 2014) is at least `p`, and then scaled by `1 / (1 - p)`. The backward computes the
//! same mask again, so none is stored, and the result does not depend on threads.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, WithDType, bail};

use super::float::{Float, cpu_slice, for_float, with_slices};

const NAME: &str = "dropout";

/// Sets each element to 0 with probability `p` and scales the others by `1 / (1 - p)`.
///
/// Equal seeds give equal masks: draw a new seed for every call.
///
/// # Errors
///
/// If `p` lies outside of `[0, 1)`, or the dtype is neither f32 nor f64.
pub fn dropout(xs: &Tensor, p: f32, seed: u64) -> Result<Tensor> {
    if !(0.0..1.0).contains(&p) {
        bail!("{NAME}: probability {p} outside of [0, 1)");
    }
    xs.contiguous()?.apply_op1(Dropout { p, seed })
}

struct Dropout {
    p: f32,
    seed: u64,
}

impl Dropout {
    fn apply<T: Float>(&self, xs: &[T]) -> Vec<T> {
        let key = mix(self.seed);
        // Compared with the upper 32 bits of each number.
        let threshold = (f64::from(self.p) * 2f64.powi(32)).round() as u64;
        let scale = T::from_f64(1.0 / (1.0 - f64::from(self.p)));
        let element = |(x, counter): (&T, u64)| {
            let kept = mix(key.wrapping_add(counter.wrapping_mul(GOLDEN))) >> 32 >= threshold;
            // Not `x * mask`: a dropped NaN or infinity is 0.
            if kept { *x * scale } else { T::zero() }
        };
        xs.iter().zip(1u64..).map(element).collect()
    }
}

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finalizer of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl CustomOp1 for Dropout {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        for_float!(storage.dtype(), NAME, T => {
            let ys = self.apply::<T>(cpu_slice(storage, layout, NAME)?);
            Ok((T::to_cpu_storage_owned(ys), layout.shape().clone()))
        })
    }

    fn bwd(&self, xs: &Tensor, _ys: &Tensor, dys: &Tensor) -> Result<Option<Tensor>> {
        if !xs.track_op() {
            return Ok(None);
        }
        let dys = dys.contiguous()?;
        for_float!(xs.dtype(), NAME, T => {
            let dxs = with_slices([&dys], NAME, |[dys]: [&[T]; 1]| Ok(self.apply(dys)))?;
            Tensor::from_vec(dxs, xs.shape(), xs.device()).map(Some)
        })
    }
}
