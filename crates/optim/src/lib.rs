//! Optimizers over flat parameters, updated in place.
//!
//! An [`Optimizer`] sees numbers only: slices of values and of gradients, by the parameter's
//! index. It knows neither tensors nor ranks, so the same code serves one process, gradient
//! buckets that arrive one by one, and tests against PyTorch. Here is [`Sgd`].

#![forbid(unsafe_code)]

mod error;
mod sgd;

pub use error::{Error, Result};
pub use sgd::Sgd;

/// Turns averaged gradients into new values, one parameter at a time.
///
/// The calls of one training step: [`update`](Self::update) once for each parameter, in any order,
/// then [`step`](Self::step). Updates of different parameters do not depend on each other, so a
/// parameter can be updated as soon as its gradient is there.
pub trait Optimizer: std::fmt::Debug + Send {
    /// One line that names the optimizer and every setting: equal lines mean equal updates, and
    /// ranks compare theirs before they train.
    fn describe(&self) -> String;

    /// Allocates the state for parameters of `sizes` elements, once, before the first update.
    ///
    /// # Errors
    /// Settings that make no sense.
    fn bind(&mut self, sizes: &[usize]) -> Result<()>;

    /// Replaces `value`, parameter number `index`, by its successor along `grad`.
    ///
    /// # Errors
    /// [`Error::Unbound`] and [`Error::Length`] where the call does not fit what was bound.
    fn update(&mut self, index: usize, value: &mut [f32], grad: &[f32]) -> Result<()>;

    /// Every vector that it keeps, in an order that is the same wherever the same parameters were
    /// bound: replicas that have gone separate ways average theirs when they come together.
    fn state_mut(&mut self) -> Vec<&mut [f32]> {
        Vec::new()
    }

    /// Ends a training step: counters and schedules move on.
    fn step(&mut self);
}
