//! Softmax, its logarithm and the cross entropy on a GPU.

use candelabrum_memory::Flat;
use candelabrum_memory::cuda::{Arg, CudaNumbers, CudaNumbersMut, Gpu, Grid, Kernels};
use candle_core::{Result, bail};

use super::indices::with_indices;
use super::rows::GpuRows;
use crate::autograd::fused::{GpuBackward, OnGpu};
use crate::ops::cross_entropy::{SoftmaxCrossEntropy, Targets};
use crate::ops::softmax::SoftmaxOp;

const KERNELS: Kernels = Kernels {
    name: "softmax",
    text: concat!(include_str!("rows.cu"), include_str!("indices.cu"), include_str!("softmax.cu")),
};

impl<const LOG: bool> OnGpu for SoftmaxOp<LOG> {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        mut ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        let number = ys.element_type();
        let rows = GpuRows::new(ys.len() / self.classes.max(1), self.classes);
        let sizes = [self.classes, usize::from(LOG), rows.width].map(Arg::from);
        let args = [&[(&mut ys).into(), inputs[0].into()], &sizes[..]].concat();
        gpu.launch_for(number, KERNELS, "softmax", rows.grid, &args)?;
        Ok(None)
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        let Some(mut dxs) = pass.grads[0].take() else { return Ok(()) };
        let number = dxs.element_type();
        let rows = GpuRows::new(dxs.len() / self.classes.max(1), self.classes);
        let sizes = [self.classes, usize::from(LOG), rows.width].map(Arg::from);
        let numbers = [(&mut dxs).into(), pass.dys.as_numbers().into(), pass.ys.into()];
        let args = [&numbers, &sizes[..]].concat();
        Ok(pass.gpu.launch_for(number, KERNELS, "softmax_gradient", rows.grid, &args)?)
    }
}

impl SoftmaxCrossEntropy {
    /// Calls `f` with the arguments by which the kernels know the targets' labels: the labels, the
    /// size of one, whether a label is ignored, and which.
    fn with_labels<R>(&self, f: impl FnOnce([Arg<'_>; 4]) -> Result<R>) -> Result<R> {
        let (labels, ignored) = match &self.targets {
            Targets::Probabilities => {
                let [size, ignores, ignored] = [1_usize, 0, 0].map(Arg::from);
                return f([None::<CudaNumbers<'_>>.into(), size, ignores, ignored]);
            }
            Targets::OnDevice { labels, ignored } => (labels, ignored),
            Targets::Checked { .. } => bail!("labels on the host for a GPU, this is a bug"),
        };
        with_indices(labels, |labels| {
            let ignores = usize::from(ignored.is_some());
            let ignored = ignored.unwrap_or_default().cast_unsigned();
            f([labels.into(), labels.element_size().into(), ignores.into(), ignored.into()])
        })
    }

    /// `1 - smoothing`, and the share of the smoothing for every class.
    fn shares(&self) -> [Arg<'static>; 2] {
        let (kept, even) = (1.0 - self.smoothing, self.smoothing / self.classes as f64);
        [(kept as f32).into(), (even as f32).into()]
    }
}

impl OnGpu for SoftmaxCrossEntropy {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        mut loss: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        let &[Some(logits), probabilities] = inputs else { bail!("cross entropy: no logits") };
        let (number, batch) = (logits.element_type(), logits.len() / self.classes);
        let rows = GpuRows::new(batch, self.classes);
        let mut saved = gpu.numbers(3 * batch + 1)?;
        self.with_labels(|labels| {
            let mut saved = saved.span_mut()?.cuda()?;
            let numbers = [(&mut saved).into(), logits.into(), probabilities.into()];
            let classes = [self.classes.into()];
            let args = [&numbers, &labels[..], &classes, &self.shares(), &[rows.width.into()]];
            gpu.launch_for(number, KERNELS, "losses", rows.grid, &args.concat())?;
            let numbers = [(&mut loss).into(), (&mut saved).into()];
            let args = [&numbers, &labels[..]].concat();
            Ok(gpu.launch_for(number, KERNELS, "mean_loss", Grid::one_block(batch), &args)?)
        })?;
        Ok(Some(saved))
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        self.tell_pass();
        let Some(mut dlogits) = pass.grads[0].take() else { return Ok(()) };
        let number = dlogits.element_type();
        let rows = GpuRows::new(dlogits.len() / self.classes, self.classes);
        self.with_labels(|labels| {
            let numbers = [(&mut dlogits).into(), pass.dys.as_numbers().into()];
            let inputs = [pass.inputs[0].into(), pass.inputs[1].into()];
            let sizes = [pass.saved.into(), self.classes.into()];
            let rest = [(self.smoothing as f32).into(), rows.width.into()];
            let args = [&numbers, &inputs, &labels[..], &sizes, &self.shares(), &rest].concat();
            Ok(pass.gpu.launch_for(number, KERNELS, "loss_gradient", rows.grid, &args)?)
        })
    }
}
