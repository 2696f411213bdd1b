//! The replacement of `ready.rs` in builds without GPUs.

use candelabrum_memory::FlatTensor;

use crate::Result;

/// # Errors
/// None.
#[expect(clippy::unnecessary_wraps, reason = "with a GPU this function can fail")]
pub(super) fn check_not_recorded(_flat: &FlatTensor) -> Result<()> {
    Ok(())
}

/// A point of a GPU's stream.
pub(super) enum StreamPoint {}

/// # Errors
/// None.
#[expect(clippy::unnecessary_wraps, reason = "with a GPU this function can fail")]
pub(super) fn ready(_flat: &mut FlatTensor) -> Result<Option<StreamPoint>> {
    Ok(None)
}
