//! The interface between code that has gradients and code that updates parameters.

use std::fmt::Debug;
use std::ops::Range;

use candelabrum_memory::{Location, Span, SpanMut};

use crate::{Error, Result};

/// The properties of a parameter that an optimizer needs.
#[derive(Clone, Debug)]
pub struct ParamInfo<'a> {
    /// The parameter's name, by which groups select.
    pub name: &'a str,
    /// The parameter's dimensions.
    pub dims: &'a [usize],
    /// The range of the parameter's elements that the optimizer updates, if it is not the whole parameter: the share of
    /// one of several ranks. The optimizer has the state of these elements, and gets their values and gradients.
    pub part: Option<Range<usize>>,
    /// The memory of the parameter's values. The optimizer allocates its state there too.
    pub location: Location,
}

impl<'a> ParamInfo<'a> {
    /// A parameter in host memory.
    pub fn on_host(name: &'a str, dims: &'a [usize]) -> Self {
        Self { name, dims, part: None, location: Location::HOST }
    }

    /// The number of elements that the optimizer updates: the product of the dimensions, or the length of the
    /// [part](Self::part).
    pub fn elements(&self) -> usize {
        self.part.as_ref().map_or_else(|| self.whole(), Range::len)
    }

    fn whole(&self) -> usize {
        self.dims.iter().product()
    }

    /// Refuses a part of a parameter that the optimizer must update as a whole. No element at all is no part.
    pub(crate) fn check_part(&self, optimizer: &dyn Optimizer, index: usize) -> Result<()> {
        let is_part = self.elements() != 0 && self.elements() != self.whole();
        if is_part && !optimizer.is_elementwise() {
            return Err(Error::Whole { index, optimizer: optimizer.describe() });
        }
        Ok(())
    }
}

/// A parameter to be updated together with others.
#[derive(Debug)]
pub struct Update<'a> {
    /// The parameter's number.
    pub index: usize,
    /// Its values, which the update replaces.
    pub value: SpanMut<'a>,
    /// Its gradient.
    pub grad: Span<'a>,
}

/// Computes new values from averaged gradients.
///
/// The calls of one training step are [`update`](Self::update) once for each parameter, in any
/// order, then [`step`](Self::step). Updates of different parameters are independent, so a
/// parameter can be updated as soon as its gradient is complete. On a GPU,
/// [`update_all`](Self::update_all) of several parameters takes the place of their updates.
pub trait Optimizer: Debug + Send {
    /// One line that names the optimizer and every setting, with the settings of its groups and
    /// schedules. Equal lines mean equal updates. Ranks compare their lines before they train.
    fn describe(&self) -> String;

    /// Allocates the state of these parameters. Later calls refer to a parameter by its index in
    /// `params`. Call it once, before the first update. It does not change the count of steps.
    ///
    /// # Errors
    /// Meaningless settings, and groups that select nothing. Without any parameter only the
    /// settings are checked.
    fn bind(&mut self, params: &[ParamInfo<'_>]) -> Result<()>;

    /// Replaces `value`, parameter number `index`, by its successor along `grad`.
    ///
    /// # Errors
    /// [`Error::Unbound`](crate::Error::Unbound) and [`Error::Length`](crate::Error::Length) if the
    /// index or a length does not fit the bound parameters.
    fn update(&mut self, index: usize, value: SpanMut<'_>, grad: Span<'_>) -> Result<()>;

    /// Whether a part of a parameter can be updated without the rest: by [`update_range`](Self::update_range), or
    /// because the optimizer was [bound](Self::bind) to this [part](ParamInfo::part).
    fn is_elementwise(&self) -> bool {
        false
    }

    /// Does what [`update`](Self::update) does to the elements `range` of parameter number `index`,
    /// whose values and gradients are `value` and `grad`. The other elements and their state stay as
    /// they are. Only for parameters on the host.
    ///
    /// # Errors
    /// Those of [`update`](Self::update), and [`Error::Whole`](crate::Error::Whole) if the optimizer
    /// is not [element-wise](Self::is_elementwise).
    fn update_range(
        &mut self,
        index: usize,
        range: Range<usize>,
        value: &mut [f32],
        grad: &[f32],
    ) -> Result<()> {
        let _ = (range, value, grad);
        Err(Error::Whole { index, optimizer: self.describe() })
    }

    /// Does what [`update`](Self::update) does, for several different parameters. On a GPU one launch
    /// of a kernel for all of them costs less than one for each. On the host nothing is gained.
    ///
    /// # Errors
    /// Those of [`update`](Self::update), and [`Error::Repeated`](crate::Error::Repeated).
    fn update_all(&mut self, updates: Vec<Update<'_>>) -> Result<()> {
        for Update { index, value, grad } in updates {
            self.update(index, value, grad)?;
        }
        Ok(())
    }

    /// Whether the elements of the state vectors are numbers, so that replicas whose states differ may
    /// average them. Bit patterns can only be copied.
    fn has_numeric_state(&self) -> bool {
        true
    }

    /// All vectors of the state, in an order that depends only on the bound parameters. Replicas
    /// whose states differ average these vectors, if they are [numeric](Self::has_numeric_state).
    ///
    /// # Errors
    /// A device's error.
    fn state_mut(&mut self) -> Result<Vec<SpanMut<'_>>> {
        Ok(Vec::new())
    }

    /// The state of parameter number `index`, if the optimizer can separate it from the rest. Then
    /// an update can be undone, so it may run before the step is known to succeed.
    ///
    /// # Errors
    /// A device's error.
    fn parameter_state(&mut self, index: usize) -> Result<Option<Vec<SpanMut<'_>>>> {
        let _ = index;
        Ok(None)
    }

    /// Ends a training step: increments the count of steps and computes the next rates.
    fn step(&mut self);

    /// The learning rate of the next step, before a group scales it.
    fn learning_rate(&self) -> f32;

    /// The number of completed steps. In training only this number and [`Self::state_mut`] change.
    fn steps(&self) -> u64;

    /// Continues as after `steps` steps.
    fn set_steps(&mut self, steps: u64);

    /// The factor of all learning rates beside their schedules, 1 at first.
    fn rate_factor(&self) -> f64 {
        1.0
    }

    /// Sets the factor of all learning rates from the next step on: for a rate that depends on what training
    /// finds, which no schedule can know. It must be the same on all ranks.
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting) for a factor that is negative or not finite, and
    /// [`Error::FixedRate`](crate::Error::FixedRate) from an optimizer that has no such factor.
    fn set_rate_factor(&mut self, factor: f64) -> Result<()> {
        if factor == self.rate_factor() {
            return Ok(());
        }
        Err(Error::FixedRate { optimizer: self.describe() })
    }

    /// Sets the learning rate itself from the next step on, in place of the schedule and its factor, or gives it
    /// back to the schedule by `None`. Groups with schedules of their own keep the ratio of their rates to this
    /// one. It must be the same on all ranks, and is not part of what a checkpoint keeps.
    ///
    /// # Errors
    /// As for [`set_rate_factor`](Self::set_rate_factor).
    fn set_rate(&mut self, rate: Option<f64>) -> Result<()> {
        match rate {
            None => Ok(()),
            Some(_) => Err(Error::FixedRate { optimizer: self.describe() }),
        }
    }
}

/// So an optimizer may be chosen when the program runs.
impl<T: Optimizer + ?Sized> Optimizer for Box<T> {
    fn describe(&self) -> String {
        (**self).describe()
    }
    fn bind(&mut self, params: &[ParamInfo<'_>]) -> Result<()> {
        (**self).bind(params)
    }
    fn update(&mut self, index: usize, value: SpanMut<'_>, grad: Span<'_>) -> Result<()> {
        (**self).update(index, value, grad)
    }
    fn is_elementwise(&self) -> bool {
        (**self).is_elementwise()
    }
    fn update_range(
        &mut self,
        index: usize,
        range: Range<usize>,
        value: &mut [f32],
        grad: &[f32],
    ) -> Result<()> {
        (**self).update_range(index, range, value, grad)
    }
    fn update_all(&mut self, updates: Vec<Update<'_>>) -> Result<()> {
        (**self).update_all(updates)
    }
    fn has_numeric_state(&self) -> bool {
        (**self).has_numeric_state()
    }
    fn state_mut(&mut self) -> Result<Vec<SpanMut<'_>>> {
        (**self).state_mut()
    }
    fn parameter_state(&mut self, index: usize) -> Result<Option<Vec<SpanMut<'_>>>> {
        (**self).parameter_state(index)
    }
    fn step(&mut self) {
        (**self).step();
    }
    fn learning_rate(&self) -> f32 {
        (**self).learning_rate()
    }
    fn steps(&self) -> u64 {
        (**self).steps()
    }
    fn set_steps(&mut self, steps: u64) {
        (**self).set_steps(steps);
    }
    fn rate_factor(&self) -> f64 {
        (**self).rate_factor()
    }
    fn set_rate_factor(&mut self, factor: f64) -> Result<()> {
        (**self).set_rate_factor(factor)
    }
    fn set_rate(&mut self, rate: Option<f64>) -> Result<()> {
        (**self).set_rate(rate)
    }
}
