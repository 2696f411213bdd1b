//! The cross entropy on a GPU.

use candelabrum_memory::FlatTensor;
use candelabrum_memory::cuda::{KernelArg, Kernels, LaunchGrid};
use candle_core::{Result, bail};

use super::{SoftmaxCrossEntropy, Targets};
use crate::autograd::fused::{GpuBackward, GpuForward, GpuKernels};
use crate::ops::gpu::indices::with_indices;
use crate::ops::gpu::launch::launch;
use crate::ops::gpu::rows::GpuRows;

const KERNELS: Kernels = Kernels {
    name: "cross_entropy",
    text: concat!(
        include_str!("../gpu/rows.cu"),
        include_str!("../gpu/indices.cu"),
        include_str!("cross_entropy.cu")
    ),
};

impl SoftmaxCrossEntropy {
    /// Calls `f` with the arguments by which the kernels know the targets' labels: the labels, the
    /// size of one, whether a label is ignored, and which.
    fn with_labels<R>(&self, f: impl FnOnce([KernelArg<'_>; 4]) -> Result<R>) -> Result<R> {
        let (labels, ignored) = match &self.targets {
            Targets::Probabilities => {
                return f([KernelArg::Nothing, 1_usize.into(), 0_usize.into(), 0_usize.into()]);
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
    fn shares(&self) -> [f32; 2] {
        [(1.0 - self.smoothing) as f32, (self.smoothing / self.classes as f64) as f32]
    }
}

impl GpuKernels for SoftmaxCrossEntropy {
    fn forward(&self, pass: GpuForward<'_>) -> Result<Option<FlatTensor>> {
        let GpuForward { gpu, inputs, ys: mut loss } = pass;
        let &[Some(logits), probabilities] = inputs else { unreachable!("logits") };
        let (number, batch, classes) =
            (logits.element_type(), logits.len() / self.classes, self.classes);
        let rows = GpuRows::new(batch, classes);
        let mut saved = gpu.numbers(3 * batch + 1)?;
        self.with_labels(|labels| {
            let mut saved = saved.span_mut()?.cuda()?;
            launch!(gpu, number, KERNELS, "losses", rows.grid;
                &mut saved, logits, probabilities, ..labels, classes, ..self.shares(), rows.width
            )?;
            let grid = LaunchGrid::one_block(batch);
            launch!(gpu, number, KERNELS, "mean_loss", grid; &mut loss, &mut saved, ..labels)
        })?;
        Ok(Some(saved))
    }

    fn backward(&self, mut pass: GpuBackward<'_>) -> Result<()> {
        self.tell_pass();
        let Some(mut dlogits) = pass.grads[0].take() else { return Ok(()) };
        let (number, dloss, classes) =
            (dlogits.element_type(), pass.dys.as_numbers(), self.classes);
        let (inputs, smoothing) = ([pass.inputs[0], pass.inputs[1]], self.smoothing as f32);
        let rows = GpuRows::new(dlogits.len() / classes, classes);
        self.with_labels(|labels| {
            launch!(pass.gpu, number, KERNELS, "loss_gradient", rows.grid;
                &mut dlogits, dloss, ..inputs, ..labels, pass.saved, classes, ..self.shares(), smoothing, rows.width
            )
        })
    }
}
