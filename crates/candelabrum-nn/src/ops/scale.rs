//! A multiple of a tensor: the scores of attention over the root of their width, for instance.

use candle_core::{Result, Tensor};

use crate::autograd::fused::{self, Backward, Fused, Reads};
use crate::kernels::float::Float;
use crate::kernels::parallel::in_blocks;
use crate::kernels::scratch::Pooled;
use candelabrum_memory::simd::simd;

/// `factor * xs`. The factor is rounded to the dtype of `xs`, or to f32 for f16 and bf16.
///
/// # Errors
///
/// If the dtype is no float.
pub fn scale(xs: &Tensor, factor: f64) -> Result<Tensor> {
    fused::run(Scale { factor }, xs.shape(), &[Some(xs)])
}

struct Scale {
    factor: f64,
}

impl Scale {
    fn apply<T: Float>(&self, xs: &[T], ys: &mut [T]) {
        let factor = T::from_f64(self.factor);
        in_blocks(ys, |start, ys| {
            let xs = &xs[start..][..ys.len()];
            simd(
                #[inline(always)]
                || {
                    for (y, &x) in ys.iter_mut().zip(xs) {
                        *y = x * factor;
                    }
                },
            );
        });
    }
}

impl Fused for Scale {
    const NAME: &'static str = "scale";

    fn reads(&self) -> Reads {
        Reads::NOTHING
    }

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

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs)] = inputs else { unreachable!("one input") };
        // Not `affine`: with the factor 0, candle's backward pass does not reach its argument.
        let factor = Tensor::new(self.factor, xs.device())?.to_dtype(xs.dtype())?;
        xs.broadcast_mul(&factor)
    }
}
