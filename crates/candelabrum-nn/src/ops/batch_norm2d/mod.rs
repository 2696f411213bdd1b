//! Batch normalisation with scale, shift and activation in one operation (Ioffe and Szegedy,
//! ICML 2015, arXiv:1502.03167).
//!
//! Per channel, over the `n = N H W` values of a batch:
//!
//! ```text
//! forward    m = mean(x)   v = mean((x - m)^2)   r = 1 / sqrt(v + eps)   h = (x - m) r
//!            y = act(w h + b)
//! backward   dz = dy act'(z)   db = sum(dz)   dw = sum(dz h)
//!            dx = w r (dz - db / n - h dw / n)      by running statistics: dx = w r dz
//! ```
//!
//! Each channel is processed while it is in the cache, so forward and backward are one pass over
//! memory each: forward reads `x` and writes `y`, backward reads `x` and `dy` and writes `dx`. Only
//! five numbers per channel are saved. The backward computes `z` again, with the same bits, to find
//! the mask of the activation.
//!
//! A residual `s` is added before the activation, `y = act(w h + b + s)`. The backward then finds the mask of
//! the activation from `y`, and the residual's gradient is `dz`, which takes the memory of `dy`.
//!
//! If replicas exchange statistics, `m`, `v`, `n` and both sums in `dx` are those of all replicas'
//! batches together. Forward and backward are then two passes over memory each, with the exchange
//! between the passes.

mod arguments;
mod channel;
mod composite;
mod config;
mod convolution;
mod gpu;
mod replicas;
mod totals;

pub(crate) use self::arguments::normalise;
pub use self::arguments::{BatchNorm, batch_norm2d, batch_norm2d_add, sync_batch_norm2d};
pub use self::config::{BatchNormConfig, RunningStatistics};
pub use self::convolution::batch_norm2d_conv2d;

use std::sync::Arc;

use candle_core::{Result, Tensor};

use self::config::NAME;
use self::totals::Totals;
use crate::autograd::fused::{Backward, BackwardReads, FusedOp, GpuKernels};
use crate::kernels::channel_line::{ChannelLine, Rectifier};
use crate::kernels::channel_planes::{ChannelPlanes, Planes};
use crate::kernels::float::Float;
use crate::kernels::moments::Moments;
use crate::kernels::parallel::{in_blocks, worth_threads};
use crate::kernels::scratch::Pooled;
use crate::{Activation, StatisticsExchange};

/// The number of the residual among the inputs.
const RESIDUAL: usize = 5;

/// What the forward of a channel reads.
#[derive(Clone, Copy)]
struct ChannelInputs<'a, T> {
    xs: &'a [T],
    /// Empty if there is none.
    residual: &'a [T],
    channel: usize,
}

/// Where the backward writes the gradient of the input.
#[derive(Clone, Copy)]
enum GradientDestination<P> {
    Nowhere,
    /// Over the gradient of the result.
    Dys,
    Place(P),
}

impl<P> GradientDestination<P> {
    /// The same with another place.
    fn with<Q>(&self, place: Q) -> GradientDestination<Q> {
        match self {
            Self::Nowhere => GradientDestination::Nowhere,
            Self::Dys => GradientDestination::Dys,
            Self::Place(_) => GradientDestination::Place(place),
        }
    }
}

/// What the backward of a channel reads beside the gradient of the result.
#[derive(Clone, Copy)]
struct ChannelValues<'a, T> {
    xs: &'a [T],
    /// The result, if the mask of the activation is found from it.
    ys: &'a [T],
    channel: usize,
}

pub(super) struct BatchNorm2dOp {
    pub(super) geometry: ChannelPlanes,
    pub(super) running: Option<RunningStatistics>,
    /// The fused activation.
    pub(super) rectifier: Option<Rectifier>,
    /// Whether a residual is added before the activation.
    pub(super) has_residual: bool,
    pub(super) config: BatchNormConfig,
    /// Only set in training.
    pub(super) exchange: Option<Arc<dyn StatisticsExchange>>,
}

impl FusedOp for BatchNorm2dOp {
    const NAME: &'static str = NAME;

    fn reads(&self) -> BackwardReads {
        // With a residual, the mask of the activation is found from the result.
        BackwardReads::inputs(&[0]).and_output(self.has_residual && self.rectifier.is_some())
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let (xs, residual) = (inputs[0], inputs[RESIDUAL]);
        self.lines(inputs, [ys], |channel, [ys], known, line| {
            let from = ChannelInputs { xs, residual, channel };
            self.forward_channel(from, ys, known, line)
        })
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let (dxs, dw, db) = (pass.grads.take(0), pass.grads.take(1), pass.grads.take(2));
        let to = match dxs {
            Some(dxs) => GradientDestination::Place(dxs),
            None if pass.is_passed && !self.has_residual => GradientDestination::Dys,
            None => GradientDestination::Nowhere,
        };
        // The input's gradient needs the sums over all replicas.
        let exchange =
            self.exchange.as_ref().filter(|_| !matches!(to, GradientDestination::Nowhere));
        let (now, later) = if exchange.is_some() {
            (GradientDestination::Nowhere, to)
        } else {
            (to, GradientDestination::Nowhere)
        };
        let mut sums = Pooled::zeros(2 * self.geometry.channels);
        self.backward_channels(&mut pass, now, &mut sums, None);
        for (gradient, number) in [(dw, 0), (db, 1)] {
            let pairs = gradient.into_iter().flatten().zip(sums.chunks_exact(2));
            pairs.for_each(|(gradient, sums)| *gradient = T::narrow(sums[number]));
        }
        if let Some(exchange) = exchange {
            let all = replicas::all_sums(&**exchange, self.geometry.count(), &sums)?;
            self.backward_channels(&mut pass, later, &mut sums, Some(&all));
        }
        if let Some(residual) = pass.grads.take(RESIDUAL) {
            let dys = &*pass.dys;
            in_blocks(residual, |start, to| to.copy_from_slice(&dys[start..][..to.len()]));
        }
        Ok(())
    }

    /// The gradient of the residual is that of the result before the activation. Without a residual, the
    /// gradient of the input takes the place of that of the result.
    fn passes_gradient_to(&self) -> Option<usize> {
        Some(if self.has_residual { RESIDUAL } else { 0 })
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        if self.has_kernels() { Some(self) } else { None }
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        self.by_candle(inputs)
    }

    fn has_effects(&self) -> bool {
        self.exchange.is_some()
    }
}

impl BatchNorm2dOp {
    /// The fused activation.
    fn activation(&self) -> Option<Activation> {
        self.config.activation.filter(|_| self.rectifier.is_some())
    }

    /// The function of each channel, [saved](Line::save), without a result. Moves the running statistics.
    fn lines_alone<T: Float>(&self, inputs: &[&[T]]) -> Result<Pooled<T>> {
        self.lines(inputs, [], |channel, [], known, line| {
            line(known.unwrap_or_else(|| self.moments(inputs[0], channel)))
        })
    }

    /// The function of each channel, saved. `f` computes that of one channel from the known moments, or from
    /// its own, and may write the channel's planes of the `outputs`. Moves the running statistics.
    fn lines<T: Float, const N: usize>(
        &self,
        inputs: &[&[T]],
        outputs: [&mut [T]; N],
        f: impl Fn(
            usize,
            [Planes<'_, '_, T>; N],
            Option<Moments<T>>,
            &dyn Fn(Moments<T>) -> ChannelLine<T>,
        ) -> ChannelLine<T>
        + Sync,
    ) -> Result<Pooled<T>> {
        let &[xs, weight, bias, mean, variance, ..] = inputs else { unreachable!("five inputs") };
        let all = self.moments_of_all(xs)?;
        if xs.is_empty() && all.is_none() {
            return Ok(Pooled::none());
        }
        let mut saved = Pooled::new(self.geometry.channels * ChannelLine::<T>::LEN);
        let known = |channel: usize| match &all {
            Some((_, moments)) => Some(moments[channel]),
            None if self.config.training => None,
            None => {
                let (shift, variance) = (mean[channel], variance[channel].widen());
                Some(Moments { shift, rest: 0.0, variance })
            }
        };
        let run = |channel: usize, outputs: [Planes<'_, '_, T>; N], saved: &mut [T]| {
            let weight = weight.get(channel).copied().unwrap_or(T::one());
            let bias = bias.get(channel).copied().unwrap_or(T::zero());
            let line = |moments| ChannelLine::new(moments, self.config.eps, weight, bias);
            f(channel, outputs, known(channel), &line).save(saved);
        };
        let threads = worth_threads(xs.len());
        self.geometry.for_channels(threads, outputs, &mut saved, ChannelLine::<T>::LEN, run);
        let count = all.map_or(self.geometry.count() as f64, |(count, _)| count);
        self.update_running(&saved, count)?;
        Ok(saved)
    }

    /// The number of values per channel, and their moments by channel, over all replicas.
    fn moments_of_all<T: Float>(&self, xs: &[T]) -> Result<Option<(f64, Vec<Moments<T>>)>> {
        let Some(exchange) = &self.exchange else { return Ok(None) };
        let ChannelPlanes { channels, .. } = self.geometry;
        let mut own = Pooled::<f64>::zeros(channels * 3);
        let threads = worth_threads(xs.len());
        let run = |channel: usize, []: [Planes<'_, '_, T>; 0], own: &mut [f64]| {
            let Moments { shift, rest, variance } = self.moments(xs, channel);
            own.copy_from_slice(&[shift.widen(), rest, variance]);
        };
        self.geometry.for_channels(threads, [], &mut own, 3, run);
        replicas::all_moments(&**exchange, self.geometry.count(), &own).map(Some)
    }

    /// Writes the sums of each channel and the gradient of the input. Uses the sums of `all` replicas, or this
    /// replica's. With a residual, replaces the gradient of the result by that before the activation.
    fn backward_channels<T: Float>(
        &self,
        pass: &mut Backward<'_, T>,
        to: GradientDestination<&mut [T]>,
        sums: &mut [f64],
        all: Option<&(f64, Vec<f64>)>,
    ) {
        if pass.dys.is_empty() {
            return;
        }
        let kind = to.with(());
        let (xs, ys, saved) = (pass.inputs[0], pass.ys, pass.saved);
        let run = |channel: usize, [dxs, dys]: [Planes<'_, '_, T>; 2], sums: &mut [f64]| {
            let line = ChannelLine::load(&saved[channel * ChannelLine::<T>::LEN..]);
            let known = all.map(|(count, sums)| Totals {
                count: *count,
                dw: sums[2 * channel],
                db: sums[2 * channel + 1],
            });
            let from = ChannelValues { xs, ys, channel };
            let to = kind.with(dxs);
            let Totals { dw, db, .. } = self.backward_channel(from, dys, to, line, known);
            sums.copy_from_slice(&[dw, db]);
        };
        let threads = worth_threads(pass.dys.len());
        let dxs = if let GradientDestination::Place(dxs) = to { dxs } else { &mut [] };
        self.geometry.for_channels(threads, [dxs, &mut *pass.dys], sums, 2, run);
    }

    /// In training, moves the running statistics towards those of a batch with `count` values per
    /// channel.
    fn update_running<T: Float>(&self, saved: &[T], count: f64) -> Result<()> {
        let BatchNormConfig { training: true, momentum, .. } = self.config else { return Ok(()) };
        let Some(running) = &self.running else { return Ok(()) };
        let line = |channel: usize| ChannelLine::load(&saved[channel * ChannelLine::<T>::LEN..]);
        let towards = |old: f64, new: f64| old + momentum * (new - old);
        running.mean.update_in_place(|channel, old| {
            towards(old, line(channel).shift.widen() + line(channel).rest.widen())
        })?;
        running.variance.update_in_place(|channel, old| {
            towards(old, line(channel).variance.widen() * (count / (count - 1.0)))
        })?;
        Ok(())
    }
}
