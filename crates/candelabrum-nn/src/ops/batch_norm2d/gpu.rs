//! Batch normalisation on a GPU, without an exchange of statistics: two kernels forward and two backward.
//!
//! The sums over a channel are computed in f32, a few numbers at a time, and their sums in f64. The running
//! statistics move on the GPU, so the host does not wait.

use candelabrum_memory::FlatTensor;
use candelabrum_memory::cuda::{
    CudaNumbers, CudaNumbersMut, CudaSpanMut, Gpu, KernelArg, Kernels, Scratch,
};
use candle_core::{DType, Result};

use super::BatchNorm2dOp;
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::autograd::recomputing;
use crate::kernels::channel_line::Rectifier;
use crate::ops::gpu::channels::Channels;
use crate::ops::gpu::gradient::places;
use crate::ops::gpu::launch::launch;
use crate::params::update_on_gpu;

const KERNELS: Kernels = Kernels {
    name: "batch_norm2d",
    text: concat!(
        include_str!("../gpu/packs.cu"),
        include_str!("../gpu/gradient.cu"),
        include_str!("../gpu/channels.cu"),
        include_str!("batch_norm2d.cu")
    ),
};

/// `LINE` in batch_norm2d.cu.
const LINE: usize = 6;

/// The kernels count the values of a channel in 32 bits.
const MOST_VALUES: usize = i32::MAX as usize;

impl BatchNorm2dOp {
    /// Whether the kernels can compute it: without replicas, and with running statistics in f32 on a
    /// GPU.
    pub(crate) fn has_kernels(&self) -> bool {
        let fits = |buffer: &crate::Buffer| {
            let value = buffer.value();
            value.dtype() == DType::F32 && value.device().is_cuda()
        };
        let running = self.running.as_ref();
        let running_fit = running.is_none_or(|r| fits(&r.mean) && fits(&r.variance));
        self.exchange.is_none() && running_fit && self.geometry.count() <= MOST_VALUES
    }

    fn channels(&self) -> Channels {
        let geometry = self.geometry;
        Channels { batch: geometry.batch, channels: geometry.channels, plane: geometry.plane }
    }

    /// The sums over the slices of the batch: two numbers each.
    fn statistics(&self, gpu: &Gpu, xs: CudaNumbers<'_>) -> Result<Scratch> {
        let (channels, number) = (self.channels(), xs.element_type());
        let mut partials = channels.partials(gpu, 2)?;
        let (sizes, packs) = (channels.sizes(), channels.packs(&[Some(xs)]));
        launch!(gpu, number, KERNELS, "statistics", channels.grid(); &mut partials.span_mut(), xs, ..sizes, packs)?;
        Ok(partials)
    }

    /// Normalises by these statistics, and writes the line of each channel.
    fn launch_normalise(
        &self,
        gpu: &Gpu,
        (xs, ys): (CudaNumbers<'_>, &mut CudaNumbersMut<'_>),
        mut lines: CudaSpanMut<'_>,
        statistics: [KernelArg<'_>; 5],
        running: [KernelArg<'_>; 4],
    ) -> Result<()> {
        let (number, channels) = (xs.element_type(), self.channels());
        let packs = channels.packs(&[Some(xs), Some(ys.as_numbers())]);
        let (eps, momentum, rectifier) =
            (self.config.eps, self.config.momentum, rectifier_number(self.rectifier));
        launch!(gpu, number, KERNELS, "normalise", channels.grid();
            ys, xs, &mut lines, ..statistics, ..running, eps, momentum, rectifier, ..channels.sizes(), packs
        )
    }
}

impl GpuKernels for BatchNorm2dOp {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        let GpuForward { gpu, inputs, mut ys } = pass;
        let &[Some(xs), weight, bias, mean, variance, None] = inputs else {
            unreachable!("images and statistics, without a residual")
        };
        let mut saved = gpu.numbers(self.channels().channels * LINE)?;
        let lines = saved.span_mut()?.cuda()?;
        let (weight, bias, numbers) =
            (KernelArg::from(weight), KernelArg::from(bias), (xs, &mut ys));
        if !self.config.training {
            let statistics = [KernelArg::Nothing, mean.into(), variance.into(), weight, bias];
            self.launch_normalise(gpu, numbers, lines, statistics, [KernelArg::Nothing; 4])?;
            return Ok(Some(saved));
        }
        let partials = self.statistics(gpu, xs)?;
        let sums = partials.span().into();
        let statistics = [sums, KernelArg::Nothing, KernelArg::Nothing, weight, bias];
        // The kernel that normalises also moves the running statistics, but not a second time in a step.
        match self.running.as_ref().filter(|_| !recomputing::is_active()) {
            Some(running) => {
                update_on_gpu([&running.mean, &running.variance], |mut values, mut before| {
                    let [mean, variance] = values.each_mut().map(KernelArg::from);
                    let [mean_before, variance_before] =
                        before.each_mut().map(|place| place.as_mut().into());
                    let running = [mean, variance, mean_before, variance_before];
                    self.launch_normalise(gpu, numbers, lines, statistics, running)
                })?;
            }
            None => {
                self.launch_normalise(gpu, numbers, lines, statistics, [KernelArg::Nothing; 4])?;
            }
        }
        Ok(Some(saved))
    }

    fn backward(&self, pass: GpuBackward<'_>) -> Result<()> {
        let GpuBackward { gpu, inputs, saved, dys, mut grads, .. } = pass;
        let (channels, xs, dys) = (self.channels(), inputs[0], dys.as_numbers());
        let (number, sizes, grid) = (dys.element_type(), channels.sizes(), channels.grid());
        let rectifier = rectifier_number(self.rectifier);
        let (mut dxs, mut dw, mut db) = (grads[0].take(), grads[1].take(), grads[2].take());
        if dys.is_empty() {
            // There is no slice, so no kernel would write.
            return [dw, db].iter_mut().flatten().try_for_each(|sum| Ok(sum.clear()?));
        }
        let mut partials = None;
        if self.config.training || dw.is_some() || db.is_some() {
            let partials = partials.insert(channels.partials(gpu, 2)?);
            let packs = channels.packs(&[xs, Some(dys)]);
            launch!(gpu, number, KERNELS, "gradient_sums", grid;
                &mut partials.span_mut(), xs, dys, saved, rectifier, ..sizes, packs
            )?;
        }
        let packs = channels.packs(&[xs, Some(dys), dxs.as_ref().map(CudaNumbersMut::as_numbers)]);
        let (dw, db, partials) =
            (places(dw.as_mut()), places(db.as_mut()), partials.as_ref().map(Scratch::span));
        let training = usize::from(self.config.training);
        launch!(gpu, number, KERNELS, "differentiate", grid;
            dxs.as_mut(), ..dw, ..db, xs, dys, saved, partials, training, rectifier, ..sizes, packs
        )
    }

    fn has_wide_gradient(&self, input: usize) -> bool {
        input > 0
    }
}

/// The number of the activation in the kernels.
fn rectifier_number(rectifier: Option<Rectifier>) -> usize {
    match rectifier {
        None => 0,
        Some(Rectifier::Relu) => 1,
        Some(Rectifier::Relu6) => 2,
    }
}
