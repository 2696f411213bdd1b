//! Activations on a GPU, alone and after a bias.

use candelabrum_memory::FlatTensor;
use candelabrum_memory::cuda::{CudaNumbers, CudaNumbersMut, Gpu, Kernels};
use candle_core::Result;

use crate::Activation;
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::ops::gpu::launch::launch;
use crate::ops::gpu::packs::PackWidth;

const KERNELS: Kernels = Kernels {
    name: "activations",
    text: concat!(
        include_str!("../gpu/packs.cu"),
        include_str!("../gpu/sigmoid.cu"),
        include_str!("activations.cu")
    ),
};

/// The number of an activation in activations.cu.
fn code(activation: Option<Activation>) -> usize {
    match activation {
        None => 0,
        Some(Activation::Relu) => 1,
        Some(Activation::Gelu) => 2,
        Some(Activation::GeluTanh) => 3,
        Some(Activation::Silu) => 4,
        Some(Activation::Sigmoid) => 5,
        Some(Activation::Tanh) => 6,
        Some(Activation::Relu6) => 7,
    }
}

/// `ys = activation(xs + bias)`, or `ys = activation(ys + bias)` without `xs`. Each number of the bias belongs to so many
/// numbers side by side: to the plane of a channel, or to one number of a row.
pub(in crate::ops) fn activate(
    gpu: &Gpu,
    ys: &mut CudaNumbersMut<'_>,
    xs: Option<CudaNumbers<'_>>,
    bias: Option<(CudaNumbers<'_>, usize)>,
    activation: Option<Activation>,
) -> Result<()> {
    let (channels, plane) = bias.map_or((1, 1), |(bias, plane)| (bias.len(), plane));
    // A pack has one number of the bias, or as many as the pack.
    let group = if plane == 1 && bias.is_some() { channels } else { plane };
    let group = bias.map_or(ys.len(), |_| group);
    let packs = PackWidth::new(&[Some(ys.as_numbers()), xs], &[ys.len(), group]);
    let (grid, bias) = (packs.grid(ys.len()), bias.map(|(bias, _)| bias));
    let activation = code(activation);
    launch!(gpu, ys.element_type(), KERNELS, "activate", grid; ys, xs, bias, plane, channels, activation, packs)
}

/// `ys = activation(ys + bias)`, the end of a convolution of images, whose channels have `plane` numbers each. Returns the
/// input of an activation that is differentiated from its input.
pub(in crate::ops) fn finish_images(
    gpu: &Gpu,
    mut ys: CudaNumbersMut<'_>,
    bias: Option<CudaNumbers<'_>>,
    plane: usize,
    activation: Option<Activation>,
) -> Result<Option<FlatTensor>> {
    let late = activation.filter(|activation| activation.needs_input());
    let at_once = if late.is_some() { None } else { activation };
    if bias.is_some() || at_once.is_some() {
        activate(gpu, &mut ys, None, bias.map(|bias| (bias, plane)), at_once)?;
    }
    if late.is_none() {
        return Ok(None);
    }
    let saved = ys.as_numbers().to_flat()?;
    activate(gpu, &mut ys, None, None, late)?;
    Ok(Some(saved))
}

/// The gradient before the activation of an operation, in the place of that of its result. An activation that needs
/// its input has it in `saved`.
pub(in crate::ops) fn differentiate_result(
    pass: &mut GpuBackward<'_>,
    activation: Option<Activation>,
) -> Result<()> {
    let Some(activation) = activation else { return Ok(()) };
    let reference = if activation.needs_input() { pass.saved } else { pass.ys };
    differentiate(pass.gpu, &mut pass.dys, None, reference, activation)
}

/// `dxs = dys * activation'`. `reference` is the activation's input if the activation needs it, and
/// its result otherwise. With `dys` as `None`, `dxs` is multiplied in place.
pub(in crate::ops) fn differentiate(
    gpu: &Gpu,
    dxs: &mut CudaNumbersMut<'_>,
    dys: Option<CudaNumbers<'_>>,
    reference: Option<CudaNumbers<'_>>,
    activation: Activation,
) -> Result<()> {
    let packs = PackWidth::new(&[Some(dxs.as_numbers()), dys, reference], &[dxs.len()]);
    let (number, grid) = (dxs.element_type(), packs.grid(dxs.len()));
    let activation = code(Some(activation));
    launch!(gpu, number, KERNELS, "differentiate", grid; dxs, dys, reference, activation, packs)
}

/// `sums = activation(xs + ys)`.
pub(in crate::ops) fn add(
    gpu: &Gpu,
    mut sums: CudaNumbersMut<'_>,
    xs: Option<CudaNumbers<'_>>,
    ys: Option<CudaNumbers<'_>>,
    activation: Option<Activation>,
) -> Result<()> {
    let packs = PackWidth::new(&[Some(sums.as_numbers()), xs, ys], &[sums.len()]);
    let (number, grid) = (sums.element_type(), packs.grid(sums.len()));
    launch!(gpu, number, KERNELS, "add", grid; &mut sums, xs, ys, code(activation), packs)
}

/// An activation as an operation.
impl GpuKernels for Activation {
    fn forward(&self, mut pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        activate(pass.gpu, &mut pass.ys, pass.inputs[0], None, Some(*self))?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(mut dxs) = pass.grads[0].take() else { return Ok(()) };
        let reference = if self.needs_input() { pass.inputs[0] } else { pass.ys };
        differentiate(pass.gpu, &mut dxs, Some(pass.dys.as_numbers()), reference, *self)
    }
}
