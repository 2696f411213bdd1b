//! The seam between whoever has gradients and whoever knows what to do with them.

use std::fmt::Debug;

use candelabrum_memory::{Location, Span, SpanMut};

use crate::Result;

/// What an optimizer is told of a parameter.
#[derive(Clone, Debug)]
pub struct ParamInfo<'a> {
    /// Its name, which groups select by.
    pub name: &'a str,
    /// Its dimensions.
    pub dims: &'a [usize],
    /// Where its values live: the optimizer keeps its state there too.
    pub location: Location,
}

impl<'a> ParamInfo<'a> {
    /// A parameter in host memory.
    pub fn on_host(name: &'a str, dims: &'a [usize]) -> Self {
        Self { name, dims, location: Location::HOST }
    }

    /// The product of its dimensions.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// Turns averaged gradients into new values, one parameter at a time.
///
/// The calls of one training step: [`update`](Self::update) once for each parameter, in any order,
/// then [`step`](Self::step). Updates of different parameters do not depend on each other, so a
/// parameter can be updated as soon as its gradient is there.
pub trait Optimizer: Debug + Send {
    /// One line that names the optimizer and every setting, its groups' and schedules' included:
    /// equal lines mean equal updates, and ranks compare theirs before they train.
    fn describe(&self) -> String;

    /// Allocates the state of these parameters, which are known by their place in `params` from
    /// then on. Once, before the first update. The count of steps stays as it is.
    ///
    /// # Errors
    /// Settings that make no sense, and groups that select nothing. Without any parameter only the
    /// settings are looked at.
    fn bind(&mut self, params: &[ParamInfo<'_>]) -> Result<()>;

    /// Replaces `value`, parameter number `index`, by its successor along `grad`.
    ///
    /// # Errors
    /// [`Error::Unbound`](crate::Error::Unbound) and [`Error::Length`](crate::Error::Length) where
    /// the call does not fit what was bound.
    fn update(&mut self, index: usize, value: SpanMut<'_>, grad: Span<'_>) -> Result<()>;

    /// Every vector that it keeps, in an order that is the same wherever the same parameters were
    /// bound: replicas that have gone separate ways average theirs when they come together.
    ///
    /// # Errors
    /// What a device says.
    fn state_mut(&mut self) -> Result<Vec<SpanMut<'_>>> {
        Ok(Vec::new())
    }

    /// What it keeps of parameter number `index`, in order, if it can tell that apart from the rest:
    /// then an update can be undone, and may run before it is known that the step will be taken.
    ///
    /// # Errors
    /// What a device says.
    fn parameter_state(&mut self, index: usize) -> Result<Option<Vec<SpanMut<'_>>>> {
        let _ = index;
        Ok(None)
    }

    /// Ends a training step: the count and the schedules move on.
    fn step(&mut self);

    /// The learning rate of the coming step, before any group scales it.
    fn learning_rate(&self) -> f32;

    /// How many steps have been taken. With [`Self::state_mut`] it is all that changes in training.
    fn steps(&self) -> u64;

    /// Goes on as after `steps` steps.
    fn set_steps(&mut self, steps: u64);
}
