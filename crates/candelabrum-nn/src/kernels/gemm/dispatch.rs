//! Code compiled for several instruction sets.

use pulp::{Arch, WithSimd};

/// Runs `op` on the newest instruction set of this processor.
pub(crate) fn dispatch<O: WithSimd>(op: O) -> O::Output {
    Arch::new().dispatch(op)
}
