//! New values of other ranks' shards that arrive while the next forward pass begins. A step starts the gatherings, and the
//! first access to a parameter waits for those of its bucket.
//!
//! The buckets carry the values, so they come back before the next step needs them for gradients.

use std::fmt;
use std::ops::Range;

use candelabrum_memory::{FlatTensor, SpanMut};
use parking_lot::Mutex;

use crate::comm::Pending;
use crate::{Error, Result};

/// The values of a bucket on their way.
pub(super) struct InFlightValues(Mutex<ArrivalState>);

enum ArrivalState {
    UnderWay(Pending),
    Here(FlatTensor),
    /// Whoever asks for the values gets the failure, and so does the next step.
    Failed(Error),
    Taken,
}

impl InFlightValues {
    pub(super) fn new(bucket: Pending) -> Self {
        Self(Mutex::new(ArrivalState::UnderWay(bucket)))
    }

    /// Waits for the values, and copies those at `place` of the bucket to a parameter, but for this rank's `own`.
    pub(super) fn copy_others(
        &self,
        to: SpanMut<'_>,
        place: Range<usize>,
        own: Range<usize>,
    ) -> Result<()> {
        let mut state = self.0.lock();
        state.arrive();
        match &*state {
            ArrivalState::Here(bucket) => copy_others(to, bucket, place, own),
            ArrivalState::Failed(error) => Err(error.clone()),
            ArrivalState::UnderWay(_) | ArrivalState::Taken => Err(taken()),
        }
    }

    /// The bucket, after all parameters have their values.
    pub(super) fn take(&self) -> Result<FlatTensor> {
        let mut state = self.0.lock();
        state.arrive();
        match std::mem::replace(&mut *state, ArrivalState::Taken) {
            ArrivalState::Here(bucket) => Ok(bucket),
            ArrivalState::Failed(error) => {
                *state = ArrivalState::Failed(error.clone());
                Err(error)
            }
            ArrivalState::UnderWay(_) | ArrivalState::Taken => Err(taken()),
        }
    }
}

fn taken() -> Error {
    Error::Protocol { what: "a bucket of new values was taken twice".to_owned() }
}

/// Copies the values at `place` of a bucket to a parameter, but for this rank's `own`.
pub(super) fn copy_others(
    mut to: SpanMut<'_>,
    bucket: &FlatTensor,
    place: Range<usize>,
    own: Range<usize>,
) -> Result<()> {
    let others = [0..own.start, own.end..place.len()].into_iter().filter(|part| !part.is_empty());
    for part in others {
        let from = bucket.range(place.start + part.start..place.start + part.end)?;
        to.reborrow().range(part).copy_from(from)?;
    }
    Ok(())
}

impl ArrivalState {
    fn arrive(&mut self) {
        if let Self::UnderWay(_) = self
            && let Self::UnderWay(pending) = std::mem::replace(self, Self::Taken)
        {
            *self = match pending.wait() {
                Ok(bucket) => Self::Here(bucket.into_flat()),
                Err(error) => Self::Failed(error),
            };
        }
    }
}

impl fmt::Debug for InFlightValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Arriving")
    }
}
