//! 2-d convolution with bias and activation in one pass.
//!
//! `y[n, o] = act(b[o] + sum over c, ky, kx of w[o, c, ky, kx] * x[n, c, ..])`, the
//! cross-correlation that every framework calls convolution.
//!
//! Each image is unfolded into a matrix of patches (im2col) that fits the cache, and one matrix
//! product gives its output; `kernel.rs` has the three products of a training step. The backward
//! takes the activation's mask from the saved result, so the sum before the activation is never
//! stored.

mod geometry;
mod kernel;
mod patches;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};

use self::geometry::Geometry;
use super::float::{Float, cpu_slice, for_float, with_slices};
use crate::activation::Activation;

const NAME: &str = "conv2d";

/// The numbers of a 2-d convolution, each pair as (height, width).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conv2dConfig {
    /// The step between two windows.
    pub stride: (usize, usize),
    /// Zeros added on both sides.
    pub padding: (usize, usize),
    /// The step between two elements of a window.
    pub dilation: (usize, usize),
    /// Into how many independent convolutions the channels are split.
    pub groups: usize,
}

impl Default for Conv2dConfig {
    fn default() -> Self {
        Self { stride: (1, 1), padding: (0, 0), dilation: (1, 1), groups: 1 }
    }
}

/// `act(conv(xs, weight) + bias)`.
///
/// # Shapes
///
/// `xs` (N, C, H, W), `weight` (O, C / groups, KH, KW), `bias` (O) -> (N, O, OH, OW) with
/// `OH = (H + 2 padding - dilation (KH - 1) - 1) / stride + 1`.
///
/// # Errors
///
/// If the shapes, dtypes or the configuration do not fit together, or the dtype is neither f32
/// nor f64.
///
/// # Cost
///
/// Per thread, scratch memory for the patches of one image: `C KH KW OH OW` elements, twice that
/// in the backward. The gradient of `xs` is computed only if a variable lies below `xs`.
pub fn conv2d(
    xs: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    config: Conv2dConfig,
    activation: Option<Activation>,
) -> Result<Tensor> {
    let geometry = Geometry::new(xs.shape(), weight.shape(), config)?;
    let op = Conv2d { geometry, activation };
    let (xs, weight) = (xs.contiguous()?, weight.contiguous()?);
    match bias {
        None => xs.apply_op2(&weight, op),
        Some(bias) => {
            if bias.dims() != [geometry.out_channels] {
                candle_core::bail!(
                    "{NAME}: bias of shape {:?} for {} output channels",
                    bias.dims(),
                    geometry.out_channels
                );
            }
            xs.apply_op3(&weight, &bias.contiguous()?, op)
        }
    }
}

struct Conv2d {
    geometry: Geometry,
    activation: Option<Activation>,
}

/// The gradients of input, weight and bias.
type Gradients = (Option<Tensor>, Option<Tensor>, Option<Tensor>);

impl Conv2d {
    fn forward<T: Float>(&self, xs: &[T], weight: &[T], bias: Option<&[T]>) -> (CpuStorage, Shape) {
        let ys = kernel::forward(&self.geometry, xs, weight, bias, self.activation);
        (T::to_cpu_storage_owned(ys), self.geometry.output_shape())
    }

    fn backward<T: Float>(
        &self,
        xs: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        ys: &Tensor,
        dys: &Tensor,
    ) -> Result<Gradients> {
        let wanted = kernel::Wanted {
            input: xs.track_op(),
            weight: weight.track_op(),
            bias: bias.is_some_and(Tensor::track_op),
        };
        let dys = dys.contiguous()?;
        let gradients = with_slices([xs, weight, ys, &dys], NAME, |[x, w, y, dy]: [&[T]; 4]| {
            Ok(kernel::backward(&self.geometry, wanted, self.activation, x, w, y, dy))
        })?;
        let tensor = |data: Option<Vec<T>>, shape: &Shape| {
            data.map(|data| Tensor::from_vec(data, shape, xs.device())).transpose()
        };
        Ok((
            tensor(gradients.input, xs.shape())?,
            tensor(gradients.weight, weight.shape())?,
            tensor(gradients.bias, &Shape::from(self.geometry.out_channels))?,
        ))
    }
}

/// Without bias.
impl CustomOp2 for Conv2d {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        xs: &CpuStorage,
        xs_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        for_float!(xs.dtype(), NAME, T => {
            let xs = cpu_slice::<T>(xs, xs_layout, NAME)?;
            let weight = cpu_slice::<T>(weight, weight_layout, NAME)?;
            Ok(self.forward(xs, weight, None))
        })
    }

    fn bwd(
        &self,
        xs: &Tensor,
        weight: &Tensor,
        ys: &Tensor,
        dys: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (dx, dw, _) = for_float!(xs.dtype(), NAME, T => {
            self.backward::<T>(xs, weight, None, ys, dys)
        })?;
        Ok((dx, dw))
    }
}

/// With bias.
impl CustomOp3 for Conv2d {
    fn name(&self) -> &'static str {
        NAME
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
        for_float!(xs.dtype(), NAME, T => {
            let xs = cpu_slice::<T>(xs, xs_layout, NAME)?;
            let weight = cpu_slice::<T>(weight, weight_layout, NAME)?;
            let bias = cpu_slice::<T>(bias, bias_layout, NAME)?;
            Ok(self.forward(xs, weight, Some(bias)))
        })
    }

    fn bwd(
        &self,
        xs: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        ys: &Tensor,
        dys: &Tensor,
    ) -> Result<Gradients> {
        for_float!(xs.dtype(), NAME, T => {
            self.backward::<T>(xs, weight, Some(bias), ys, dys)
        })
    }
}
