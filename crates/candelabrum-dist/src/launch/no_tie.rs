//! The replacement of the tie to a launcher in builds without one.

use crate::Result;

/// # Errors
/// None.
pub(crate) fn follow_parent() -> Result<()> {
    Ok(())
}
