//! Parameters that training leaves as they are.
//!
//! A layer takes a frozen parameter into the graph as a constant, so no gradient of it is computed. An
//! optimizer gets the others only, so it is neither sent nor updated. If its values are still those of the files that
//! the model was loaded from, nothing has to send or save them: whoever needs them reads the files again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use candle_core::{Tensor, Var};

/// Whether a parameter is frozen. Clones of a parameter share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Freeze(Arc<FreezeState>);

#[derive(Debug, Default)]
struct FreezeState {
    frozen: AtomicBool,
    /// Whether the values are those of the files that the model was loaded from.
    pretrained: AtomicBool,
    /// Whether the values were drawn although the model was loaded from files.
    drawn: AtomicBool,
    /// Whether the parameter is part of an adapter that is merged, or of the weight that it is merged into.
    merged: AtomicBool,
    /// The parameter outside of the graph. It shares the variable's memory, so it changes with the variable.
    constant: OnceLock<Tensor>,
}

impl Freeze {
    pub(crate) fn set(&self, frozen: bool) {
        self.0.frozen.store(frozen, Ordering::Relaxed);
    }

    /// Says where the values are from: the model's files, a draw in their place, or neither.
    pub(crate) fn set_origin(&self, pretrained: bool, drawn: bool) {
        self.0.pretrained.store(pretrained, Ordering::Relaxed);
        self.0.drawn.store(drawn, Ordering::Relaxed);
    }

    pub(crate) fn is_drawn(&self) -> bool {
        self.0.drawn.load(Ordering::Relaxed)
    }

    pub(crate) fn set_merged(&self, merged: bool) {
        self.0.merged.store(merged, Ordering::Relaxed);
    }

    pub(crate) fn is_merged(&self) -> bool {
        self.0.merged.load(Ordering::Relaxed)
    }

    pub(crate) fn is_constant(&self) -> bool {
        self.is_set() && self.0.pretrained.load(Ordering::Relaxed)
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
