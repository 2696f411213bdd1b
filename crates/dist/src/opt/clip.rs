//! Clipping what the buckets hold, all of a model's gradients together.
//!
//! The buckets hold averages when this is called, the same bits on every rank, so every rank
//! computes the same norm without a message.

use candelabrum_optim::{Clip, clip_values, global_norm, scale};

use super::units::Layout;
use crate::comm::Buffer;
use crate::{Error, Result};

/// Clips the gradients in the buckets of `layout`.
pub(super) fn clip(clip: Clip, layout: &mut Layout, rank: usize) -> Result<()> {
    let count = layout.plans.len();
    if let Clip::Value(limit) = clip {
        for number in 0..count {
            clip_values(layout.values(number, rank)?, limit);
        }
        return Ok(());
    }
    // Parameter by parameter: the norm does not depend on where one bucket ends.
    let mut slices = Vec::new();
    for (plan, buffer) in layout.plans.iter().zip(layout.gradients.buffers_mut().iter()) {
        let values = buffer.as_ref().map(Buffer::as_slice::<f32>);
        let values = values.ok_or(Error::Stopped { rank })??;
        slices.extend(plan.slots.iter().map(|slot| &values[slot.range.clone()]));
    }
    if let Some(factor) = clip.factor(global_norm(slices)) {
        for number in 0..count {
            scale(layout.values(number, rank)?, factor);
        }
    }
    Ok(())
}
