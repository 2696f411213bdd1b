//! What a convolution and a linear layer have in common: input, weight, perhaps a bias; one pass
//! forward, the gradients of all three backward. Here they become candle's custom ops.

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, WithDType, bail,
};

use super::float::{Float, cpu_slice, for_float, with_slices};

/// An operation `ys = f(xs, weight, bias)`.
pub(super) trait Affine: Send + Sync {
    /// Its name in errors.
    const NAME: &'static str;

    /// The length of the bias.
    fn outputs(&self) -> usize;

    /// The output and its shape; `xs` has shape `xs_shape`.
    fn forward<T: Float>(
        &self,
        xs: &[T],
        xs_shape: &Shape,
        weight: &[T],
        bias: Option<&[T]>,
    ) -> (Vec<T>, Shape);

    /// The gradients that are wanted, of `xs`, `weight` and the bias.
    fn backward<T: Float>(
        &self,
        wanted: Wanted,
        xs: &[T],
        weight: &[T],
        ys: &[T],
        dys: &[T],
    ) -> Gradients<Vec<T>>;
}

/// Which gradients somebody asks for: those of arguments with a variable below them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) input: bool,
    pub(super) weight: bool,
    pub(super) bias: bool,
}

/// The gradients of an operation's arguments.
#[derive(Debug)]
pub(super) struct Gradients<G> {
    pub(super) input: Option<G>,
    pub(super) weight: Option<G>,
    pub(super) bias: Option<G>,
}

/// Applies `op` to contiguous copies of its arguments.
pub(super) fn apply<A: Affine + 'static>(
    op: A,
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let (xs, weight) = (xs.contiguous()?, weight.contiguous()?);
    let Some(bias) = bias else { return xs.apply_op2(&weight, Op(op)) };
    if bias.dims() != [op.outputs()] {
        bail!("{}: bias of shape {:?} for {} outputs", A::NAME, bias.shape(), op.outputs());
    }
    xs.apply_op3(&weight, &bias.contiguous()?, Op(op))
}

struct Op<A>(A);

impl<A: Affine> Op<A> {
    fn backward(
        &self,
        xs: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        ys: &Tensor,
        dys: &Tensor,
    ) -> Result<Gradients<Tensor>> {
        let wanted = Wanted {
            input: xs.track_op(),
            weight: weight.track_op(),
            bias: bias.is_some_and(Tensor::track_op),
        };
        let dys = dys.contiguous()?;
        for_float!(xs.dtype(), A::NAME, T => {
            let slices = [xs, weight, ys, &dys];
            let gradients = with_slices(slices, A::NAME, |[x, w, y, dy]: [&[T]; 4]| {
                Ok(self.0.backward(wanted, x, w, y, dy))
            })?;
            let tensor = |data: Option<Vec<T>>, shape: &Shape| {
                data.map(|data| Tensor::from_vec(data, shape, xs.device())).transpose()
            };
            Ok(Gradients {
                input: tensor(gradients.input, xs.shape())?,
                weight: tensor(gradients.weight, weight.shape())?,
                bias: tensor(gradients.bias, &Shape::from(self.0.outputs()))?,
            })
        })
    }
}

/// Without bias.
impl<A: Affine> CustomOp2 for Op<A> {
    fn name(&self) -> &'static str {
        A::NAME
    }

    fn cpu_fwd(
        &self,
        xs: &CpuStorage,
        xs_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        for_float!(xs.dtype(), A::NAME, T => {
            let xs = cpu_slice::<T>(xs, xs_layout, A::NAME)?;
            let weight = cpu_slice::<T>(weight, weight_layout, A::NAME)?;
            let (ys, shape) = self.0.forward(xs, xs_layout.shape(), weight, None);
            Ok((T::to_cpu_storage_owned(ys), shape))
        })
    }

    fn bwd(
        &self,
        xs: &Tensor,
        weight: &Tensor,
        ys: &Tensor,
        dys: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradients = self.backward(xs, weight, None, ys, dys)?;
        Ok((gradients.input, gradients.weight))
    }
}

/// With bias.
impl<A: Affine> CustomOp3 for Op<A> {
    fn name(&self) -> &'static str {
        A::NAME
    }

    fn cpu_fwd(
        &self,
        xs: &CpuStorage,
        xs_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        for_float!(xs.dtype(), A::NAME, T => {
            let xs = cpu_slice::<T>(xs, xs_layout, A::NAME)?;
            let weight = cpu_slice::<T>(weight, weight_layout, A::NAME)?;
            let bias = cpu_slice::<T>(bias, bias_layout, A::NAME)?;
            let (ys, shape) = self.0.forward(xs, xs_layout.shape(), weight, Some(bias));
            Ok((T::to_cpu_storage_owned(ys), shape))
        })
    }

    fn bwd(
        &self,
        xs: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        ys: &Tensor,
        dys: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradients = self.backward(xs, weight, Some(bias), ys, dys)?;
        Ok((gradients.input, gradients.weight, gradients.bias))
    }
}
