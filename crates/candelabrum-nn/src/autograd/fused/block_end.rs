//! The end of a block whose parameters are fetched again for its backward pass.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::link;
use crate::params::{BlockPlace, begin_backward};

/// The result of the block at `place`, such that the backward pass fetches the block's parameters before it
/// differentiates the block. Fused operations do so themselves. A result of candle's own operations gets an operation
/// behind it that copies.
pub(crate) fn end_block(ys: Tensor, place: &BlockPlace) -> Result<Tensor> {
    match link::find(&ys) {
        Some(_) => Ok(ys),
        None => ys.force_contiguous()?.apply_op1(BlockEnd(place.clone())),
    }
}

struct BlockEnd(BlockPlace);

impl CustomOp1 for BlockEnd {
    fn name(&self) -> &'static str {
        "block-end"
    }

    fn cpu_fwd(&self, xs: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((xs.try_clone(layout)?, layout.shape().clone()))
    }

    fn cuda_fwd(&self, xs: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        Ok((xs.try_clone(layout)?, layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, dys: &Tensor) -> Result<Option<Tensor>> {
        begin_backward(&self.0)?;
        Ok(Some(dys.clone()))
    }
}
