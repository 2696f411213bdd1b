//! Tensors one after the other along a dimension.
//!
//! candle's `cat` computes the same, but its backward clears a gradient for each input and adds the
//! part to it, and each of these parts is a view, which candle adds number by number.

use candle_core::shape::Dim;
use candle_core::{Result, Tensor, bail};

use crate::autograd::fused::{self, Backward, FusedOp};
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;
use crate::kernels::strided::{StoreMode, StridedLoop, transfer};

const NAME: &str = "cat";

/// The tensors one after the other along dimension `dim`, as `torch.cat`.
///
/// # Shapes
///
/// (.., D_i, ..) for each i -> (.., the sum of all D_i, ..). The other dimensions are equal.
///
/// # Errors
///
/// If there is no tensor, the shapes do not fit, or the dtypes differ or are no floats.
pub fn cat<A: AsRef<Tensor>, D: Dim + Copy>(tensors: &[A], dim: D) -> Result<Tensor> {
    let Some(first) = tensors.first().map(AsRef::as_ref) else { bail!("{NAME}: no tensors") };
    let dim = dim.to_index(first.shape(), NAME)?;
    let mut shape = first.dims().to_vec();
    shape[dim] = 0;
    for tensor in tensors.iter().map(AsRef::as_ref) {
        let dims = tensor.dims();
        let fits = dims.len() == shape.len()
            && (0..dims.len()).all(|other| other == dim || dims[other] == shape[other]);
        if !fits {
            bail!("{NAME}: {:?} beside {:?} along dimension {dim}", tensor.shape(), first.shape());
        }
        shape[dim] += dims[dim];
    }
    let rows = shape[..dim].iter().product();
    let inner: usize = shape[dim + 1..].iter().product();
    let widths = tensors.iter().map(|tensor| tensor.as_ref().dims()[dim] * inner).collect();
    let inputs: Vec<Option<&Tensor>> = tensors.iter().map(|t| Some(t.as_ref())).collect();
    fused::run(CatOperation { dim, rows, widths }, shape, &inputs)
}

struct CatOperation {
    dim: usize,
    /// The product of the dimensions before `dim`.
    rows: usize,
    /// By input: the number of elements in a row.
    widths: Vec<usize>,
}

impl CatOperation {
    /// By input: the width, and where its elements begin in a row of the result.
    fn parts(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut end = 0;
        self.widths.iter().map(move |&width| {
            end += width;
            (width, end - width)
        })
    }

    fn row(&self) -> usize {
        self.widths.iter().sum()
    }
}

impl FusedOp for CatOperation {
    const NAME: &'static str = NAME;

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        for (xs, (width, start)) in inputs.iter().zip(self.parts()) {
            let axes = [
                StridedLoop { len: self.rows, to: self.row(), from: width },
                StridedLoop { len: width, to: 1, from: 1 },
            ];
            let own = ys.get_mut(start..).unwrap_or_default();
            transfer(&axes, own, xs, StoreMode::Replace);
        }
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { dys, mut grads, .. } = pass;
        for (number, (width, start)) in self.parts().enumerate() {
            let Some(dxs) = grads.take(number) else { continue };
            let axes = [
                StridedLoop { len: self.rows, to: width, from: self.row() },
                StridedLoop { len: width, to: 1, from: 1 },
            ];
            transfer(&axes, dxs, dys.get(start..).unwrap_or_default(), StoreMode::Replace);
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let inputs: Vec<&Tensor> = inputs.iter().flatten().collect();
        Tensor::cat(&inputs, self.dim)
    }
}
