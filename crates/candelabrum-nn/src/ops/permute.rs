//! Dimensions in another order.
//!
//! candle's `permute` and `transpose` cost nothing in the forward pass, but an operation that needs
//! contiguous numbers copies them, and the backward clears a gradient and adds the permuted one to it,
//! number by number. Here forward and backward are one copy each, in tiles.

use candle_core::shape::{Dim, Dims};
use candle_core::{Result, Tensor, bail};

use crate::autograd::fused::{self, Backward, FusedOp};
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;
use crate::kernels::strided::{StoreMode, StridedLoop, transfer};

const NAME: &str = "permute";

/// Dimension `i` of the result is dimension `dims[i]` of `xs`, as in candle and PyTorch. The result is
/// contiguous.
///
/// # Errors
///
/// If `dims` does not name each dimension once, or the dtype is no float.
pub fn permute<D: Dims>(xs: &Tensor, dims: D) -> Result<Tensor> {
    let order = dims.to_indexes(xs.shape(), NAME)?;
    if order.len() != xs.rank() {
        bail!("{NAME}: dimensions {order:?} of a tensor of shape {:?}", xs.shape());
    }
    run(xs, order)
}

/// `xs` with two dimensions exchanged, as in candle and PyTorch. The result is contiguous.
///
/// # Errors
///
/// If `xs` has no such dimension, or the dtype is no float.
pub fn transpose<D1: Dim + Copy, D2: Dim + Copy>(
    xs: &Tensor,
    dim1: D1,
    dim2: D2,
) -> Result<Tensor> {
    let dims = [dim1.to_index(xs.shape(), "transpose")?, dim2.to_index(xs.shape(), "transpose")?];
    let mut order: Vec<usize> = (0..xs.rank()).collect();
    order.swap(dims[0], dims[1]);
    run(xs, order)
}

fn run(xs: &Tensor, order: Vec<usize>) -> Result<Tensor> {
    let shape: Vec<usize> = order.iter().map(|&dim| xs.dims()[dim]).collect();
    let from = contiguous_steps(xs.dims());
    let to = contiguous_steps(&shape);
    let axes = order.iter().zip(to).map(|(&dim, to)| StridedLoop {
        len: xs.dims()[dim],
        to,
        from: from[dim],
    });
    let axes = axes.collect();
    fused::run(Permute { order, axes }, shape, &[Some(xs)])
}

/// How far a step along each dimension moves in a contiguous tensor.
fn contiguous_steps(shape: &[usize]) -> Vec<usize> {
    (1..=shape.len()).map(|next| shape[next..].iter().product()).collect()
}

struct Permute {
    order: Vec<usize>,
    /// From the input to the result.
    axes: Vec<StridedLoop>,
}

impl FusedOp for Permute {
    const NAME: &'static str = NAME;

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        transfer(&self.axes, ys, inputs[0], StoreMode::Replace);
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dxs) = pass.grads.take(0) else { return Ok(()) };
        let back =
            self.axes.iter().map(|axis| StridedLoop { to: axis.from, from: axis.to, ..*axis });
        let mut back: Vec<StridedLoop> = back.filter(|axis| axis.len != 1).collect();
        back.sort_by_key(|axis| std::cmp::Reverse(axis.to));
        transfer(&back, dxs, pass.dys, StoreMode::Replace);
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs)] = inputs else { unreachable!("one input") };
        xs.permute(self.order.clone())?.contiguous()
    }
}
