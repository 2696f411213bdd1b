//! Clipping what the buckets hold, all of a model's gradients together.
//!
//! The buckets hold averages when this is called, the same bits on every rank, so every rank
//! computes the same norm without a message.

use candelabrum_optim::{Clip, clip_values, global_norm, scale};

use super::units::Bucket;
use crate::{Error, Result};

/// Clips the gradients in `buckets`.
pub(super) fn clip(clip: Clip, buckets: &mut [Bucket], rank: usize) -> Result<()> {
    if let Clip::Value(limit) = clip {
        for bucket in buckets {
            clip_values(bucket.values(rank)?, limit);
        }
        return Ok(());
    }
    // Parameter by parameter: the norm does not depend on where one bucket ends.
    let mut slices = Vec::new();
    for Bucket { plan, buffer } in buckets.iter() {
        let values = buffer.as_ref().ok_or(Error::Stopped { rank })?.as_slice::<f32>()?;
        slices.extend(plan.slots.iter().map(|slot| &values[slot.range.clone()]));
    }
    if let Some(factor) = clip.factor(global_norm(slices)) {
        for bucket in buckets {
            scale(bucket.values(rank)?, factor);
        }
    }
    Ok(())
}
