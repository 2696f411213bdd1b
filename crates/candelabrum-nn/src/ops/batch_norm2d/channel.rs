//! All computations on one channel, while the channel is in the cache.

use super::totals::Totals;
use super::{BatchNorm2dOp, ChannelInputs, ChannelValues, GradientDestination};
use crate::kernels::channel_line::{ChannelLine, Rectifier};
use crate::kernels::channel_planes::Planes;
use crate::kernels::elementwise::{activation_backward, clipped, rectified};
use crate::kernels::float::Float;
use crate::kernels::moments::{LaneSums, Moments, moments};
use crate::kernels::scratch::Pooled;
use candelabrum_memory::simd::{simd, simd_once};

/// Shorter planes are copied together first, because sums over a few values do not benefit from
/// vectors.
const SHORT_PLANE: usize = 32;

impl BatchNorm2dOp {
    /// Mean and variance of a channel in this batch.
    pub(super) fn moments<T: Float>(&self, xs: &[T], channel: usize) -> Moments<T> {
        let count = self.geometry.count();
        if self.geometry.plane < SHORT_PLANE {
            let xs = self.geometry.gather(xs, channel);
            let whole = self.geometry.one_channel();
            return simd(
                #[inline(always)]
                || moments(whole.planes(&xs, 0), count),
            );
        }
        let xs = self.geometry.planes(xs, channel);
        simd_once(
            #[inline(always)]
            move || moments(xs, count),
        )
    }

    /// Writes the channel's part of the result, using the `known` moments or those of this batch.
    pub(super) fn forward_channel<T: Float>(
        &self,
        ChannelInputs { xs, residual, channel }: ChannelInputs<'_, T>,
        mut ys: Planes<'_, '_, T>,
        known: Option<Moments<T>>,
        line: impl FnOnce(Moments<T>) -> ChannelLine<T>,
    ) -> ChannelLine<T> {
        if self.geometry.plane < SHORT_PLANE {
            let whole = self.geometry.one_channel();
            let xs = self.geometry.gather(xs, channel);
            let has_residual = self.has_residual;
            let residual = has_residual.then(|| self.geometry.gather(residual, channel));
            let mut scratch = Pooled::new(xs.len());
            let planes = Planes { parts: &mut [&mut scratch], start: 0, plane: xs.len() };
            let residual = residual.as_deref().unwrap_or_default();
            let line = simd_once(
                #[inline(always)]
                || {
                    let residual = whole.planes(residual, 0);
                    self.normalise(whole.planes(&xs, 0), residual, planes, known, line)
                },
            );
            ys.scatter(&scratch);
            return line;
        }
        let xs = self.geometry.planes(xs, channel);
        let residual = self.geometry.planes(residual, channel);
        simd_once(
            #[inline(always)]
            || self.normalise(xs, residual, ys, known, line),
        )
    }

    #[inline(always)]
    fn normalise<'a, T: Float>(
        &self,
        xs: impl Iterator<Item = &'a [T]> + Clone,
        residual: impl Iterator<Item = &'a [T]>,
        ys: Planes<'_, '_, T>,
        known: Option<Moments<T>>,
        line: impl FnOnce(Moments<T>) -> ChannelLine<T>,
    ) -> ChannelLine<T> {
        let line = line(known.unwrap_or_else(|| moments(xs.clone(), self.geometry.count())));
        match self.rectifier {
            None => self.write(xs, residual, ys, line, |z| z),
            Some(Rectifier::Relu) => self.write(xs, residual, ys, line, rectified),
            Some(Rectifier::Relu6) => self.write(xs, residual, ys, line, clipped),
        }
        line
    }

    /// Writes the result, with the activation as a function.
    #[inline(always)]
    fn write<'a, T: Float>(
        &self,
        xs: impl Iterator<Item = &'a [T]>,
        residual: impl Iterator<Item = &'a [T]>,
        mut ys: Planes<'_, '_, T>,
        line: ChannelLine<T>,
        activate: impl Fn(T) -> T,
    ) {
        if self.has_residual {
            for ((x, r), y) in xs.zip(residual).zip(ys.iter_mut()) {
                for ((y, &x), &r) in y.iter_mut().zip(x).zip(r) {
                    *y = activate(line.at(x) + r);
                }
            }
        } else {
            for (x, y) in xs.zip(ys.iter_mut()) {
                y.iter_mut().zip(x).for_each(|(y, &x)| *y = activate(line.at(x)));
            }
        }
    }

    /// Returns the totals used: the `known` ones, or those of this batch. Writes the gradient of
    /// the input. With a residual, replaces `dys` by the gradient before the activation.
    pub(super) fn backward_channel<T: Float>(
        &self,
        ChannelValues { xs, ys, channel }: ChannelValues<'_, T>,
        mut dys: Planes<'_, '_, T>,
        to: GradientDestination<Planes<'_, '_, T>>,
        line: ChannelLine<T>,
        known: Option<Totals>,
    ) -> Totals {
        if let Some(activation) = self.activation().filter(|_| self.has_residual) {
            for (y, dy) in self.geometry.planes(ys, channel).zip(dys.iter_mut()) {
                activation_backward(dy, y, activation);
            }
        }
        if self.geometry.plane < SHORT_PLANE {
            let whole = self.geometry.one_channel();
            let xs = self.geometry.gather(xs, channel);
            let mut scratch = dys.gather();
            let mut parts = [&mut *scratch];
            let planes = Planes { parts: &mut parts, start: 0, plane: xs.len() };
            let inside = if matches!(to, GradientDestination::Nowhere) {
                GradientDestination::Nowhere
            } else {
                GradientDestination::Dys
            };
            let totals = simd_once(
                #[inline(always)]
                || self.differentiate(whole.planes(&xs, 0), planes, inside, line, known),
            );
            match to {
                GradientDestination::Nowhere => {}
                GradientDestination::Dys => dys.scatter(&scratch),
                GradientDestination::Place(mut dxs) => dxs.scatter(&scratch),
            }
            return totals;
        }
        let xs = self.geometry.planes(xs, channel);
        simd_once(
            #[inline(always)]
            || self.differentiate(xs, dys, to, line, known),
        )
    }

    #[inline(always)]
    fn differentiate<'a, T: Float>(
        &self,
        xs: impl Iterator<Item = &'a [T]> + Clone,
        dys: Planes<'_, '_, T>,
        to: GradientDestination<Planes<'_, '_, T>>,
        line: ChannelLine<T>,
        known: Option<Totals>,
    ) -> Totals {
        // With a residual, the gradient before the activation is known.
        let rectifier = self.rectifier.filter(|_| !self.has_residual);
        match rectifier {
            None => self.differentiate_by(xs, dys, to, (line, known), |_, dy| dy),
            Some(Rectifier::Relu) => self.differentiate_by(xs, dys, to, (line, known), |x, dy| {
                let dead = line.at(x) <= T::zero();
                dy.keep_if(!dead)
            }),
            Some(Rectifier::Relu6) => {
                let six = T::narrow(6.0);
                self.differentiate_by(xs, dys, to, (line, known), |x, dy| {
                    let z = line.at(x);
                    dy.keep_if((z > T::zero()) & (z < six))
                })
            }
        }
    }

    /// [`Self::differentiate`], with `dz(x, dy)` as a function.
    #[inline(always)]
    fn differentiate_by<'a, T: Float>(
        &self,
        xs: impl Iterator<Item = &'a [T]> + Clone,
        dys: Planes<'_, '_, T>,
        to: GradientDestination<Planes<'_, '_, T>>,
        (line, known): (ChannelLine<T>, Option<Totals>),
        dz: impl Fn(T, T) -> T + Copy,
    ) -> Totals {
        let (inverse, rest) = (line.inverse.widen(), line.rest.widen());
        // Not a closure, which would be compiled without the newer vector instructions.
        let totals = match known {
            Some(known) => known,
            None => {
                let mut sums = LaneSums::new();
                for (xs, dys) in xs.clone().zip(dys.iter()) {
                    sums.add(xs, dys, |x, dy| {
                        let dz = dz(x, dy);
                        [dz, dz * (x - line.shift)]
                    });
                }
                let [db, dot] = sums.totals();
                let count = self.geometry.count() as f64;
                Totals { count, dw: inverse * (dot - rest * db), db }
            }
        };
        if !self.config.training {
            write(
                xs,
                dys,
                to,
                #[inline(always)]
                |x, dy| line.scale * dz(x, dy),
            );
            return totals;
        }
        // w r (dz - db / n - h dw / n) with h = (x - shift - rest) r
        let Totals { count, dw, db } = totals;
        let slope = inverse * dw / count;
        let constant = T::narrow(rest * slope - db / count);
        let slope = T::narrow(slope);
        write(
            xs,
            dys,
            to,
            #[inline(always)]
            |x, dy| line.scale * (dz(x, dy) - (x - line.shift) * slope + constant),
        );
        totals
    }
}

/// Writes the gradient of the input, `dx(x, dy)`.
#[inline(always)]
fn write<'a, T: Float>(
    xs: impl Iterator<Item = &'a [T]>,
    mut dys: Planes<'_, '_, T>,
    to: GradientDestination<Planes<'_, '_, T>>,
    dx: impl Fn(T, T) -> T,
) {
    match to {
        GradientDestination::Nowhere => {}
        GradientDestination::Dys => {
            for (xs, dys) in xs.zip(dys.iter_mut()) {
                for (dy, &x) in dys.iter_mut().zip(xs) {
                    *dy = dx(x, *dy);
                }
            }
        }
        GradientDestination::Place(mut dxs) => {
            for ((xs, dys), dxs) in xs.zip(dys.iter()).zip(dxs.iter_mut()) {
                for ((to, &x), &dy) in dxs.iter_mut().zip(xs).zip(dys) {
                    *to = dx(x, dy);
                }
            }
        }
    }
}
