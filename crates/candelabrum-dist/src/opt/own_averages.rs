//! The averages of this rank's share, where gradients are shared out: they leave their buckets as soon as they have
//! arrived, and the bucket's memory serves a later one.

use std::ops::Range;

use candelabrum_memory::{FiniteCheck, Flat, Span};
use candelabrum_nn::BucketPool;

use super::bucket_sets::BucketSet;
use super::context::StepContext;
use crate::Result;

/// Lent buckets that have left and not arrived. With more of them, ranks wait less for each other during the backward
/// pass.
pub(super) const ON_THEIR_WAY: usize = 2;

/// The averages of a step so far.
#[derive(Debug)]
pub(super) struct OwnAverages {
    /// By bucket: this rank's part.
    pub(super) parts: Vec<Flat>,
    pub(super) pool: BucketPool,
    /// What has been found in the averages that have arrived during the backward pass.
    pub(super) check: FiniteCheck,
    /// The buckets that have arrived during the backward pass.
    pub(super) arrived: Vec<usize>,
}

impl OwnAverages {
    /// With the memory of a layout, to which [`Self::end`] returns it. `None` if the layout's buckets have memory of
    /// their own.
    pub(super) fn begin(layout: &mut BucketSet) -> Option<Self> {
        let pool = layout.gradients.pool()?.clone();
        let parts = std::mem::take(&mut layout.own);
        Some(Self { parts, pool, check: FiniteCheck::default(), arrived: Vec::new() })
    }

    pub(super) fn end(self, layout: &mut BucketSet) {
        layout.own = self.parts;
    }

    /// Takes this rank's part, the elements `own`, out of a bucket that has arrived, and looks at it.
    pub(super) fn take_out(
        &mut self,
        index: usize,
        bucket: Flat,
        own: Range<usize>,
        check: &mut FiniteCheck,
    ) -> Result<()> {
        let part = bucket.range(own)?;
        check.look(index, part)?;
        self.parts[index].span_mut()?.copy_from(part)?;
        self.pool.give_back(bucket);
        Ok(())
    }
}

/// The averages of a bucket, wherever they are.
pub(super) struct Averages<'a> {
    values: &'a mut Flat,
    /// The place in the bucket of the first value.
    start: usize,
}

impl<'a> Averages<'a> {
    pub(super) fn of(
        own: Option<&'a mut OwnAverages>,
        layout: &'a mut BucketSet,
        context: &StepContext,
        index: usize,
    ) -> Result<Self> {
        Ok(match own {
            Some(own) => {
                Self { values: &mut own.parts[index], start: context.own_range(index).start }
            }
            None => Self { values: layout.gradients.bucket(index)?, start: 0 },
        })
    }

    pub(super) fn is_on_device(&self) -> bool {
        self.values.is_on_device()
    }

    /// The averages at these places of the bucket, which belong to this rank's share.
    pub(super) fn range(&self, places: Range<usize>) -> Result<Span<'_>> {
        Ok(self.values.range(places.start - self.start..places.end - self.start)?)
    }

    /// All averages at these places of the bucket, to be changed.
    pub(super) fn range_mut(
        &mut self,
        places: Range<usize>,
    ) -> Result<candelabrum_memory::SpanMut<'_>> {
        Ok(self.values.range_mut(places.start - self.start..places.end - self.start)?)
    }
}
