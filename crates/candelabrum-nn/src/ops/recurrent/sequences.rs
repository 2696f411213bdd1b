//! Some sequences of a batch, taken through all steps.

use std::iter;

use super::cell::{CellStep, RecurrentCell, StepBackward};
use super::step_weight::RecurrentWeight;
use super::steps::LayerRows;
use crate::kernels::elementwise::add_assign;
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;
use candelabrum_memory::simd::simd;

/// The rows of some sequences in a tensor (T, N, width): one run for each step.
pub(super) type SequenceRows<'a, T> = Vec<&'a mut [T]>;

/// Cuts a tensor (T, N, width) into groups of sequences. `step` and `group` are the elements of a step
/// and of a group in it. An empty tensor has empty groups.
pub(super) fn by_group<T>(values: &mut [T], step: usize, group: usize) -> Vec<SequenceRows<'_, T>> {
    let mut groups: Vec<SequenceRows<'_, T>> = Vec::new();
    groups.resize_with(step.div_ceil(group), Vec::new);
    for values in values.chunks_mut(step.max(1)) {
        for (rows, values) in groups.iter_mut().zip(values.chunks_mut(group)) {
            rows.push(values);
        }
    }
    groups
}

/// The parts of `len` elements, and then empty ones.
pub(super) fn parts_of<T>(values: &mut [T], len: usize) -> impl Iterator<Item = &mut [T]> {
    values.chunks_mut(len.max(1)).chain(iter::repeat_with(Default::default))
}

/// The biases of the gates.
pub(super) struct Biases<T: Float> {
    /// Those of `b`, and of `a` where the cell does nothing but add the two.
    of_b: Pooled<T>,
    /// The others of `a`: for the last gate if the cell [splits](Cell::SPLIT) it.
    of_a: Pooled<T>,
}

impl<T: Float> Biases<T> {
    /// Either may be empty.
    pub(super) fn new<C: RecurrentCell>(b_ih: &[T], b_hh: &[T], hidden: usize) -> Self {
        let width = C::GATES * hidden;
        let added = if C::SPLIT { width - hidden } else { width };
        let mut of_b = Pooled::zeros(width);
        add_assign(&mut of_b, b_hh);
        add_assign(&mut of_b[..added], b_ih);
        let mut of_a = Pooled::zeros(width - added);
        add_assign(&mut of_a, b_ih.get(added..).unwrap_or_default());
        Self { of_b, of_a }
    }
}

/// Sequences in the forward pass.
pub(super) struct GroupForward<'a, T> {
    /// The number of the first row.
    pub(super) first: usize,
    pub(super) gates: SequenceRows<'a, T>,
    pub(super) extra: SequenceRows<'a, T>,
    /// The states before the first step, and afterwards those after the last one.
    pub(super) h: &'a mut [T],
    pub(super) c: &'a mut [T],
    /// (T, H) of each row.
    pub(super) ys: SequenceRows<'a, T>,
}

impl<T: Float> GroupForward<'_, T> {
    pub(super) fn run<C: RecurrentCell>(
        self,
        (all, hidden): (&LayerRows, usize),
        w_hh: &RecurrentWeight<'_, T>,
        biases: &Biases<T>,
    ) {
        let Self { first, gates, mut extra, h, c, mut ys } = self;
        let (rows, width) = (h.len() / hidden, C::GATES * hidden);
        let distance = w_hh.step();
        let mut b = Pooled::zeros(w_hh.size(rows));
        for (t, gates) in gates.into_iter().enumerate() {
            let active = all.active(first..first + rows, t);
            for ys in &mut ys[active..] {
                ys[t * hidden..][..hidden].fill(T::zero());
            }
            if active == 0 {
                continue;
            }
            for row in b.chunks_mut(distance).take(active) {
                row[..width].copy_from_slice(&biases.of_b);
            }
            w_hh.add_product(active, (h, hidden), &mut b);
            for (n, ys) in ys.iter_mut().enumerate().take(active) {
                let (wide, narrow) = (n * width..(n + 1) * width, n * hidden..(n + 1) * hidden);
                let c = if C::HAS_CELL_STATE { &mut c[narrow.clone()] } else { &mut [] };
                let extra = if C::HAS_EXTRA { &mut extra[t][narrow.clone()] } else { &mut [] };
                let (b, h) = (&b[n * distance..][..width], &mut h[narrow]);
                C::forward(CellStep {
                    gates: &mut gates[wide],
                    b,
                    bias: &biases.of_a,
                    extra,
                    h,
                    c,
                });
                ys[all.time(first + n, t) * hidden..][..hidden].copy_from_slice(h);
            }
        }
    }
}

/// What the backward of all sequences reads.
pub(super) struct SavedSequences<'a, T> {
    /// (T, N, GATES H)
    pub(super) gates: &'a [T],
    /// (T, N, H), or nothing.
    pub(super) extra: &'a [T],
    /// (T, N, H)
    pub(super) h_prev: &'a [T],
    /// (N, T, H)
    pub(super) dys: &'a [T],
    pub(super) all: &'a LayerRows,
    pub(super) batch: usize,
    pub(super) hidden: usize,
}

/// Sequences in the backward pass.
pub(super) struct GroupBackward<'a, T> {
    /// The number of the first row.
    pub(super) first: usize,
    pub(super) da: SequenceRows<'a, T>,
    /// Of the last gate if the cell [splits](Cell::SPLIT) it, otherwise empty.
    pub(super) db: SequenceRows<'a, T>,
    /// The gradient of the cell state after the last step, and afterwards of that before the first one.
    pub(super) dc: &'a mut [T],
    /// The place of the gradient of the hidden state before the first step, or nothing.
    pub(super) dh0: &'a mut [T],
}

impl<T: Float> GroupBackward<'_, T> {
    /// `w_hh` is the weight of the gates for which `da` and `db` are equal, `of_last` that of the last gate if
    /// the cell [splits](Cell::SPLIT) it.
    pub(super) fn run<C: RecurrentCell>(
        self,
        saved: &SavedSequences<'_, T>,
        w_hh: &RecurrentWeight<'_, T>,
        of_last: Option<&RecurrentWeight<'_, T>>,
    ) {
        let Self { first, mut da, mut db, dc, dh0 } = self;
        let &SavedSequences { gates, extra, h_prev, dys, all, batch, hidden } = saved;
        let (steps, width, distance) = (da.len(), C::GATES * hidden, w_hh.step());
        let rows = da.first().map_or(0, |da| da.len() / width);
        let mut dh = Pooled::zeros(w_hh.size(rows));
        let mut later = 0;
        for t in (0..steps).rev() {
            let da = &mut *da[t];
            let db: &mut [T] = if C::SPLIT { db[t] } else { &mut [] };
            let active = all.active(first..first + rows, t);
            da[active * width..].fill(T::zero());
            if C::SPLIT {
                db[active * hidden..].fill(T::zero());
            }
            // The products of later steps may have written over the rows behind their own.
            for dh in dh.chunks_mut(distance).take(active).skip(later) {
                dh.fill(T::zero());
            }
            later = active;
            for n in 0..active {
                let (wide, narrow) = (n * width..(n + 1) * width, n * hidden..(n + 1) * hidden);
                let row = t * batch + first + n;
                let dh = &mut dh[n * distance..][..hidden];
                let place = all.sequence(first + n) * steps + all.time(first + n, t);
                let dy = &dys[place * hidden..][..hidden];
                simd(
                    #[inline(always)]
                    || add_assign(dh, dy),
                );
                C::backward(StepBackward {
                    gates: &gates[row * width..][..width],
                    extra: if C::HAS_EXTRA { &extra[row * hidden..][..hidden] } else { &[] },
                    h_prev: &h_prev[row * hidden..][..hidden],
                    dh,
                    dc: if C::HAS_CELL_STATE { &mut dc[narrow.clone()] } else { &mut [] },
                    da: &mut da[wide],
                    db: if C::SPLIT { &mut db[narrow] } else { &mut [] },
                });
            }
            if active > 0 && (t > 0 || !dh0.is_empty()) {
                w_hh.add_product(active, (da, width), &mut dh);
                if let Some(of_last) = of_last {
                    of_last.add_product(active, (db, hidden), &mut dh);
                }
            }
        }
        for dh in dh.chunks_mut(distance).take(rows).skip(later) {
            dh.fill(T::zero());
        }
        for (dh0, dh) in dh0.chunks_exact_mut(hidden).zip(dh.chunks(distance)) {
            dh0.copy_from_slice(&dh[..hidden]);
        }
    }
}
