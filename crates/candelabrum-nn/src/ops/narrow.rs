//! Parts of a tensor along one dimension.
//!
//! candle's `narrow` costs nothing in the forward pass, but its backward concatenates the gradient
//! with zeros, clears the gradient of the whole tensor, and adds one to the other: three passes over
//! the whole tensor for each part. Here the gradient of a part is written to its place among the
//! gradients of the other parts (`fused/inbox.rs`), which is one pass over the part. Places of which
//! nobody uses the element are cleared once, before the whole gradient is read.

use candle_core::shape::Dim;
use candle_core::{Result, Tensor, bail};

use crate::autograd::fused::{self, Backward, FusedOp};
use crate::autograd::view::StridedView;
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;
use crate::kernels::strided::StoreMode;

const NAME: &str = "narrow";

/// `len` positions of `xs` from `start` on, along dimension `dim`: candle's and PyTorch's `narrow`. The
/// result is a copy.
///
/// # Shapes
///
/// (.., D, ..) -> (.., `len`, ..)
///
/// # Errors
///
/// If the positions lie outside of the dimension, or the dtype is no float.
pub fn narrow<D: Dim + Copy>(xs: &Tensor, dim: D, start: usize, len: usize) -> Result<Tensor> {
    let dim = dim.to_index(xs.shape(), NAME)?;
    let mut shape = xs.dims().to_vec();
    if start.checked_add(len).is_none_or(|end| end > shape[dim]) {
        bail!("{NAME}: {len} positions from {start} on, in dimension {dim} of {:?}", xs.shape());
    }
    let view = StridedView::narrow(&shape, dim, start, len);
    shape[dim] = len;
    fused::run(Narrow { dim, start, len, view }, shape, &[Some(xs)])
}

/// Divides `xs` along dimension `dim` into parts of these lengths, as `torch.split`: the queries, keys
/// and values of attention, or the gates of a layer. A part that the loss does not depend on has the
/// gradient zero.
///
/// ```
/// use candelabrum_nn::ops::split;
/// use candle_core::{D, Device, Tensor};
///
/// let xs = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu)?;
/// let parts = split(&xs, &[1, 2], D::Minus1)?;
/// assert_eq!(parts[1].to_vec2::<f32>()?, [[2., 3.], [5., 6.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Shapes
///
/// (.., D, ..) -> (.., `lens[i]`, ..)
///
/// # Errors
///
/// If the lengths do not add up to that of the dimension, or the dtype is no float.
pub fn split<D: Dim + Copy>(xs: &Tensor, lens: &[usize], dim: D) -> Result<Vec<Tensor>> {
    let dim = dim.to_index(xs.shape(), "split")?;
    let sum = lens.iter().try_fold(0usize, |sum, &len| sum.checked_add(len));
    if sum != Some(xs.dims()[dim]) {
        bail!("split: parts of {lens:?}, but dimension {dim} of {:?}", xs.shape());
    }
    let mut end = 0;
    let part = |&len: &usize| {
        end += len;
        narrow(xs, dim, end - len, len)
    };
    lens.iter().map(part).collect()
}

struct Narrow {
    dim: usize,
    start: usize,
    len: usize,
    view: StridedView,
}

impl FusedOp for Narrow {
    const NAME: &'static str = NAME;

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        self.view.gather(inputs[0], ys);
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dxs) = pass.grads.take(0) else { return Ok(()) };
        dxs.fill(T::zero());
        self.view.scatter(pass.dys, dxs, StoreMode::Replace);
        Ok(())
    }

    fn view(&self) -> Option<&StridedView> {
        Some(&self.view).filter(|view| view.len() > 0)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs)] = inputs else { unreachable!("one input") };
        xs.narrow(self.dim, self.start, self.len)
    }
}
