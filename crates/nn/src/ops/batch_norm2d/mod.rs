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
//! If replicas exchange statistics, `m`, `v`, `n` and both sums in `dx` are those of all replicas'
//! batches together. Forward and backward are then two passes over memory each, with the exchange
//! between the passes.

mod channel;
mod composite;
mod config;
mod line;
mod replicas;

pub use self::config::{BatchNormConfig, RunningStatistics};

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};

use self::config::NAME;
use self::line::{Line, Totals};
use super::activations;
use super::channel_planes::{ChannelPlanes, Planes};
use super::float::Float;
use super::fused::{self, Backward, Fused, OnGpu, Reads};
use super::moments::Moments;
use super::parallel::worth_threads;
use super::pool::Pooled;
use crate::{Activation, StatisticsExchange};

/// Normalises each channel, scales it by `weight` and adds `bias`.
///
/// In training, `running` (if given) moves towards the statistics of the batch:
/// `running = (1 - momentum) running + momentum batch`, with the unbiased variance. In evaluation,
/// the channels are normalised by `running`.
///
/// # Shapes
///
/// `xs` (N, C, H, W) or (N, C), `weight` and `bias` (C) -> the shape of `xs`.
///
/// # Errors
///
/// If shapes or dtypes do not fit together, the dtype is no float, `eps` is negative, a
/// channel has fewer than two values in training, or `running` is missing in evaluation.
pub fn batch_norm2d(
    xs: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    running: Option<&RunningStatistics>,
    config: BatchNormConfig,
) -> Result<Tensor> {
    normalise(xs, [weight, bias], running, config, None)
}

/// [`batch_norm2d`] by the statistics of the batches of all replicas, in training: PyTorch's
/// `SyncBatchNorm`. The batches of the replicas may differ in size and may be empty.
///
/// Forward and backward are one exchange each. The backward exchanges only if the input needs a
/// gradient. It computes the gradient of the sum of all replicas' losses by this replica's input,
/// and this replica's share of the gradients by `weight` and `bias`. A single replica gets the bits
/// of [`batch_norm2d`].
///
/// # Errors
///
/// Those of [`batch_norm2d`], where the limit of two values per channel holds for all batches
/// together, and those of the exchange.
pub fn sync_batch_norm2d(
    xs: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    running: Option<&RunningStatistics>,
    config: BatchNormConfig,
    exchange: &Arc<dyn StatisticsExchange>,
) -> Result<Tensor> {
    normalise(xs, [weight, bias], running, config, Some(exchange))
}

fn normalise(
    xs: &Tensor,
    [weight, bias]: [Option<&Tensor>; 2],
    running: Option<&RunningStatistics>,
    config: BatchNormConfig,
    exchange: Option<&Arc<dyn StatisticsExchange>>,
) -> Result<Tensor> {
    let (batch, channels, plane) = match *xs.dims() {
        [batch, channels] => (batch, channels, 1),
        [batch, channels, height, width] => (batch, channels, height * width),
        _ => bail!("{NAME}: input of shape {:?}, expected (N, C, H, W) or (N, C)", xs.shape()),
    };
    if config.eps.is_nan() || config.eps < 0.0 {
        bail!("{NAME}: eps {} is not a small positive number", config.eps);
    }
    let values = running.map(|running| (running.mean.value(), running.variance.value()));
    let (mean, variance) = values.as_ref().map(|(mean, variance)| (mean, variance)).unzip();
    let named = [
        ("weight", weight),
        ("bias", bias),
        ("running mean", mean),
        ("running variance", variance),
    ];
    for (name, tensor) in named {
        if let Some(tensor) = tensor.filter(|tensor| tensor.dims() != [channels]) {
            bail!("{NAME}: {name} of shape {:?} for {channels} channels", tensor.shape());
        }
    }
    let geometry = ChannelPlanes { batch, channels, plane };
    // With another activation fused, the backward would have to compute the activation again.
    let (rectifier, late) = match config.activation {
        Some(Activation::Relu) => (Some(Rectifier::Relu), None),
        Some(Activation::Relu6) => (Some(Rectifier::Relu6), None),
        other => (None, other),
    };
    let exchange = exchange.filter(|_| config.training).cloned();
    let op = BatchNorm2d { geometry, running: running.cloned(), rectifier, config, exchange };
    if config.training {
        if batch * plane < 2 && op.exchange.is_none() {
            bail!(
                "{NAME}: more than one value per channel is needed in training, the input is {:?}",
                xs.shape()
            );
        }
        let ys = fused::run(op, xs.shape(), &[Some(xs), weight, bias, None, None])?;
        return activations::apply(ys, late);
    }
    if running.is_none() {
        bail!("{NAME}: evaluation needs running statistics");
    }
    // Running statistics beside 16 bits are in f32. On a GPU candle cannot convert nothing.
    let widened = |tensor: &Tensor| match xs.elem_count() {
        0 => tensor.to_dtype(xs.dtype()),
        _ => fused::widen(tensor),
    };
    let wide = |tensor: Option<&Tensor>| tensor.map(widened).transpose();
    let inputs = [wide(Some(xs))?, wide(weight)?, wide(bias)?, wide(mean)?, wide(variance)?];
    let ys = fused::run(op, xs.shape(), &inputs.each_ref().map(Option::as_ref))?;
    activations::apply(ys.to_dtype(xs.dtype())?, late)
}

/// An activation whose derivative is 0 or 1, so that the backward needs only the sign of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rectifier {
    Relu,
    Relu6,
}

pub(super) struct BatchNorm2d {
    pub(super) geometry: ChannelPlanes,
    pub(super) running: Option<RunningStatistics>,
    /// The fused activation.
    pub(super) rectifier: Option<Rectifier>,
    pub(super) config: BatchNormConfig,
    /// Only set in training.
    pub(super) exchange: Option<Arc<dyn StatisticsExchange>>,
}

impl Fused for BatchNorm2d {
    const NAME: &'static str = NAME;

    fn reads(&self) -> Reads {
        Reads::inputs(&[0])
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, weight, bias, mean, variance] = inputs else { unreachable!("five inputs") };
        let all = self.moments_of_all(xs)?;
        if ys.is_empty() && all.is_none() {
            return Ok(Pooled::none());
        }
        let mut saved = Pooled::new(self.geometry.channels * Line::<T>::LEN);
        let line = |channel: usize, moments: Moments<T>| {
            let weight = weight.get(channel).copied().unwrap_or(T::one());
            let bias = bias.get(channel).copied().unwrap_or(T::zero());
            Line::new(moments, self.config.eps, weight, bias)
        };
        let known = |channel: usize| match &all {
            Some((_, moments)) => Some(moments[channel]),
            None if self.config.training => None,
            None => {
                let (shift, variance) = (mean[channel], variance[channel].widen());
                Some(Moments { shift, rest: 0.0, variance })
            }
        };
        let run = |channel: usize, ys: Planes<'_, '_, T>, saved: &mut [T]| {
            let line = |moments| line(channel, moments);
            self.forward_channel(xs, channel, ys, known(channel), line).save(saved);
        };
        let threads = worth_threads(ys.len());
        self.geometry.for_channels(threads, ys, &mut saved, Line::<T>::LEN, run);
        let count = all.map_or(self.geometry.count() as f64, |(count, _)| count);
        self.update_running(&saved, count)?;
        Ok(saved)
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let (dxs, dw, db) = (pass.grads.take(0), pass.grads.take(1), pass.grads.take(2));
        // The input's gradient needs the sums over all replicas.
        let exchange = self.exchange.as_ref().filter(|_| dxs.is_some());
        let (dxs_now, dxs_later) = if exchange.is_some() { (None, dxs) } else { (dxs, None) };
        let mut sums = Pooled::zeros(2 * self.geometry.channels);
        self.backward_channels(&pass, dxs_now, &mut sums, None);
        for (gradient, number) in [(dw, 0), (db, 1)] {
            let pairs = gradient.into_iter().flatten().zip(sums.chunks_exact(2));
            pairs.for_each(|(gradient, sums)| *gradient = T::narrow(sums[number]));
        }
        if let Some(exchange) = exchange {
            let all = replicas::all_sums(&**exchange, self.geometry.count(), &sums)?;
            self.backward_channels(&pass, dxs_later, &mut sums, Some(&all));
        }
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn OnGpu> {
        if self.has_kernels() { Some(self) } else { None }
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        self.by_candle(inputs)
    }
}

impl BatchNorm2d {
    /// The number of values per channel, and their moments by channel, over all replicas.
    fn moments_of_all<T: Float>(&self, xs: &[T]) -> Result<Option<(f64, Vec<Moments<T>>)>> {
        let Some(exchange) = &self.exchange else { return Ok(None) };
        let ChannelPlanes { channels, .. } = self.geometry;
        let mut own = Pooled::<f64>::zeros(channels * 3);
        let threads = worth_threads(xs.len());
        let run = |channel: usize, _: Planes<'_, '_, T>, own: &mut [f64]| {
            let Moments { shift, rest, variance } = self.moments(xs, channel);
            own.copy_from_slice(&[shift.widen(), rest, variance]);
        };
        self.geometry.for_channels(threads, &mut [], &mut own, 3, run);
        replicas::all_moments(&**exchange, self.geometry.count(), &own).map(Some)
    }

    /// Writes the sums of each channel and, if it has a place, the gradient of the input. Uses the
    /// sums of `all` replicas, or this replica's.
    fn backward_channels<T: Float>(
        &self,
        pass: &Backward<'_, T>,
        dxs: Option<&mut [T]>,
        sums: &mut [f64],
        all: Option<&(f64, Vec<f64>)>,
    ) {
        if pass.dys.is_empty() {
            return;
        }
        let wanted = dxs.is_some();
        let run = |channel: usize, dxs: Planes<'_, '_, T>, sums: &mut [f64]| {
            let line = Line::load(&pass.saved[channel * Line::<T>::LEN..]);
            let known = all.map(|(count, sums)| Totals {
                count: *count,
                dw: sums[2 * channel],
                db: sums[2 * channel + 1],
            });
            let pair = (pass.inputs[0], &*pass.dys);
            let dxs = wanted.then_some(dxs);
            let Totals { dw, db, .. } = self.backward_channel(pair, channel, dxs, line, known);
            sums.copy_from_slice(&[dw, db]);
        };
        let threads = worth_threads(pass.dys.len());
        self.geometry.for_channels(threads, dxs.unwrap_or_default(), sums, 2, run);
    }

    /// In training, moves the running statistics towards those of a batch with `count` values per
    /// channel.
    fn update_running<T: Float>(&self, saved: &[T], count: f64) -> Result<()> {
        let BatchNormConfig { training: true, momentum, .. } = self.config else { return Ok(()) };
        let Some(running) = &self.running else { return Ok(()) };
        let line = |channel: usize| Line::load(&saved[channel * Line::<T>::LEN..]);
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
