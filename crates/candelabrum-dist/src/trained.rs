//! The parameters that an optimizer trains: those that were trainable at its first step.

use std::sync::Arc;

use candelabrum_nn::{Param, Params};

use crate::{Error, Result};

/// The parameters of an optimizer, divided at its first step. They have a fixed place in its buckets and its
/// state from then on.
#[derive(Clone, Debug)]
pub(crate) struct TrainableParams {
    trained: Arc<[Param]>,
    /// Those that were frozen then.
    left_out: Vec<Param>,
}

impl TrainableParams {
    /// The parameters that are not frozen now.
    ///
    /// # Errors
    /// [`Error::NoParameters`].
    pub(crate) fn from_params(params: &Params) -> Result<Self> {
        let (left_out, trained): (Vec<Param>, Vec<Param>) =
            params.list().into_iter().partition(Param::is_frozen);
        if trained.is_empty() {
            return Err(Error::NoParameters);
        }
        Ok(Self { trained: trained.into(), left_out })
    }

    /// The parameters that are trained, in the order of the model. Some of them may be frozen now.
    pub(crate) fn params(&self) -> &Arc<[Param]> {
        &self.trained
    }

    /// The parameters that were frozen at the first step.
    pub(crate) fn left_out(&self) -> &[Param] {
        &self.left_out
    }

    /// The numbers of the trained parameters that have been frozen since the first step. They get no update.
    pub(crate) fn frozen(&self) -> Vec<usize> {
        let params = self.trained.iter().enumerate();
        params.filter(|(_, param)| param.is_frozen()).map(|(number, _)| number).collect()
    }

    /// Returns an error if a parameter would have to be trained and has no place: it was created after the first
    /// step, or it was frozen then.
    ///
    /// # Errors
    /// [`Error::Unfrozen`] and [`Error::LateParameters`].
    pub(crate) fn check(&self, params: &Params) -> Result<()> {
        let unfrozen = names(self.left_out.iter().filter(|param| !param.is_frozen()));
        if !unfrozen.is_empty() {
            return Err(Error::Unfrozen { names: unfrozen });
        }
        if params.len() == self.trained.len() + self.left_out.len() {
            return Ok(());
        }
        let known = |name: &str| {
            self.trained.iter().chain(&self.left_out).any(|param| param.name() == name)
        };
        let trainable = params.trainable();
        let late = names(trainable.iter().filter(|param| !known(param.name())));
        if late.is_empty() { Ok(()) } else { Err(Error::LateParameters { names: late }) }
    }
}

fn names<'a>(params: impl Iterator<Item = &'a Param>) -> String {
    params.map(Param::name).collect::<Vec<_>>().join(", ")
}
