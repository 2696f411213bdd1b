//! An operation whose result exists already, and whose backward pass is given.

use std::sync::{Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, Layout, MetalStorage, Result, Shape, Storage, Tensor, bail,
};

/// `ys` as the result of an operation on `xs`. `backward` makes the gradient of `xs` of that of `ys`.
pub(crate) fn with_backward(
    xs: &Tensor,
    ys: Tensor,
    name: &'static str,
    backward: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    if !xs.track_op() {
        return Ok(ys);
    }
    let ys = Mutex::new(Some(ys.contiguous()?));
    xs.apply_op1(CustomBackward { ys, name, backward: Box::new(backward) })
}

type BackwardFn = dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync;

struct CustomBackward {
    /// `None` after the forward pass, whose result is a copy.
    ys: Mutex<Option<Tensor>>,
    name: &'static str,
    backward: Box<BackwardFn>,
}

impl CustomBackward {
    fn take(&self) -> Result<Tensor> {
        match self.ys.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(ys) => Ok(ys),
            None => bail!("{}: the result has been given away", self.name),
        }
    }
}

impl CustomOp1 for CustomBackward {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        let ys = self.take()?;
        let (storage, layout) = ys.storage_and_layout();
        match &*storage {
            Storage::Cpu(ys) => Ok((ys.clone(), layout.shape().clone())),
            _ => bail!("{}: the result is not on the CPU", self.name),
        }
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        let ys = self.take()?;
        let (storage, layout) = ys.storage_and_layout();
        match &*storage {
            Storage::Cuda(ys) => Ok((ys.try_clone(layout)?, layout.shape().clone())),
            _ => bail!("{}: the result is not on a GPU", self.name),
        }
    }

    fn metal_fwd(&self, _: &MetalStorage, _: &Layout) -> Result<(MetalStorage, Shape)> {
        let ys = self.take()?;
        let (storage, layout) = ys.storage_and_layout();
        match &*storage {
            Storage::Metal(ys) => Ok((ys.try_clone(layout)?, layout.shape().clone())),
            _ => bail!("{}: the result is not on a Metal device", self.name),
        }
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, dys: &Tensor) -> Result<Option<Tensor>> {
        (self.backward)(dys).map(Some)
    }
}
