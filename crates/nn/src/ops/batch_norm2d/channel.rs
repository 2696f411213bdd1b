//! All computations on one channel, while the channel is in the cache.

use super::line::{Line, Totals};
use super::{BatchNorm2d, Rectifier};
use crate::ops::channel_planes::Planes;
use crate::ops::elementwise::{clipped, rectified};
use crate::ops::float::Float;
use crate::ops::moments::{Moments, Sums, moments};
use crate::ops::pool::Pooled;
use candelabrum_memory::simd::{simd, simd_once};

/// Shorter planes are copied together first, because sums over a few values do not benefit from
/// vectors.
const SHORT_PLANE: usize = 32;

impl BatchNorm2d {
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
        xs: &[T],
        channel: usize,
        mut ys: Planes<'_, '_, T>,
        known: Option<Moments<T>>,
        line: impl FnOnce(Moments<T>) -> Line<T>,
    ) -> Line<T> {
        if self.geometry.plane < SHORT_PLANE {
            let whole = self.geometry.one_channel();
            let xs = self.geometry.gather(xs, channel);
            let mut scratch = Pooled::new(xs.len());
            let planes = Planes { parts: &mut [&mut scratch], start: 0, plane: xs.len() };
            let line = simd_once(
                #[inline(always)]
                || self.normalise(whole.planes(&xs, 0), planes, known, line),
            );
            ys.scatter(&scratch);
            return line;
        }
        let xs = self.geometry.planes(xs, channel);
        simd_once(
            #[inline(always)]
            || self.normalise(xs, ys, known, line),
        )
    }

    #[inline(always)]
    fn normalise<'a, T: Float>(
        &self,
        xs: impl Iterator<Item = &'a [T]> + Clone,
        mut ys: Planes<'_, '_, T>,
        known: Option<Moments<T>>,
        line: impl FnOnce(Moments<T>) -> Line<T>,
    ) -> Line<T> {
        let line = line(known.unwrap_or_else(|| moments(xs.clone(), self.geometry.count())));
        for (x, y) in xs.zip(ys.iter_mut()) {
            let pairs = y.iter_mut().zip(x);
            match self.rectifier {
                None => pairs.for_each(|(y, &x)| *y = line.at(x)),
                Some(Rectifier::Relu) => pairs.for_each(|(y, &x)| *y = rectified(line.at(x))),
                Some(Rectifier::Relu6) => pairs.for_each(|(y, &x)| *y = clipped(line.at(x))),
            }
        }
        line
    }

    /// Returns the totals used: the `known` ones, or those of this batch. Writes the gradient of
    /// the input, if it has a place.
    pub(super) fn backward_channel<T: Float>(
        &self,
        (xs, dys): (&[T], &[T]),
        channel: usize,
        dxs: Option<Planes<'_, '_, T>>,
        line: Line<T>,
        known: Option<Totals>,
    ) -> Totals {
        if self.geometry.plane < SHORT_PLANE {
            let whole = self.geometry.one_channel();
            let xs = self.geometry.gather(xs, channel);
            let dys = self.geometry.gather(dys, channel);
            let pairs = whole.planes(&xs, 0).zip(whole.planes(&dys, 0));
            let mut scratch = Pooled::new(if dxs.is_some() { xs.len() } else { 0 });
            let mut parts = [&mut *scratch];
            let planes = Planes { parts: &mut parts, start: 0, plane: xs.len() };
            let planes = dxs.is_some().then_some(planes);
            let totals = simd_once(
                #[inline(always)]
                || self.differentiate(pairs, planes, line, known),
            );
            if let Some(mut dxs) = dxs {
                dxs.scatter(&scratch);
            }
            return totals;
        }
        let xs = self.geometry.planes(xs, channel);
        let pairs = xs.zip(self.geometry.planes(dys, channel));
        simd_once(
            #[inline(always)]
            || self.differentiate(pairs, dxs, line, known),
        )
    }

    #[inline(always)]
    fn differentiate<'a, T: Float>(
        &self,
        pairs: impl Iterator<Item = (&'a [T], &'a [T])> + Clone,
        dxs: Option<Planes<'_, '_, T>>,
        line: Line<T>,
        known: Option<Totals>,
    ) -> Totals {
        match self.rectifier {
            None => self.differentiate_by(pairs, dxs, line, known, |_, dy| dy),
            Some(Rectifier::Relu) => self.differentiate_by(pairs, dxs, line, known, |x, dy| {
                let dead = line.at(x) <= T::zero();
                dy.keep_if(!dead)
            }),
            Some(Rectifier::Relu6) => {
                let six = T::narrow(6.0);
                self.differentiate_by(pairs, dxs, line, known, |x, dy| {
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
        pairs: impl Iterator<Item = (&'a [T], &'a [T])> + Clone,
        dxs: Option<Planes<'_, '_, T>>,
        line: Line<T>,
        known: Option<Totals>,
        dz: impl Fn(T, T) -> T + Copy,
    ) -> Totals {
        let (inverse, rest) = (line.inverse.widen(), line.rest.widen());
        // Not a closure, which would be compiled without the newer vector instructions.
        let totals = match known {
            Some(known) => known,
            None => {
                let mut sums = Sums::new();
                for (xs, dys) in pairs.clone() {
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
        let Some(mut dxs) = dxs else { return totals };
        if !self.config.training {
            for ((xs, dys), dxs) in pairs.zip(dxs.iter_mut()) {
                for ((dx, &x), &dy) in dxs.iter_mut().zip(xs).zip(dys) {
                    *dx = line.scale * dz(x, dy);
                }
            }
            return totals;
        }
        // w r (dz - db / n - h dw / n) with h = (x - shift - rest) r
        let Totals { count, dw, db } = totals;
        let slope = inverse * dw / count;
        let constant = T::narrow(rest * slope - db / count);
        let slope = T::narrow(slope);
        for ((xs, dys), dxs) in pairs.zip(dxs.iter_mut()) {
            for ((dx, &x), &dy) in dxs.iter_mut().zip(xs).zip(dys) {
                *dx = line.scale * (dz(x, dy) - (x - line.shift) * slope + constant);
            }
        }
        totals
    }
}
