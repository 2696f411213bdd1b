//! A layout of images in which every element of a patch is a run of consecutive elements.
//!
//! With stride `s`, neighbouring output pixels meet input pixels that are `s` apart. So the padded image
//! is divided into `s` × `s` *phases*: phase `(i, j)` has the pixels whose row and column have the
//! remainders `i` and `j`. All phases have rows of the same length, the *pitch*, which is that of the
//! output, too. Then output pixel `p`, counted in rows of this pitch, meets element `p + offset` of the
//! phases, and the offset depends only on the element of the kernel. The pixels between the end of an
//! output row and the pitch are computed and have no meaning.

use super::geometry::Geometry;
use super::im2col::patches::copy;
use crate::kernels::float::Float;

/// Elements behind the last one, so that whole vectors can be read from each element on.
pub(super) const SLACK: usize = 64;

/// The layout for one geometry.
#[derive(Debug)]
pub(super) struct PhaseLayout<'a> {
    geometry: &'a Geometry,
    /// Elements of a row.
    pitch: usize,
    /// Rows of a phase.
    rows: usize,
    /// The places of the phases that the kernel meets, among these phases. Others are not stored.
    places: Vec<Option<usize>>,
}

/// Whether an image has few phases.
pub(super) fn has_small_strides(geometry: &Geometry) -> bool {
    geometry.stride.0 <= 4 && geometry.stride.1 <= 4
}

impl<'a> PhaseLayout<'a> {
    /// The layout for a geometry whose [strides are small](has_small_strides).
    pub(super) fn new(geometry: &'a Geometry) -> Self {
        let &Geometry { in_size, out_size, padding, stride, .. } = geometry;
        let reach = |tap: usize, dilation: usize, stride: usize| tap * dilation / stride;
        let rows = ((in_size.0 + padding.0).div_ceil(stride.0))
            .max(out_size.0 + reach(geometry.taps.0.end - 1, geometry.dilation.0, stride.0));
        let pitch = ((in_size.1 + padding.1).div_ceil(stride.1))
            .max(out_size.1 + reach(geometry.taps.1.end - 1, geometry.dilation.1, stride.1));
        let mut used = vec![false; stride.0 * stride.1];
        for (ky, kx) in taps(geometry) {
            used[phase_of(geometry, ky, kx)] = true;
        }
        let mut next = 0..;
        let places = used.into_iter().map(|used| if used { next.next() } else { None }).collect();
        Self { geometry, pitch, rows, places }
    }

    /// The number of elements from a pixel to the one below it.
    pub(super) fn pitch(&self) -> usize {
        self.pitch
    }

    /// The number of elements of a channel, all stored phases together.
    pub(super) fn channel(&self) -> usize {
        self.places.iter().flatten().count() * self.phase()
    }

    /// The number of elements of a phase.
    pub(super) fn phase(&self) -> usize {
        self.rows * self.pitch
    }

    /// The number of elements from the first output pixel to the last one.
    pub(super) fn outputs(&self) -> usize {
        let (height, width) = self.geometry.out_size;
        (height - 1) * self.pitch + width
    }

    /// For each stored phase its elements of the kernel, by their number, and the offsets of these in the
    /// phase.
    pub(super) fn by_phase(&self) -> Vec<Vec<(usize, usize)>> {
        let mut phases = vec![Vec::new(); self.places.iter().flatten().count()];
        for (number, (ky, kx)) in taps(self.geometry).enumerate() {
            if let Some(place) = self.places[phase_of(self.geometry, ky, kx)] {
                phases[place].push((number, self.offset_in_phase(ky, kx)));
            }
        }
        phases
    }

    /// The offset of each element of the kernel, in its order, without those that meet only padding.
    pub(super) fn offsets(&self) -> Vec<usize> {
        let offset = |(ky, kx)| {
            let place = self.places[phase_of(self.geometry, ky, kx)]?;
            Some(place * self.phase() + self.offset_in_phase(ky, kx))
        };
        taps(self.geometry).filter_map(offset).collect()
    }

    fn offset_in_phase(&self, ky: usize, kx: usize) -> usize {
        let &Geometry { stride, dilation, .. } = self.geometry;
        ky * dilation.0 / stride.0 * self.pitch + kx * dilation.1 / stride.1
    }

    /// Writes a channel `x` (H, W) to its place, whose padding is zero already.
    #[inline(always)]
    pub(super) fn divide<T: Float>(&self, x: &[T], phases: &mut [T]) {
        self.each_run(|y, start, at, step| {
            let width = self.geometry.in_size.1;
            let row = &x[y * width + start..(y + 1) * width];
            match step {
                1 => copy(&mut phases[at..at + row.len()], row),
                2 => every_second(row, &mut phases[at..]),
                _ => {
                    for (to, &from) in phases[at..].iter_mut().zip(row.iter().step_by(step)) {
                        *to = from;
                    }
                }
            }
        });
    }

    /// The reverse of [`divide`](Self::divide). Pixels of phases that the kernel does not meet become zero.
    #[inline(always)]
    pub(super) fn join<T: Float>(&self, phases: &[T], x: &mut [T]) {
        if self.places.contains(&None) {
            x.fill(T::zero());
        }
        self.each_run(|y, start, at, step| {
            let width = self.geometry.in_size.1;
            let row = &mut x[y * width + start..(y + 1) * width];
            if step == 1 {
                copy(row, &phases[at..at + row.len()]);
            } else {
                for (to, &from) in row.iter_mut().step_by(step).zip(&phases[at..]) {
                    *to = from;
                }
            }
        });
    }

    /// Calls `f` for each row of the image and each phase that has pixels of it and that the kernel meets: the row, its first pixel in
    /// the phase, the place of this pixel, and the distance between pixels of the phase.
    #[inline(always)]
    fn each_run(&self, mut f: impl FnMut(usize, usize, usize, usize)) {
        let &Geometry { in_size: (height, width), padding, stride, .. } = self.geometry;
        for y in 0..height {
            let padded = y + padding.0;
            let row = padded / stride.0 * self.pitch;
            for start in 0..stride.1.min(width) {
                let padded_x = start + padding.1;
                let phase = padded % stride.0 * stride.1 + padded_x % stride.1;
                let Some(place) = self.places[phase] else { continue };
                f(y, start, place * self.phase() + row + padded_x / stride.1, stride.1);
            }
        }
    }

    /// Copies the pixels of output channels (OH, OW) out of rows of the pitch, whose channels are `step` elements apart.
    #[inline(always)]
    pub(super) fn narrow_channels<T: Float>(&self, (rows, step): (&[T], usize), ys: &mut [T]) {
        for (rows, y) in
            rows.chunks_exact(step).zip(ys.chunks_exact_mut(self.geometry.out_pixels()))
        {
            self.narrow(rows, y);
        }
    }

    /// Copies the pixels of output channels to rows of the pitch, whose channels are `step` elements apart and which have
    /// zeros between them already: from element `before` of each channel on.
    #[inline(always)]
    pub(super) fn widen_channels<T: Float>(
        &self,
        ys: &[T],
        (rows, step): (&mut [T], usize),
        before: usize,
    ) {
        for (y, rows) in
            ys.chunks_exact(self.geometry.out_pixels()).zip(rows.chunks_exact_mut(step))
        {
            self.widen(y, &mut rows[before..]);
        }
    }

    /// The reverse of [`divide`](Self::divide) for channels whose phases are `step` elements apart.
    #[inline(always)]
    pub(super) fn join_channels<T: Float>(&self, (phases, step): (&[T], usize), xs: &mut [T]) {
        let pixels = self.geometry.in_size.0 * self.geometry.in_size.1;
        for (phases, x) in phases.chunks_exact(step).zip(xs.chunks_exact_mut(pixels)) {
            self.join(phases, x);
        }
    }

    /// Copies the pixels of an output channel `y` (OH, OW) out of rows of the pitch.
    #[inline(always)]
    pub(super) fn narrow<T: Float>(&self, rows: &[T], y: &mut [T]) {
        for (row, y) in rows.chunks(self.pitch).zip(y.chunks_exact_mut(self.geometry.out_size.1)) {
            copy(y, &row[..y.len()]);
        }
    }

    /// Copies the pixels of an output channel to rows of the pitch, which have zeros between them already.
    #[inline(always)]
    pub(super) fn widen<T: Float>(&self, y: &[T], rows: &mut [T]) {
        for (row, y) in rows.chunks_mut(self.pitch).zip(y.chunks_exact(self.geometry.out_size.1)) {
            copy(&mut row[..y.len()], y);
        }
    }
}

/// Rows and columns of the elements of the kernel that meet the image.
fn taps(geometry: &Geometry) -> impl Iterator<Item = (usize, usize)> {
    let (kys, kxs) = geometry.taps.clone();
    kys.flat_map(move |ky| kxs.clone().map(move |kx| (ky, kx)))
}

/// The number of the phase that an element of the kernel meets.
fn phase_of(geometry: &Geometry, ky: usize, kx: usize) -> usize {
    let &Geometry { stride, dilation, .. } = geometry;
    ky * dilation.0 % stride.0 * stride.1 + kx * dilation.1 % stride.1
}

/// Copies every second element, from the first on. As pairs they are moved by shuffles.
#[inline(always)]
fn every_second<T: Float>(from: &[T], to: &mut [T]) {
    let (pairs, last) = from.as_chunks::<2>();
    let (to, rest) = to.split_at_mut(pairs.len());
    for (to, pair) in to.iter_mut().zip(pairs) {
        *to = pair[0];
    }
    if let ([last], Some(rest)) = (last, rest.first_mut()) {
        *rest = *last;
    }
}
