//! Parameters that training leaves as they are.
//!
//! A layer takes a frozen parameter into the graph as a constant, so no gradient of it is computed. An
//! optimizer gets the others only, so it is neither sent nor updated.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use candle_core::{Tensor, Var};

/// Whether a parameter is frozen. Clones of a parameter share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Freeze(Arc<FreezeState>);

#[derive(Debug, Default)]
struct FreezeState {
    frozen: AtomicBool,
    /// The parameter outside of the graph. It shares the variable's memory, so it changes with the variable.
    constant: OnceLock<Tensor>,
}

impl Freeze {
    pub(crate) fn set(&self, frozen: bool) {
        self.0.frozen.store(frozen, Ordering::Relaxed);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.frozen.load(Ordering::Relaxed)
    }

    /// The tensor of `var` for this step's graph.
    pub(crate) fn tensor<'a>(&'a self, var: &'a Var) -> &'a Tensor {
        if self.is_set() {
            return self.0.constant.get_or_init(|| var.as_detached_tensor());
        }
        var.as_tensor()
    }
}
