//! The averages of a bucket, in the bucket or outside of it.

use std::ops::Range;

use candelabrum_memory::{FlatTensor, Span, SpanMut};

use super::bucket_sets::BucketSet;
use super::context::StepContext;
use super::own_averages::OwnAverages;
use crate::Result;

/// The averages of a bucket, wherever they are.
pub(super) struct Averages<'a> {
    values: &'a mut FlatTensor,
    /// The place in the bucket of the first value.
    start: usize,
}

impl<'a> Averages<'a> {
    pub(super) fn new(
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

    /// The averages at these places of the bucket, which belong to this rank's shard.
    pub(super) fn range(&self, places: Range<usize>) -> Result<Span<'_>> {
        Ok(self.values.range(places.start - self.start..places.end - self.start)?)
    }

    /// All averages at these places of the bucket, to be changed.
    pub(super) fn range_mut(&mut self, places: Range<usize>) -> Result<SpanMut<'_>> {
        Ok(self.values.range_mut(places.start - self.start..places.end - self.start)?)
    }
}
