//! `relu(x) = max(x, 0)`; the gradient at exactly 0 is 0, as in PyTorch (candle passes it).

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::elementwise;
use super::float::{Float, cpu_slice, for_float, with_slices};

/// `max(x, 0)`, element by element; NaN stays NaN.
///
/// # Errors
///
/// If `xs` is neither f32 nor f64.
pub fn relu(xs: &Tensor) -> Result<Tensor> {
    xs.contiguous()?.apply_op1(Relu)
}

struct Relu;

impl Relu {
    const NAME: &'static str = "relu";

    fn forward<T: Float>(storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let xs = cpu_slice::<T>(storage, layout, Self::NAME)?;
        let ys = xs.iter().map(|&x| elementwise::relu(x)).collect();
        Ok((T::to_cpu_storage_owned(ys), layout.shape().clone()))
    }

    fn backward<T: Float>(ys: &Tensor, dys: &Tensor) -> Result<Tensor> {
        let dxs = with_slices([ys, dys], Self::NAME, |[ys, dys]: [&[T]; 2]| {
            let mut dxs = vec![T::zero(); ys.len()];
            elementwise::relu_backward(&mut dxs, dys, ys);
            Ok(dxs)
        })?;
        Tensor::from_vec(dxs, ys.shape(), ys.device())
    }
}

impl CustomOp1 for Relu {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        for_float!(storage.dtype(), Self::NAME, T => Self::forward::<T>(storage, layout))
    }

    fn bwd(&self, xs: &Tensor, ys: &Tensor, dys: &Tensor) -> Result<Option<Tensor>> {
        if !xs.track_op() {
            return Ok(None);
        }
        let dys = dys.contiguous()?;
        for_float!(xs.dtype(), Self::NAME, T => Self::backward::<T>(ys, &dys).map(Some))
    }
}
