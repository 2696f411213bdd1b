//! Where the gradient of a result is collected during a backward pass.
//!
//! The gradients of views arrive in pieces: those of a split's parts, for instance. The first piece
//! must not clear the whole gradient only for the other pieces to overwrite the zeros. So an inbox
//! keeps the places that have been written. A piece is copied to places that have not, and added to
//! places that have. When the result's own backward takes the gradient, the places that no piece has
//! reached become zero: nobody has used those elements.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use candelabrum_memory::FlatTensor;
use candle_core::Result;

use crate::autograd::pass;
use crate::autograd::view::{StridedView, Stripe};
use crate::kernels::elementwise::add_all;
use crate::kernels::float::Float;
use crate::kernels::scratch::{Pooled, PooledValues};
use crate::kernels::strided::StoreMode;

/// Collects the gradient of a result during a backward pass.
#[derive(Debug, Default)]
pub(crate) struct GradientInbox(Mutex<Option<Arrived>>);

/// The sum of the gradients that have arrived.
#[derive(Debug)]
struct Arrived {
    /// The number of the pass.
    pass: u64,
    values: PooledValues,
    /// The places that have been written. `None` if all have.
    written: Option<Stripes>,
}

impl GradientInbox {
    /// Adds `gradient` to the earlier ones of the same pass.
    pub(crate) fn deliver<T: Float>(&self, gradient: Pooled<T>) {
        let mut inbox = self.lock();
        let sum = match take(&mut inbox) {
            None => gradient,
            Some((mut sum, written)) => {
                written.into_iter().for_each(|written| written.clear_others(&mut sum));
                add_all(&mut sum, &gradient);
                sum
            }
        };
        put(&mut inbox, T::into_values(sum), None);
    }

    /// Adds the gradient of a view of the result, which has this number of `elements`.
    pub(crate) fn deliver_view<T: Float>(
        &self,
        view: &StridedView,
        gradient: &[T],
        elements: usize,
    ) {
        let mut inbox = self.lock();
        let nothing = || (Pooled::new(elements), Some(Stripes::default()));
        let (mut sum, mut written) = take(&mut inbox).unwrap_or_else(nothing);
        let store = match (&mut written, view.stripe(elements)) {
            (Some(stripes), stripe) => match stripe.and_then(|stripe| stripes.add(stripe)) {
                Some(store) => store,
                None => {
                    stripes.clear_others(&mut sum);
                    written = None;
                    StoreMode::Add
                }
            },
            (None, _) => StoreMode::Add,
        };
        view.scatter(gradient, &mut sum, store);
        let written = written.filter(|stripes| !stripes.are_all());
        put(&mut inbox, T::into_values(sum), written);
    }

    /// As [`Self::deliver`], on a GPU.
    pub(crate) fn deliver_on_gpu(&self, gradient: FlatTensor) -> Result<()> {
        let sum = match self.take() {
            Some(PooledValues::Gpu(mut sum)) => {
                sum.cuda_numbers_mut()?.add(gradient.cuda_numbers()?)?;
                sum
            }
            _ => gradient,
        };
        put(&mut self.lock(), PooledValues::Gpu(sum), None);
        Ok(())
    }

    /// The sum of the gradients of this pass.
    pub(crate) fn take(&self) -> Option<PooledValues> {
        let arrived = self.lock().take().filter(|arrived| arrived.pass == pass::number())?;
        let Arrived { mut values, written, .. } = arrived;
        match (&mut values, written) {
            (PooledValues::F32(values), Some(written)) => written.clear_others(values),
            (PooledValues::F64(values), Some(written)) => written.clear_others(values),
            _ => {}
        }
        Some(values)
    }

    /// Whether no gradient of this pass has arrived.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().as_ref().is_none_or(|arrived| arrived.pass != pass::number())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arrived>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes what has arrived in this pass.
fn take<T: Float>(inbox: &mut Option<Arrived>) -> Option<(Pooled<T>, Option<Stripes>)> {
    let arrived = inbox.take().filter(|arrived| arrived.pass == pass::number())?;
    Some((T::of_values(arrived.values)?, arrived.written))
}

fn put(inbox: &mut Option<Arrived>, values: PooledValues, written: Option<Stripes>) {
    *inbox = Some(Arrived { pass: pass::number(), values, written });
}

/// Stripes of one period, in their order. They do not touch each other.
#[derive(Debug, Default)]
struct Stripes {
    /// 0 as long as there is no stripe.
    period: usize,
    ranges: Vec<Range<usize>>,
}

impl Stripes {
    /// Adds a stripe. Returns how a piece is stored there, or `None` if some of its places have been
    /// written and others have not.
    fn add(&mut self, Stripe { period, range }: Stripe) -> Option<StoreMode> {
        if !self.ranges.is_empty() && period != self.period {
            return None;
        }
        self.period = period;
        let at = self.ranges.partition_point(|other| other.end <= range.start);
        if let Some(next) = self.ranges.get(at).filter(|next| next.start < range.end) {
            let is_within = next.start <= range.start && range.end <= next.end;
            return is_within.then_some(StoreMode::Add);
        }
        self.ranges.insert(at, range);
        self.ranges.dedup_by(|next, before| {
            let touches = before.end == next.start;
            if touches {
                before.end = next.end;
            }
            touches
        });
        Some(StoreMode::Replace)
    }

    fn are_all(&self) -> bool {
        matches!(self.ranges[..], [Range { start: 0, end }] if end == self.period)
    }

    /// Writes zeros to the places between the stripes.
    fn clear_others<T: Float>(&self, values: &mut [T]) {
        for row in values.chunks_mut(self.period.max(1)) {
            let mut end = 0;
            for range in &self.ranges {
                row[end..range.start].fill(T::zero());
                end = range.end;
            }
            row[end..].fill(T::zero());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(start: usize, len: usize) -> StridedView {
        StridedView::narrow(&[2, 5], 1, start, len)
    }

    fn taken(inbox: &GradientInbox) -> Vec<f64> {
        match inbox.take() {
            Some(PooledValues::F64(values)) => values.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pieces_come_in_any_order_and_what_nobody_uses_is_zero() {
        let inbox = GradientInbox::default();
        drop(Pooled::<f64>::copy_of(&[f64::NAN; 10])); // The recycled memory has NaN.
        inbox.deliver_view(&view(3, 1), &[1.0, 2.0], 10);
        inbox.deliver_view(&view(0, 2), &[3.0, 4.0, 5.0, 6.0], 10);
        assert_eq!(taken(&inbox), [3.0, 4.0, 0.0, 1.0, 0.0, 5.0, 6.0, 0.0, 2.0, 0.0]);
        assert!(inbox.take().is_none());
    }

    #[test]
    fn pieces_that_meet_are_added() {
        let inbox = GradientInbox::default();
        let ones = [1.0_f64; 10];
        inbox.deliver_view(&view(1, 2), &ones[..4], 10);
        inbox.deliver_view(&view(1, 2), &ones[..4], 10);
        inbox.deliver_view(&view(2, 1), &ones[..2], 10);
        assert_eq!(taken(&inbox), [0.0, 2.0, 3.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.0, 0.0]);
        inbox.deliver_view(&view(1, 2), &ones[..4], 10);
        inbox.deliver_view(&view(2, 2), &ones[..4], 10); // Written in part.
        inbox.deliver_view(&view(4, 1), &ones[..2], 10);
        assert_eq!(taken(&inbox), [0.0, 1.0, 2.0, 1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 1.0]);
        inbox.deliver_view(&view(0, 1), &ones[..2], 10);
        inbox.deliver_view(&StridedView::narrow(&[2, 5], 0, 1, 1), &ones[..5], 10); // Another period.
        inbox.deliver(Pooled::copy_of(&ones));
        assert_eq!(taken(&inbox), [2.0, 1.0, 1.0, 1.0, 1.0, 3.0, 2.0, 2.0, 2.0, 2.0]);
        inbox.deliver_view(&view(0, 4), &ones[..8], 10);
        inbox.deliver(Pooled::copy_of(&ones));
        assert_eq!(taken(&inbox), [2.0, 2.0, 2.0, 2.0, 1.0, 2.0, 2.0, 2.0, 2.0, 1.0]);
    }

    #[test]
    fn stripes_that_touch_become_one() {
        let mut stripes = Stripes::default();
        let mut add = |range: Range<usize>| stripes.add(Stripe { period: 9, range });
        assert_eq!(add(6..9), Some(StoreMode::Replace));
        assert_eq!(add(0..2), Some(StoreMode::Replace));
        assert_eq!(add(1..3), None);
        assert_eq!(add(7..8), Some(StoreMode::Add));
        assert_eq!(add(2..6), Some(StoreMode::Replace));
        assert_eq!(add(0..9), Some(StoreMode::Add));
        assert!(stripes.are_all());
    }
}
