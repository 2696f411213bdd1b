//! Fused operations on a GPU, in f32, f16 and bf16: the same graph as on the CPU, with numbers on the
//! GPU. Sums and functions are computed in f32, and results are rounded to the type of the inputs.

use candelabrum_memory::cuda::{CudaNumbersMut, CudaSpanMut, Gpu};
use candelabrum_memory::{ElementType, FlatTensor};
use candle_core::{DType, Device, Result, Shape, Storage, Tensor, TensorId, bail};

use super::composite;
use super::elements::with_numbers;
use super::inbox::GradientInbox;
use super::link::GradientTarget;
use super::node::{self, Node};
use super::on_gpu::{GpuBackward, GpuForward};
use super::untyped::Operation;
use crate::autograd::pass::{self, GradientPlace};
use crate::autograd::profile::{self, ProfilePhase};
use crate::autograd::recomputing::Unread;
use crate::kernels::scratch::{Pooled, PooledValues};

/// The GPU, if kernels of the operation compute it there.
pub(super) fn wanted(op: &dyn Operation, dtype: DType, device: &Device) -> Option<Gpu> {
    let has_type = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    let has_kernels = has_type && !device.is_cpu() && op.on_gpu().is_some();
    if has_kernels && !composite::are_forced() { Gpu::from_device(device) } else { None }
}

/// Computes `op` of contiguous inputs on a GPU.
pub(super) fn run(
    op: Box<dyn Operation>,
    shape: Shape,
    dtype: DType,
    inputs: Vec<Option<Tensor>>,
    gpu: &Gpu,
    unread: Option<Unread>,
) -> Result<Tensor> {
    let Some(kernels) = op.on_gpu() else { bail!("{}: no kernels, this is a bug", op.name()) };
    let mut ys = gpu.numbers_of(element_of(dtype), shape.elem_count())?;
    let saved = match unread {
        Some(Unread::All) => None,
        _ => profile::timed(ProfilePhase::Forward, op.name(), shape.dims(), || {
            let tensors: Vec<Option<&Tensor>> = inputs.iter().map(Option::as_ref).collect();
            with_numbers(&tensors, |inputs| {
                kernels.forward(GpuForward { gpu, inputs, ys: ys.cuda_numbers_mut()? })
            })
        })?,
    };
    let ys = Storage::Cuda(gpu.storage(ys)?);
    let saved = saved.map_or_else(|| PooledValues::F32(Pooled::none()), PooledValues::Gpu);
    let targets = inputs.iter().map(|input| GradientTarget::new(input.as_ref())).collect();
    node::attach(op, targets, inputs, shape, ys, saved)
}

impl Node {
    /// Returns the gradients that candle adds, by input. All other gradients are in their places.
    pub(super) fn backward_on_gpu(&self, mut dys: FlatTensor) -> Result<Vec<Option<Tensor>>> {
        let (Some(kernels), Some(gpu)) = (self.op.on_gpu(), self.gpu()) else {
            bail!("{}: a gradient on another device than the result", self.op.name())
        };
        let saved = match &self.saved {
            PooledValues::Gpu(saved) => Some(saved.cuda_numbers()?),
            _ => None,
        };
        let kept = self.kept.iter().map(Option::as_ref);
        let tensors: Vec<Option<&Tensor>> = kept.chain([self.output.get()]).collect();
        let variables: Vec<Option<TensorId>> =
            self.targets.iter().map(|target| target.as_ref()?.variable()).collect();
        pass::with_gpu_places(&variables, |places| {
            let places = self.targets.iter().zip(places);
            let gradients = places.enumerate().map(|(number, (target, place))| {
                let is_wide = place.is_some() && kernels.has_wide_gradient(number);
                let element = if is_wide { ElementType::F32 } else { dys.element_type() };
                GpuGradient::new(&gpu, element, target.as_ref(), place)
            });
            let mut gradients: Vec<GpuGradient<'_>> = gradients.collect::<Result<_>>()?;
            with_numbers(&tensors, |numbers| {
                let (ys, inputs) = numbers.split_last().expect("the result is among them");
                let grads =
                    gradients.iter_mut().map(GpuGradient::numbers).collect::<Result<_>>()?;
                let dys = dys.cuda_numbers_mut()?;
                let pass = GpuBackward { gpu: &gpu, inputs, ys: *ys, saved, dys, grads };
                profile::timed(ProfilePhase::Backward, self.op.name(), &self.output_dims, || {
                    kernels.backward(pass)
                })
            })?;
            gradients.into_iter().map(|gradient| gradient.finish(&gpu)).collect()
        })
    }

    fn gpu(&self) -> Option<Gpu> {
        let target = self.targets.iter().flatten().next()?;
        Gpu::from_device(target.graph_tensor().device())
    }
}

/// The memory for the gradient of an input, and its destination.
enum GpuGradient<'a> {
    Unwanted,
    /// The first gradient of a variable, which is written directly to its place.
    Straight(CudaSpanMut<'a>),
    /// Another gradient of a variable. It is added to its place, or replaces the contents.
    Placed {
        place: GradientPlace<CudaSpanMut<'a>>,
        values: FlatTensor,
    },
    Linked(&'a GradientInbox, FlatTensor),
    Candles(&'a Tensor, FlatTensor),
}

impl<'a> GpuGradient<'a> {
    /// A gradient that the operation writes in the type `element`.
    fn new(
        gpu: &Gpu,
        element: ElementType,
        target: Option<&'a GradientTarget>,
        place: Option<GradientPlace<CudaSpanMut<'a>>>,
    ) -> Result<Self> {
        let numbers = |len| gpu.numbers_of(element, len);
        Ok(match (target, place) {
            (None, _) => Self::Unwanted,
            (Some(GradientTarget::Link(link)), _) => {
                Self::Linked(&link.inbox, numbers(link.elements)?)
            }
            // Places are f32.
            (Some(GradientTarget::Tensor(_)), Some(GradientPlace { values, holds: false }))
                if element == ElementType::F32 =>
            {
                Self::Straight(values)
            }
            (Some(GradientTarget::Tensor(_)), Some(place)) => {
                let values = numbers(place.values.len())?;
                Self::Placed { place, values }
            }
            (Some(GradientTarget::Tensor(tensor)), None) => {
                Self::Candles(tensor, numbers(tensor.elem_count())?)
            }
        })
    }

    fn numbers(&mut self) -> Result<Option<CudaNumbersMut<'_>>> {
        Ok(match self {
            Self::Unwanted => None,
            Self::Straight(values) => Some(values.reborrow().into()),
            Self::Placed { values, .. } | Self::Linked(_, values) | Self::Candles(_, values) => {
                Some(values.cuda_numbers_mut()?)
            }
        })
    }

    fn finish(self, gpu: &Gpu) -> Result<Option<Tensor>> {
        match self {
            Self::Unwanted | Self::Straight(_) => Ok(None),
            Self::Placed { mut place, values } => {
                let numbers = values.cuda_numbers()?;
                if place.holds {
                    place.values.add_numbers(numbers)?;
                } else {
                    place.values.widen_from(numbers)?;
                }
                Ok(None)
            }
            Self::Linked(inbox, values) => {
                inbox.deliver_on_gpu(values)?;
                Ok(None)
            }
            Self::Candles(tensor, values) => {
                let storage = Storage::Cuda(gpu.storage(values)?);
                node::result(tensor, storage, tensor.shape().clone()).map(Some)
            }
        }
    }
}

/// The type of the numbers of a tensor that has kernels.
fn element_of(dtype: DType) -> ElementType {
    match dtype {
        DType::F16 => ElementType::F16,
        DType::BF16 => ElementType::Bf16,
        _ => ElementType::F32,
    }
}
