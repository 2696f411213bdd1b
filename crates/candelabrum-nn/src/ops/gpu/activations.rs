//! Activations on a GPU, alone and after a bias.

use candelabrum_memory::Flat;
use candelabrum_memory::cuda::{Arg, CudaNumbers, CudaNumbersMut, Gpu, Kernels};
use candle_core::Result;

use super::packs::Packs;
use crate::Activation;
use crate::autograd::fused::{GpuBackward, OnGpu};

const KERNELS: Kernels = Kernels {
    name: "activations",
    text: concat!(
        include_str!("packs.cu"),
        include_str!("sigmoid.cu"),
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

/// `ys = activation(xs + bias)`, where the bias belongs to the columns of rows. Without a bias there
/// are no columns. `xs` and `ys` may be the same numbers.
pub(super) fn activate(
    gpu: &Gpu,
    ys: &mut CudaNumbersMut<'_>,
    xs: Option<CudaNumbers<'_>>,
    bias: Option<CudaNumbers<'_>>,
    activation: Option<Activation>,
) -> Result<()> {
    launch_activate(gpu, ys, xs, bias.map(|bias| (bias, 1)), activation)
}

/// `ys = activation(ys + bias)`, where the bias belongs to the channels of images. A channel of an image
/// has `plane` numbers.
fn activate_images(
    gpu: &Gpu,
    ys: &mut CudaNumbersMut<'_>,
    bias: Option<CudaNumbers<'_>>,
    plane: usize,
    activation: Option<Activation>,
) -> Result<()> {
    launch_activate(gpu, ys, None, bias.map(|bias| (bias, plane)), activation)
}

/// `ys = activation(ys + bias)`, the end of a convolution of images, whose channels have `plane` numbers each. Returns the
/// input of an activation that is differentiated from its input.
pub(super) fn finish_images(
    gpu: &Gpu,
    mut ys: CudaNumbersMut<'_>,
    bias: Option<CudaNumbers<'_>>,
    plane: usize,
    activation: Option<Activation>,
) -> Result<Option<Flat>> {
    let late = activation.filter(|activation| activation.needs_input());
    let at_once = if late.is_some() { None } else { activation };
    if bias.is_some() || at_once.is_some() {
        activate_images(gpu, &mut ys, bias, plane, at_once)?;
    }
    if late.is_none() {
        return Ok(None);
    }
    let saved = ys.as_numbers().to_flat()?;
    activate_images(gpu, &mut ys, None, plane, late)?;
    Ok(Some(saved))
}

/// `ys = activation(xs + bias)`. Each number of the bias belongs to so many numbers side by side.
fn launch_activate(
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
    let packs = Packs::of(&[Some(ys.as_numbers()), xs], &[ys.len(), group]);
    let (bias, grid) = (bias.map(|(bias, _)| bias), packs.grid(ys.len()));
    let sizes: [Arg<'_>; 2] = [plane.into(), channels.into()];
    let activation = code(activation).into();
    let number = ys.element_type();
    let args = [ys.into(), xs.into(), bias.into(), sizes[0], sizes[1], activation, packs.into()];
    Ok(gpu.launch_for(number, KERNELS, "activate", grid, &args)?)
}

/// `dxs = dys * activation'`. `reference` is the activation's input if the activation needs it, and
/// its result otherwise. With `dys` as `None`, `dxs` is multiplied in place.
pub(super) fn differentiate(
    gpu: &Gpu,
    dxs: &mut CudaNumbersMut<'_>,
    dys: Option<CudaNumbers<'_>>,
    reference: Option<CudaNumbers<'_>>,
    activation: Activation,
) -> Result<()> {
    let packs = Packs::of(&[Some(dxs.as_numbers()), dys, reference], &[dxs.len()]);
    let (grid, number) = (packs.grid(dxs.len()), dxs.element_type());
    let activation = code(Some(activation)).into();
    let args: [Arg<'_>; 5] = [dxs.into(), dys.into(), reference.into(), activation, packs.into()];
    Ok(gpu.launch_for(number, KERNELS, "differentiate", grid, &args)?)
}

/// `sums = activation(xs + ys)`.
pub(super) fn add(
    gpu: &Gpu,
    mut sums: CudaNumbersMut<'_>,
    xs: Option<CudaNumbers<'_>>,
    ys: Option<CudaNumbers<'_>>,
    activation: Option<Activation>,
) -> Result<()> {
    let packs = Packs::of(&[Some(sums.as_numbers()), xs, ys], &[sums.len()]);
    let (grid, number) = (packs.grid(sums.len()), sums.element_type());
    let args = [(&mut sums).into(), xs.into(), ys.into(), code(activation).into(), packs.into()];
    Ok(gpu.launch_for(number, KERNELS, "add", grid, &args)?)
}

/// An activation as an operation.
impl OnGpu for Activation {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        mut ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        activate(gpu, &mut ys, inputs[0], None, Some(*self))?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(mut dxs) = pass.grads[0].take() else { return Ok(()) };
        let reference = if self.needs_input() { pass.inputs[0] } else { pass.ys };
        differentiate(pass.gpu, &mut dxs, Some(pass.dys.as_numbers()), reference, *self)
    }
}

/// The sum of two tensors as an operation, with an activation that needs no input.
pub(crate) struct Sum(pub(crate) Option<Activation>);

impl OnGpu for Sum {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        add(gpu, ys, inputs[0], inputs[1], self.0)?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        if let Some(activation) = self.0 {
            differentiate(pass.gpu, &mut pass.dys, None, pass.ys, activation)?;
        }
        for mut gradient in pass.grads.iter_mut().filter_map(Option::take) {
            gradient.copy_from(pass.dys.as_numbers())?;
        }
        Ok(())
    }
}
