//! A multiple of a tensor: the scores of attention over the root of their width, for instance.

use candle_core::{Result, Tensor};

use crate::autograd::fused::{self, Backward, FusedOp};
use crate::kernels::elementwise::map_all;
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;

/// `factor * xs`. The factor is rounded to the dtype of `xs`, or to f32 for f16 and bf16.
///
/// # Errors
///
/// If the dtype is no float.
pub fn scale(xs: &Tensor, factor: f64) -> Result<Tensor> {
    fused::run(ScaleOperation { factor }, xs.shape(), &[Some(xs)])
}

struct ScaleOperation {
    factor: f64,
}

impl FusedOp for ScaleOperation {
    const NAME: &'static str = "scale";

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let factor = T::from_f64(self.factor);
        map_all(ys, inputs[0], move |x| x * factor);
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        if let Some(dxs) = pass.grads.take(0) {
            let factor = T::from_f64(self.factor);
            map_all(dxs, pass.dys, move |dy| dy * factor);
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
