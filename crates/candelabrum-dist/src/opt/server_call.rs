//! What the first worker tells the servers of a step.

use candelabrum_optim::Recipe;
use serde::{Deserialize, Serialize};

use super::config::DistOptConfig;
use super::dist_opt_state::DistOptState;
use super::step_request::StepRequest;
use crate::strategy::StrategyConfig;
use crate::{Error, Result};

/// What all workers are about to do with a model, and what its servers must do with them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ServerCall {
    /// Make an optimizer.
    Create {
        recipe: Recipe,
        config: Box<DistOptConfig>,
    },
    /// Fix the parameters, by name and dimensions, and take the first worker's values.
    Bind(Vec<(String, Vec<usize>)>),
    /// Take the first worker's values.
    TakeValues,
    /// Take part in the exchange of the weights of a step's losses, which has begun.
    BeginStep,
    /// Take a step. `frozen` are the names of frozen parameters, if the request is new.
    Step {
        request: StepRequest,
        exchanges_weights: bool,
        frozen: String,
    },
    SetRateFactor(f64),
    SetRate(Option<f64>),
    /// Send the state of the optimizer to the workers.
    SendState,
    /// Take the state of the optimizer from the first worker: vectors of these lengths.
    TakeState(Vec<usize>),
    LoadState(Box<DistOptState>),
    /// Forget all strategies. Continue with these ones, each with the number of its steps.
    LoadStrategies(Vec<(String, StrategyConfig, u64)>),
}

impl ServerCall {
    pub(super) fn to_text(&self, model: usize) -> Result<String> {
        serde_json::to_string(&(model, self)).map_err(|error| unreadable(&error))
    }

    /// The model's number, and what to do with it.
    pub(super) fn from_text(text: &str) -> Result<(usize, Self)> {
        serde_json::from_str(text).map_err(|error| unreadable(&error))
    }
}

fn unreadable(error: &serde_json::Error) -> Error {
    Error::Protocol { what: format!("a call of a server: {error}") }
}
