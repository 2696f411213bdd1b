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
//! A channel is worked on from beginning to end while it is in the cache, so that each way there is
//! one pass over memory: forward reads `x` and writes `y`, backward reads `x` and `dy` and writes
//! `dx`. Only five numbers per channel are saved; the backward finds the mask of the activation by
//! computing `z` again, which gives the same bits.

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use super::activations;
use super::elementwise::rectified;
use super::float::Float;
use super::fused::{self, Backward, Fused, Pooled, Reads};
use super::moments::{Moments, Sums, moments};
use super::parallel::worth_threads;
use super::simd::simd_once;
use crate::{Activation, Buffer};

const NAME: &str = "batch_norm2d";

/// Shorter planes are put together first: sums over a few values gain nothing from vectors.
const SHORT_PLANE: usize = 32;

/// The mean and the variance of every channel (C) over past batches.
#[derive(Clone, Debug)]
pub struct RunningStatistics {
    /// Starts at 0.
    pub mean: Buffer,
    /// The unbiased variance; starts at 1.
    pub variance: Buffer,
}

/// How a batch is normalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormConfig {
    /// By the statistics of the batch, or else by the running ones.
    pub training: bool,
    /// The weight of a new batch in the running statistics.
    pub momentum: f64,
    /// Added to the variance.
    pub eps: f64,
    /// Applied to the result.
    pub activation: Option<Activation>,
}

/// PyTorch's: in training, momentum 0.1, eps 1e-5, no activation.
impl Default for BatchNormConfig {
    fn default() -> Self {
        Self { training: true, momentum: 0.1, eps: 1e-5, activation: None }
    }
}

/// Normalises each channel, scales it by `weight` and adds `bias`.
///
/// In training, `running` (if there is one) moves towards the statistics of the batch:
/// `running = (1 - momentum) running + momentum batch`, with the unbiased variance. In evaluation
/// it is what the channels are normalised by.
///
/// # Shapes
///
/// `xs` (N, C, H, W) or (N, C), `weight` and `bias` (C) -> as `xs`.
///
/// # Errors
///
/// If shapes or dtypes do not fit together, the dtype is neither f32 nor f64, `eps` is negative, a
/// channel has less than two values in training, or there are no statistics in evaluation.
pub fn batch_norm2d(
    xs: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    running: Option<&RunningStatistics>,
    config: BatchNormConfig,
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
    let geometry = Geometry { batch, channels, plane };
    // The others would have to be computed once more in the backward.
    let (rectify, late) = match config.activation {
        Some(Activation::Relu) => (true, None),
        other => (false, other),
    };
    let op = BatchNorm2d { geometry, running: running.cloned(), rectify, config };
    if config.training {
        if batch * plane < 2 {
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
    let ys = fused::run(op, xs.shape(), &[Some(xs), weight, bias, mean, variance])?;
    activations::apply(ys, late)
}

struct BatchNorm2d {
    geometry: Geometry,
    running: Option<RunningStatistics>,
    /// Whether a ReLU is fused.
    rectify: bool,
    config: BatchNormConfig,
}

impl Fused for BatchNorm2d {
    const NAME: &'static str = NAME;

    fn reads(&self) -> Reads {
        Reads::inputs(&[0])
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, weight, bias, mean, variance] = inputs else { unreachable!("five inputs") };
        if ys.is_empty() {
            return Ok(Pooled::none());
        }
        let mut saved = Pooled::new(self.geometry.channels * Line::<T>::LEN);
        let threads = worth_threads(ys.len());
        let run = |channel: usize, mut ys: Planes<'_, '_, T>, saved: &mut [T]| {
            let line = |moments: Moments<T>| {
                let weight = weight.get(channel).copied().unwrap_or(T::one());
                let bias = bias.get(channel).copied().unwrap_or(T::zero());
                Line::new(moments, self.config.eps, weight, bias)
            };
            let running = (!self.config.training).then(|| {
                let (shift, variance) = (mean[channel], variance[channel].widen());
                Moments { shift, rest: 0.0, variance }
            });
            let line = if self.geometry.plane < SHORT_PLANE {
                let whole = self.geometry.one_channel();
                let xs = self.geometry.gather(xs, channel);
                let mut scratch = Pooled::new(xs.len());
                let planes = Planes { parts: &mut [&mut scratch], start: 0, plane: xs.len() };
                let line = simd_once(
                    #[inline(always)]
                    || self.forward_channel(whole.planes(&xs, 0), planes, running, line),
                );
                ys.scatter(&scratch);
                line
            } else {
                let xs = self.geometry.planes(xs, channel);
                simd_once(
                    #[inline(always)]
                    || self.forward_channel(xs, ys, running, line),
                )
            };
            line.save(saved);
        };
        self.geometry.for_channels(threads, ys, &mut saved, Line::<T>::LEN, run);
        self.update_running(&saved)?;
        Ok(saved)
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let (xs, dys) = (pass.inputs[0], &*pass.dys);
        let (dxs, dw, db) = (pass.grads.take(0), pass.grads.take(1), pass.grads.take(2));
        if dys.is_empty() {
            dw.into_iter().chain(db).for_each(|gradient| gradient.fill(T::zero()));
            return Ok(());
        }
        let dxs = dxs.unwrap_or_default();
        let mut sums = Pooled::new(2 * self.geometry.channels);
        let threads = worth_threads(dys.len());
        let run = |channel: usize, mut dxs: Planes<'_, '_, T>, sums: &mut [T]| {
            let line = Line::load(&pass.saved[channel * Line::<T>::LEN..]);
            let (dw, db) = if self.geometry.plane < SHORT_PLANE {
                let whole = self.geometry.one_channel();
                let xs = self.geometry.gather(xs, channel);
                let dys = self.geometry.gather(dys, channel);
                let mut scratch = Pooled::new(xs.len());
                let planes = Planes { parts: &mut [&mut scratch], start: 0, plane: xs.len() };
                let pairs = whole.planes(&xs, 0).zip(whole.planes(&dys, 0));
                let sums = simd_once(
                    #[inline(always)]
                    || self.backward_channel(pairs, planes, line),
                );
                dxs.scatter(&scratch);
                sums
            } else {
                let xs = self.geometry.planes(xs, channel);
                let pairs = xs.zip(self.geometry.planes(dys, channel));
                simd_once(
                    #[inline(always)]
                    || self.backward_channel(pairs, dxs, line),
                )
            };
            sums.copy_from_slice(&[T::narrow(dw), T::narrow(db)]);
        };
        self.geometry.for_channels(threads, dxs, &mut sums, 2, run);
        for (gradient, number) in [(dw, 0), (db, 1)] {
            let pairs = gradient.into_iter().flatten().zip(sums.chunks_exact(2));
            pairs.for_each(|(gradient, sums)| *gradient = sums[number]);
        }
        Ok(())
    }
}

impl BatchNorm2d {
    #[inline(always)]
    fn forward_channel<'a, T: Float>(
        &self,
        xs: impl Iterator<Item = &'a [T]> + Clone,
        mut ys: Planes<'_, '_, T>,
        running: Option<Moments<T>>,
        line: impl FnOnce(Moments<T>) -> Line<T>,
    ) -> Line<T> {
        let count = self.geometry.batch * self.geometry.plane;
        let line = line(running.unwrap_or_else(|| moments(xs.clone(), count)));
        for (x, y) in xs.zip(ys.iter_mut()) {
            let pairs = y.iter_mut().zip(x);
            if self.rectify {
                pairs.for_each(|(y, &x)| *y = rectified(line.at(x)));
            } else {
                pairs.for_each(|(y, &x)| *y = line.at(x));
            }
        }
        line
    }

    /// The gradients of weight and bias; writes that of the input, if there is a place.
    #[inline(always)]
    fn backward_channel<'a, T: Float>(
        &self,
        pairs: impl Iterator<Item = (&'a [T], &'a [T])> + Clone,
        dxs: Planes<'_, '_, T>,
        line: Line<T>,
    ) -> (f64, f64) {
        if self.rectify {
            self.differentiate(pairs, dxs, line, |x, dy| {
                let dead = line.at(x) <= T::zero();
                dy.keep_if(!dead)
            })
        } else {
            self.differentiate(pairs, dxs, line, |_, dy| dy)
        }
    }

    /// As [`Self::backward_channel`], with `dz(x, dy)`.
    #[inline(always)]
    fn differentiate<'a, T: Float>(
        &self,
        pairs: impl Iterator<Item = (&'a [T], &'a [T])> + Clone,
        mut dxs: Planes<'_, '_, T>,
        line: Line<T>,
        dz: impl Fn(T, T) -> T + Copy,
    ) -> (f64, f64) {
        let mut sums = Sums::new();
        for (xs, dys) in pairs.clone() {
            sums.add(xs, dys, |x, dy| {
                let dz = dz(x, dy);
                [dz, dz * (x - line.shift)]
            });
        }
        let [db, dot] = sums.totals();
        let (inverse, rest) = (line.inverse.widen(), line.rest.widen());
        let dw = inverse * (dot - rest * db);
        if !self.config.training {
            for ((xs, dys), dxs) in pairs.zip(dxs.iter_mut()) {
                for ((dx, &x), &dy) in dxs.iter_mut().zip(xs).zip(dys) {
                    *dx = line.scale * dz(x, dy);
                }
            }
            return (dw, db);
        }
        // w r (dz - db / n - h dw / n) with h = (x - shift - rest) r
        let count = (self.geometry.batch * self.geometry.plane) as f64;
        let slope = inverse * dw / count;
        let constant = T::narrow(rest * slope - db / count);
        let slope = T::narrow(slope);
        for ((xs, dys), dxs) in pairs.zip(dxs.iter_mut()) {
            for ((dx, &x), &dy) in dxs.iter_mut().zip(xs).zip(dys) {
                *dx = line.scale * (dz(x, dy) - (x - line.shift) * slope + constant);
            }
        }
        (dw, db)
    }

    /// Moves the running statistics, in training, towards those of the batch.
    fn update_running<T: Float>(&self, saved: &[T]) -> Result<()> {
        let BatchNormConfig { training: true, momentum, .. } = self.config else { return Ok(()) };
        let Some(running) = &self.running else { return Ok(()) };
        let count = (self.geometry.batch * self.geometry.plane) as f64;
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

/// What a channel's values go through: `(x - shift) scale + bias`.
#[derive(Clone, Copy, Debug)]
struct Line<T> {
    /// Mean and biased variance, as in [`Moments`].
    shift: T,
    rest: T,
    variance: T,
    /// `1 / sqrt(variance + eps)`
    inverse: T,
    scale: T,
    bias: T,
}

impl<T: Float> Line<T> {
    const LEN: usize = 6;

    #[inline(always)]
    fn new(moments: Moments<T>, eps: f64, weight: T, bias: T) -> Self {
        let Moments { shift, rest, variance } = moments;
        let inverse = 1.0 / (variance + eps).sqrt();
        let scale = inverse * weight.widen();
        Self {
            shift,
            rest: T::narrow(rest),
            variance: T::narrow(variance),
            inverse: T::narrow(inverse),
            scale: T::narrow(scale),
            bias: T::narrow(bias.widen() - rest * scale),
        }
    }

    #[inline(always)]
    fn at(&self, x: T) -> T {
        (x - self.shift) * self.scale + self.bias
    }

    fn save(self, to: &mut [T]) {
        let Self { shift, rest, variance, inverse, scale, bias } = self;
        to.copy_from_slice(&[shift, rest, variance, inverse, scale, bias]);
    }

    fn load(from: &[T]) -> Self {
        let &[shift, rest, variance, inverse, scale, bias, ..] = from else {
            unreachable!("six numbers per channel")
        };
        Self { shift, rest, variance, inverse, scale, bias }
    }
}

/// (N, C, H W), none of them 0.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    batch: usize,
    channels: usize,
    plane: usize,
}

impl Geometry {
    /// A single channel without gaps.
    fn one_channel(self) -> Self {
        Self { batch: 1, channels: 1, plane: self.batch * self.plane }
    }

    /// The planes of a channel.
    fn planes<T>(self, values: &[T], channel: usize) -> impl Iterator<Item = &[T]> + Clone {
        let images = values.chunks_exact(self.channels * self.plane);
        images.map(move |image| &image[channel * self.plane..][..self.plane])
    }

    /// The values of a channel without gaps.
    fn gather<T: Float>(self, values: &[T], channel: usize) -> Pooled<T> {
        let mut gathered = Pooled::new(self.batch * self.plane);
        for (to, from) in gathered.chunks_exact_mut(self.plane).zip(self.planes(values, channel)) {
            to.copy_from_slice(from);
        }
        gathered
    }

    /// Calls `f` for every channel with its planes of `outputs` (none if there is no output) and
    /// its `width` numbers of `records`. A channel is the work of one thread.
    fn for_channels<T: Float>(
        self,
        threads: bool,
        outputs: &mut [T],
        records: &mut [T],
        width: usize,
        f: impl Fn(usize, Planes<'_, '_, T>, &mut [T]) + Sync,
    ) {
        // A few blocks of channels per thread; the numbers do not depend on it.
        let blocks = if threads { 4 * rayon::current_num_threads() } else { 1 };
        let block = self.channels.div_ceil(blocks);
        let mut parts: Vec<Vec<&mut [T]>> = Vec::new();
        parts.resize_with(self.channels.div_ceil(block), Vec::new);
        for image in outputs.chunks_exact_mut(self.channels * self.plane) {
            for (parts, part) in parts.iter_mut().zip(image.chunks_mut(block * self.plane)) {
                parts.push(part);
            }
        }
        let run = |(number, (mut parts, records)): (usize, (Vec<&mut [T]>, &mut [T]))| {
            for (index, record) in records.chunks_exact_mut(width).enumerate() {
                let start = index * self.plane;
                let planes = Planes { parts: &mut parts, start, plane: self.plane };
                f(number * block + index, planes, record);
            }
        };
        if threads {
            let records = records.par_chunks_mut(block * width);
            parts.into_par_iter().zip(records).enumerate().for_each(run);
        } else {
            parts.into_iter().zip(records.chunks_mut(block * width)).enumerate().for_each(run);
        }
    }
}

/// The planes of a channel in memory that is written: one in each part.
struct Planes<'a, 'b, T> {
    parts: &'a mut [&'b mut [T]],
    start: usize,
    plane: usize,
}

impl<T: Float> Planes<'_, '_, T> {
    #[inline(always)]
    fn iter_mut(&mut self) -> impl Iterator<Item = &mut [T]> {
        let (start, plane) = (self.start, self.plane);
        self.parts.iter_mut().map(move |part| &mut part[start..][..plane])
    }

    /// The opposite of [`Geometry::gather`].
    fn scatter(&mut self, values: &[T]) {
        let plane = self.plane;
        self.iter_mut()
            .zip(values.chunks_exact(plane))
            .for_each(|(to, from)| to.copy_from_slice(from));
    }
}
