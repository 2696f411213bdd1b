//! Activations on a GPU, alone and after a bias.

use candelabrum_memory::cuda::{Arg, CudaSpan, CudaSpanMut, Gpu, Grid, Kernels};
use candelabrum_memory::{Flat, Span, SpanMut};
use candle_core::Result;

use crate::Activation;
use crate::ops::fused::{GpuBackward, OnGpu};

const KERNELS: Kernels = Kernels { name: "activations", text: include_str!("activations.cu") };

/// The number of an activation in activations.cu.
fn number(activation: Option<Activation>) -> usize {
    match activation {
        None => 0,
        Some(Activation::Relu) => 1,
        Some(Activation::Gelu) => 2,
        Some(Activation::GeluTanh) => 3,
        Some(Activation::Silu) => 4,
        Some(Activation::Sigmoid) => 5,
        Some(Activation::Tanh) => 6,
    }
}

/// `ys = activation(xs + bias)`, where the bias belongs to the columns of rows. Without a bias there
/// are no columns. `xs` and `ys` may be the same numbers.
pub(super) fn activate(
    gpu: &Gpu,
    ys: &mut CudaSpanMut<'_>,
    xs: Option<CudaSpan<'_>>,
    bias: Option<CudaSpan<'_>>,
    activation: Option<Activation>,
) -> Result<()> {
    launch_activate(gpu, ys, xs, bias.map(|bias| (bias, 1)), activation)
}

/// `ys = activation(ys + bias)`, where the bias belongs to the channels of images. A channel of an image
/// has `plane` numbers.
pub(super) fn activate_images(
    gpu: &Gpu,
    ys: &mut CudaSpanMut<'_>,
    bias: Option<CudaSpan<'_>>,
    plane: usize,
    activation: Option<Activation>,
) -> Result<()> {
    launch_activate(gpu, ys, None, bias.map(|bias| (bias, plane)), activation)
}

/// `ys = activation(xs + bias)`. Each number of the bias belongs to so many numbers side by side.
fn launch_activate(
    gpu: &Gpu,
    ys: &mut CudaSpanMut<'_>,
    xs: Option<CudaSpan<'_>>,
    bias: Option<(CudaSpan<'_>, usize)>,
    activation: Option<Activation>,
) -> Result<()> {
    let (channels, plane) = bias.map_or((1, 1), |(bias, plane)| (bias.len(), plane));
    let (bias, grid) = (bias.map(|(bias, _)| bias), Grid::for_each(ys.len()));
    let sizes: [Arg<'_>; 2] = [plane.into(), channels.into()];
    let activation = number(activation).into();
    let args = [ys.into(), xs.into(), bias.into(), sizes[0], sizes[1], activation];
    Ok(gpu.launch(KERNELS, "activate", grid, &args)?)
}

/// `dxs = dys * activation'`. `reference` is the activation's input if the activation needs it, and
/// its result otherwise. With `dys` as `None`, `dxs` is multiplied in place.
pub(super) fn differentiate(
    gpu: &Gpu,
    dxs: &mut CudaSpanMut<'_>,
    dys: Option<CudaSpan<'_>>,
    reference: Option<CudaSpan<'_>>,
    activation: Activation,
) -> Result<()> {
    let grid = Grid::for_each(dxs.len());
    let args: [Arg<'_>; 4] =
        [dxs.into(), dys.into(), reference.into(), number(Some(activation)).into()];
    Ok(gpu.launch(KERNELS, "differentiate", grid, &args)?)
}

/// `sums = activation(xs + ys)`.
pub(super) fn add(
    gpu: &Gpu,
    mut sums: CudaSpanMut<'_>,
    xs: Option<CudaSpan<'_>>,
    ys: Option<CudaSpan<'_>>,
    activation: Option<Activation>,
) -> Result<()> {
    let grid = Grid::for_each(sums.len());
    let args = [(&mut sums).into(), xs.into(), ys.into(), number(activation).into()];
    Ok(gpu.launch(KERNELS, "add", grid, &args)?)
}

/// An activation as an operation.
impl OnGpu for Activation {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaSpan<'_>>],
        mut ys: CudaSpanMut<'_>,
    ) -> Result<Option<Flat>> {
        activate(gpu, &mut ys, inputs[0], None, Some(*self))?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(mut dxs) = pass.grads[0].take() else { return Ok(()) };
        let reference = if self.needs_input() { pass.inputs[0] } else { pass.ys };
        differentiate(pass.gpu, &mut dxs, Some(pass.dys.as_span()), reference, *self)
    }
}

/// The sum of two tensors as an operation, with an activation that needs no input.
pub(in crate::ops) struct Sum(pub(in crate::ops) Option<Activation>);

impl OnGpu for Sum {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaSpan<'_>>],
        ys: CudaSpanMut<'_>,
    ) -> Result<Option<Flat>> {
        add(gpu, ys, inputs[0], inputs[1], self.0)?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        if let Some(activation) = self.0 {
            differentiate(pass.gpu, &mut pass.dys, None, pass.ys, activation)?;
        }
        for gradient in pass.grads.iter_mut().filter_map(Option::take) {
            SpanMut::Cuda(gradient).copy_from(Span::Cuda(pass.dys.as_span()))?;
        }
        Ok(())
    }
}
