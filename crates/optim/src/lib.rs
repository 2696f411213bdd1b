//! Optimizers that update flat parameters in place.
