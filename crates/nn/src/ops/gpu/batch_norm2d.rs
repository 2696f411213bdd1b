//! Batch normalisation on a GPU, without an exchange of statistics.
//!
//! The sums over a channel are those of `moments.rs`: two passes over the values, a few numbers at a
//! time in f32, and their sums in f64. The running statistics move on the GPU, so the host does not
//! wait.

use candelabrum_memory::Flat;
use candelabrum_memory::cuda::{
    Arg, CudaNumbers, CudaNumbersMut, CudaSpan, CudaSpanMut, Gpu, Grid, Kernels,
};
use candle_core::{DType, Result, bail};

use super::channels::Channels;
use crate::ops::batch_norm2d::BatchNorm2d;
use crate::ops::channel_line::Rectifier;
use crate::ops::fused::{GpuBackward, OnGpu};

const KERNELS: Kernels = Kernels {
    name: "batch_norm2d",
    text: concat!(include_str!("channels.cu"), include_str!("batch_norm2d.cu")),
};

/// `LINE` in batch_norm2d.cu.
const LINE: usize = 6;

impl BatchNorm2d {
    /// Whether the kernels can compute it: without replicas, and with running statistics in f32 on a
    /// GPU.
    pub(in crate::ops) fn has_kernels(&self) -> bool {
        let fits = |buffer: &crate::Buffer| {
            let value = buffer.value();
            value.dtype() == DType::F32 && value.device().is_cuda()
        };
        let running = self.running.as_ref();
        self.exchange.is_none() && running.is_none_or(|r| fits(&r.mean) && fits(&r.variance))
    }

    fn sizes(&self) -> Channels {
        let geometry = self.geometry;
        Channels { batch: geometry.batch, channels: geometry.channels, plane: geometry.plane }
    }

    /// The lines by the statistics of the batch.
    fn lines_of_batch(
        &self,
        gpu: &Gpu,
        xs: CudaNumbers<'_>,
        mut lines: CudaSpanMut<'_>,
        [weight, bias]: [Option<CudaNumbers<'_>>; 2],
    ) -> Result<()> {
        let (number, sizes) = (xs.element_type(), self.sizes());
        let mut sums = sizes.partials(gpu, 1)?;
        {
            let mut sums = sums.span_mut()?.cuda()?;
            let args = sizes.with_sizes(&[(&mut sums).into(), xs.into()]);
            gpu.launch_for(number, KERNELS, "sum_slices", sizes.grid(), &args)?;
        }
        let sums = sums.span()?.cuda()?;
        let mut deviations = sizes.partials(gpu, 2)?;
        {
            let mut deviations = deviations.span_mut()?.cuda()?;
            let args = sizes.with_sizes(&[(&mut deviations).into(), xs.into(), sums.into()]);
            gpu.launch_for(number, KERNELS, "deviations", sizes.grid(), &args)?;
        }
        let args = [
            (&mut lines).into(),
            sums.into(),
            deviations.span()?.cuda()?.into(),
            weight.into(),
            bias.into(),
            self.config.eps.into(),
            sizes.count().into(),
            sizes.slices().into(),
        ];
        Ok(gpu.launch_for(
            number,
            KERNELS,
            "lines_of_batch",
            Grid::for_each(sizes.channels),
            &args,
        )?)
    }

    /// Moves the running statistics towards those of the batch.
    fn move_running(&self, gpu: &Gpu, lines: CudaSpan<'_>) -> Result<()> {
        let Some(running) = &self.running else { return Ok(()) };
        let count = self.geometry.count() as f64;
        for (buffer, unbiased) in [(&running.mean, 0.0), (&running.variance, count / (count - 1.0))]
        {
            buffer.update_on_gpu(|mut values| {
                let grid = Grid::for_each(values.len());
                let momentum = Arg::from(self.config.momentum);
                let args = [(&mut values).into(), lines.into(), momentum, unbiased.into()];
                Ok(gpu.launch(KERNELS, "move_running", grid, &args)?)
            })?;
        }
        Ok(())
    }
}

/// A gradient, if it is wanted.
type Wanted<'a> = Option<CudaNumbersMut<'a>>;

impl OnGpu for BatchNorm2d {
    fn forward(
        &self,
        gpu: &Gpu,
        inputs: &[Option<CudaNumbers<'_>>],
        mut ys: CudaNumbersMut<'_>,
    ) -> Result<Option<Flat>> {
        let &[Some(xs), weight, bias, mean, variance, None] = inputs else {
            bail!("batch_norm2d: an input is missing, this is a bug")
        };
        let (number, sizes) = (xs.element_type(), self.sizes());
        let mut saved = gpu.numbers(sizes.channels * LINE)?;
        let mut lines = saved.span_mut()?.cuda()?;
        if self.config.training {
            self.lines_of_batch(gpu, xs, lines.reborrow(), [weight, bias])?;
            self.move_running(gpu, lines.as_span())?;
        } else {
            let statistics = [mean, variance, weight, bias].map(Arg::from);
            let mut args = vec![(&mut lines).into()];
            args.extend(statistics);
            args.push(self.config.eps.into());
            gpu.launch_for(
                number,
                KERNELS,
                "lines_of_running",
                Grid::for_each(sizes.channels),
                &args,
            )?;
        }
        let rectifier = rectifier_number(self.rectifier);
        let args = [(&mut ys).into(), xs.into(), lines.as_span().into(), rectifier.into()];
        gpu.launch_for(number, KERNELS, "normalise", sizes.grid(), &sizes.with_sizes(&args))?;
        Ok(Some(saved))
    }

    fn backward(&self, pass: GpuBackward<'_>) -> Result<()> {
        let GpuBackward { gpu, inputs, saved, dys, mut grads, .. } = pass;
        let (Some(xs), Some(lines)) = (inputs[0], saved) else {
            bail!("batch_norm2d: an input is missing, this is a bug")
        };
        let (sizes, dys) = (self.sizes(), dys.as_numbers());
        let number = dys.element_type();
        let rectifier = Arg::from(rectifier_number(self.rectifier));
        let (dxs, dw, db) = (grads[0].take(), grads[1].take(), grads[2].take());

        let mut factors = None;
        if self.config.training || dw.is_some() || db.is_some() {
            let mut partials = sizes.partials(gpu, 2)?;
            {
                let mut partials = partials.span_mut()?.cuda()?;
                let args = [(&mut partials).into(), xs.into(), dys.into(), lines.into(), rectifier];
                let args = sizes.with_sizes(&args);
                gpu.launch_for(number, KERNELS, "gradient_sums", sizes.grid(), &args)?;
            }
            if self.config.training {
                factors = Some(gpu.numbers(2 * sizes.channels)?);
            }
            let partials = partials.span()?.cuda()?;
            let launch = |dw: Wanted<'_>, db: Wanted<'_>, factors: Option<&mut CudaSpanMut<'_>>| {
                let first = dw.as_ref().or(db.as_ref());
                let number = first.map_or(number, CudaNumbersMut::element_type);
                let (mut dw, mut db) = (dw, db);
                let places = [dw.as_mut().into(), db.as_mut().into(), factors.into()];
                let sums = [partials.into(), lines.into()];
                let counts = [sizes.count().into(), sizes.slices().into()];
                let args = [&places[..], &sums, &counts].concat();
                gpu.launch_for(number, KERNELS, "totals", Grid::for_each(sizes.channels), &args)
            };
            let mut places = factors.as_mut().map(|flat| flat.span_mut()?.cuda()).transpose()?;
            let type_of = |wanted: &Wanted<'_>| wanted.as_ref().map(CudaNumbersMut::element_type);
            if type_of(&dw).zip(type_of(&db)).is_none_or(|(dw, db)| dw == db) {
                launch(dw, db, places.as_mut())?;
            } else {
                launch(dw, None, places.as_mut())?;
                launch(None, db, None)?;
            }
        }
        let Some(mut dxs) = dxs else { return Ok(()) };
        let factors = factors.as_ref().map(|flat| flat.span()?.cuda()).transpose()?;
        let first =
            [(&mut dxs).into(), xs.into(), dys.into(), lines.into(), factors.into(), rectifier];
        Ok(gpu.launch_for(
            number,
            KERNELS,
            "differentiate",
            sizes.grid(),
            &sizes.with_sizes(&first),
        )?)
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
