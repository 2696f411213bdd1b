//! A candle operation that runs one collective in the forward pass and another one in the backward
//! pass. All operations of `ops` are made of it.

use std::sync::Arc;

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::shape::Dim;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::Error;
use crate::comm::{Collective, Element, Group, Payload, ReduceOp};

/// The communication in one direction, forward or backward.
#[derive(Clone, Debug)]
pub(super) enum PassDirection {
    /// The tensor stays as it is, and no message is sent.
    Identity,
    /// A rank that gets nothing, because it is not the root of a gather or reduce, gets zeros.
    Collective(Collective),
    /// The concatenation of all ranks' tensors, whose first dimensions have these lengths by rank.
    GatherRows(Arc<[usize]>),
    /// This rank's rows of the sum of all ranks' tensors, which have these numbers of rows for each rank.
    ReduceRows(Arc<[usize]>),
}

/// One operation. Collectives that change the length work on the first dimension.
#[derive(Debug)]
pub(super) struct TensorExchange {
    name: &'static str,
    group: Group,
    forward: PassDirection,
    backward: PassDirection,
}

/// Runs `forward` on `xs`. The backward pass runs `backward` on the gradient.
pub(super) fn exchange(
    name: &'static str,
    xs: &Tensor,
    group: &Group,
    forward: PassDirection,
    backward: PassDirection,
) -> Result<Tensor> {
    // The backward pass, in which a `DistOpt` may exchange its buckets, runs it again.
    group.interleave();
    let op = TensorExchange { name, group: Arc::clone(group), forward, backward };
    xs.contiguous()?.apply_op1(op)
}

/// As [`exchange`], along dimension `dim`.
pub(super) fn exchange_along(
    name: &'static str,
    xs: &Tensor,
    dim: impl Dim + Copy,
    group: &Group,
    forward: PassDirection,
    backward: PassDirection,
) -> Result<Tensor> {
    let dim = dim.to_index(xs.shape(), name)?;
    if dim == 0 {
        return exchange(name, xs, group, forward, backward);
    }
    let ys = exchange(name, &xs.transpose(0, dim)?, group, forward, backward)?;
    ys.transpose(0, dim)?.contiguous()
}

/// Returns an error if dimension `dim` does not divide by the number of ranks.
pub(super) fn check_divides(
    name: &'static str,
    xs: &Tensor,
    dim: impl Dim + Copy,
    group: &Group,
) -> Result<()> {
    let (len, world_size) = (xs.dim(dim)?, group.world_size());
    if len.is_multiple_of(world_size) {
        return Ok(());
    }
    Err(Error::NotDivisible { op: name, len, world_size }.into())
}

impl TensorExchange {
    fn run<T: Element>(&self, xs: &[T]) -> Result<Vec<T>> {
        let payload = || Payload::from_slice(xs).labelled(self.name);
        let op = match &self.forward {
            PassDirection::Identity => return Ok(xs.to_vec()),
            PassDirection::Collective(op) => *op,
            PassDirection::GatherRows(_) => Collective::AllGatherV,
            PassDirection::ReduceRows(rows) => {
                let row = xs.len() / rows.iter().sum::<usize>().max(1);
                let parts: Box<[usize]> = rows.iter().map(|rows| rows * row).collect();
                let own = payload().with_parts(parts)?;
                let sum = self.group.run(Collective::ReduceScatterV(ReduceOp::Sum), own)?;
                let before: usize = rows[..self.group.rank()].iter().sum();
                let (start, end) = (before * row, (before + rows[self.group.rank()]) * row);
                return Ok(sum.as_slice()?[start..end].to_vec());
            }
        };
        let result = self.group.run(op, payload())?;
        match op {
            Collective::Gather { root } | Collective::Reduce { root, .. }
                if root != self.group.rank() =>
            {
                Ok(vec![T::zeroed(); self.result_len(xs.len())])
            }
            _ => Ok(result.to_vec()?),
        }
    }

    /// What becomes of `len` elements, or of a first dimension of `len`. For parts of different lengths, of a first
    /// dimension alone.
    fn result_len(&self, len: usize) -> usize {
        let op = match &self.forward {
            PassDirection::Identity => return len,
            PassDirection::Collective(op) => *op,
            PassDirection::GatherRows(rows) => return rows.iter().sum(),
            PassDirection::ReduceRows(rows) => return rows[self.group.rank()],
        };
        match op {
            Collective::AllGather | Collective::Gather { .. } => len * self.group.world_size(),
            Collective::ReduceScatter(_) | Collective::Scatter { .. } => {
                len / self.group.world_size()
            }
            _ => len,
        }
    }

    fn result_shape(&self, shape: &Shape) -> Shape {
        let mut dims = shape.dims().to_vec();
        if let Some(first) = dims.first_mut() {
            *first = self.result_len(*first);
        }
        Shape::from(dims)
    }
}

impl CustomOp1 for TensorExchange {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, xs: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            return Err(candle_core::Error::RequiresContiguous { op: self.name }.bt());
        };
        let ys = match xs {
            CpuStorage::F32(xs) => CpuStorage::F32(self.run(&xs[start..end])?),
            CpuStorage::F64(xs) => CpuStorage::F64(self.run(&xs[start..end])?),
            CpuStorage::F16(xs) => CpuStorage::F16(self.run(&xs[start..end])?),
            CpuStorage::BF16(xs) => CpuStorage::BF16(self.run(&xs[start..end])?),
            other => {
                return Err(
                    candle_core::Error::UnsupportedDTypeForOp(other.dtype(), self.name).bt()
                );
            }
        };
        Ok((ys, self.result_shape(layout.shape())))
    }

    /// Through the host.
    fn cuda_fwd(&self, xs: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (ys, shape) = self.cpu_fwd(&xs.to_cpu_storage()?, layout)?;
        Ok((xs.device().storage_from_cpu_storage_owned(ys)?, shape))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let Self { name, group, forward, backward } = self;
        exchange(name, gradient, group, backward.clone(), forward.clone()).map(Some)
    }
}
