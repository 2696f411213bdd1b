//! The state of a [`DistOpt`] in a checkpoint.
//!
//! | file | content | written by |
//! |---|---|---|
//! | `parameters` | parameters and buffers, without what the model's own files have and nothing trains | rank 0 |
//! | `parameters-shard-N` | the shard of rank N in parameters, if ranks keep shards of them | rank N of one host, if hosts have copies |
//! | `optimizer` | the vectors of the optimizer, if they are the same on all ranks | rank 0 |
//! | `optimizer-shard-N` | the shard of rank N in these vectors, if ranks keep shards | rank N of one host, if hosts have copies |
//! | `optimizer-rank-N` | the same, if each rank has its own (partialUpdate) | rank N |
//! | `buffers-rank-N` | buffers, if each rank keeps its own | rank N |
//! | `servers/` | the values and vectors of servers that update at once | these servers |
//! | `residuals-rank-N` | what the strategies have not sent yet, by number of the strategy, kind and parameter | rank N |

use std::path::Path;

use candelabrum_dist::strategy::ErrorFeedback;
use candelabrum_dist::{BufferSync, DistOpt, OptimizerVector, StrategyState};
use candelabrum_memory::Span;
use candelabrum_nn::Params;

use super::manifest::{PartState, SavedStrategy};
use super::model::{
    OPTIMIZER, PARAMETERS, RESIDUALS, check_buffers, device, load_buffers, mean_of, save_buffers,
};
use super::parameters::{check_parameters, load_parameters, save_parameters, save_shards};
use super::restored::{Restored, VectorFile};
use super::shards;
use super::snapshot::{Snapshot, shared_name};
use super::stateful::Stateful;
use crate::{Error, Result};

const BUFFERS: &str = "buffers";

impl Stateful for DistOpt {
    fn params(&self) -> &Params {
        self.params()
    }

    fn average_parameters(&mut self) -> Result<()> {
        Ok(self.average_parameters()?)
    }

    fn save(&mut self, name: &str, snapshot: &mut Snapshot, dir: &Path) -> Result<PartState> {
        let servers = shared_name(name, "servers");
        let servers = self.save_servers(&dir.join(&servers))?.then_some(servers);
        let state = self.state();
        if let Some(file) = snapshot.shared(name, PARAMETERS) {
            save_parameters(self.params(), file)?;
        }
        let saves_shards = self.saves_shards();
        if saves_shards {
            save_shards(self.params(), || snapshot.shard(name, PARAMETERS))?;
        }
        let own_buffers = has_own_buffers(self);
        if own_buffers {
            save_buffers(self.params(), snapshot.own(name, BUFFERS))?;
        }
        self.collect_state()?;
        let file = match state.has_equal_vectors() {
            _ if servers.is_some() => None,
            _ if state.sharded => saves_shards.then(|| snapshot.shard(name, OPTIMIZER)),
            true => snapshot.shared(name, OPTIMIZER),
            false => Some(snapshot.own(name, OPTIMIZER)),
        };
        if let Some(file) = file {
            for OptimizerVector { name, start, values } in self.optimizer_vectors()? {
                let values = values.as_span();
                match state.sharded {
                    true => file.put_shard(&name, start, &[], values),
                    false => file.put(&name, &[values.len()], values),
                }
                .map_err(device)?;
            }
        }
        let mut strategies = Vec::new();
        for (number, strategy) in self.strategy_state()?.into_iter().enumerate() {
            let StrategyState { option, config, steps, error_feedback } = strategy;
            for (kind, param, values) in error_feedback.iter() {
                let file = snapshot.own(name, RESIDUALS);
                let key = format!("{number}/{kind}/{param}");
                file.put(&key, &[values.len()], Span::Host(values)).map_err(device)?;
            }
            strategies.push(SavedStrategy { option: option.to_string(), config, steps });
        }
        let constants = self.constants_sha256()?;
        Ok(match servers {
            Some(servers) => {
                let (steps, state) = (state.steps, Some(Box::new(state)));
                PartState::Store { steps, servers, strategies, state, constants }
            }
            None => {
                PartState::AllReduce { state: Box::new(state), strategies, own_buffers, constants }
            }
        })
    }

    fn check(&mut self, name: &str, restored: &Restored) -> Result<()> {
        let (state, constants) = match restored.part(name)? {
            PartState::AllReduce { state, constants, .. } if self.is_in_step() => {
                (Some(state), constants)
            }
            PartState::Store { constants, .. } if !self.is_in_step() => (None, constants),
            PartState::AllReduce { .. } => {
                let what = "is of a training in which each step is one update, and here each gradient is one: leave --kvstore dist_async out";
                return Err(restored.refuse(what.to_owned()));
            }
            PartState::Store { .. } => {
                let what =
                    "is of a training whose servers keep its state: use --kvstore dist_async";
                return Err(restored.refuse(what.to_owned()));
            }
        };
        restored.check_constants(constants.as_deref(), self.constants_sha256()?.as_deref())?;
        check_parameters(self.params(), restored, name)?;
        let Some(state) = state else { return Ok(()) };
        for file in restored.own(name, BUFFERS) {
            check_buffers(self.params(), file)?;
        }
        let here = self.optimizer().describe();
        let kind = |line: &str| line.split_whitespace().next().unwrap_or_default().to_owned();
        let other = || {
            let what = format!("is of the optimizer `{}`, this run has `{here}`", state.optimizer);
            restored.refuse(what)
        };
        if kind(&state.optimizer) != kind(&here) {
            return Err(other());
        }
        // SGD without momentum has other vectors than SGD with it.
        let explained = |why| match why {
            Error::Checkpoint { what, .. } => restored.refuse(format!(
                "is of the optimizer `{}`, this run has `{here}`: its file of vectors {what}",
                state.optimizer
            )),
            other => other,
        };
        let is_divided = state.sharded || self.has_shards();
        let vectors = self.optimizer_vectors()?;
        if is_divided {
            return shards::check(restored, name, state, &vectors).map_err(explained);
        }
        let vectors = vectors.into_iter().map(|v| (v.name, vec![v.values.len()]));
        let vectors: Vec<(String, Vec<usize>)> = vectors.collect();
        let saved = match state.has_equal_vectors() {
            true => restored.shared(name, OPTIMIZER).ok().into_iter().collect(),
            false => restored.own(name, OPTIMIZER),
        };
        if saved.is_empty() && !vectors.is_empty() {
            return Err(other());
        }
        let fits = saved.into_iter().try_for_each(|file| file.check(&vectors));
        fits.map_err(explained)
    }

    fn load(&mut self, name: &str, restored: &Restored) -> Result<()> {
        let (state, strategies) = match restored.part(name)? {
            PartState::AllReduce { state, strategies, .. } if self.is_in_step() => {
                (state, strategies)
            }
            PartState::Store { steps, servers, strategies, state, .. } if !self.is_in_step() => {
                // For the buffers: the parameters come from the servers.
                load_parameters(self.params(), restored, name)?;
                load_own_buffers(self, name, restored)?;
                state.as_ref().map_or(Ok(()), |state| self.load_state(state))?;
                self.load_servers(&restored.path().join(servers), *steps)?;
                return load_strategies(self, name, restored, strategies);
            }
            _ => return self.check(name, restored),
        };
        load_parameters(self.params(), restored, name)?;
        load_own_buffers(self, name, restored)?;
        self.load_state(state)?;
        let own = restored.own(name, OPTIMIZER);
        let is_divided = state.sharded || self.has_shards();
        let vectors = self.optimizer_vectors()?;
        if is_divided {
            shards::load(restored, name, state, vectors)?;
        } else if state.has_equal_vectors() {
            let file = restored.shared(name, OPTIMIZER);
            for OptimizerVector { name, values, .. } in vectors {
                file.as_ref().map_err(|_| missing(restored, OPTIMIZER))?.copy_to(&name, values)?;
            }
        } else {
            for OptimizerVector { name, mut values, .. } in vectors {
                let mean = mean_of(&own, &name)?;
                values.copy_from((&mean).into()).map_err(device)?;
            }
        }
        self.distribute_state()?;
        load_strategies(self, name, restored, strategies)
    }
}

/// At another number of ranks, all begin with the buffers of rank 0, which are beside the parameters.
fn load_own_buffers(opt: &DistOpt, name: &str, restored: &Restored) -> Result<()> {
    match restored.own(name, BUFFERS)[..] {
        [own] => load_buffers(opt.params(), own),
        _ => Ok(()),
    }
}

fn load_strategies(
    opt: &mut DistOpt,
    name: &str,
    restored: &Restored,
    strategies: &[SavedStrategy],
) -> Result<()> {
    let residuals = restored.own(name, RESIDUALS);
    let mut states = Vec::new();
    for (number, SavedStrategy { option, config, steps }) in strategies.iter().enumerate() {
        let (option, steps, config) = (option.parse()?, *steps, config.clone());
        let error_feedback = error_feedback(&residuals, number)?;
        states.push(StrategyState { option, config, steps, error_feedback });
    }
    Ok(opt.load_strategy_state(&states)?)
}

fn has_own_buffers(opt: &DistOpt) -> bool {
    opt.config().buffers == BufferSync::Local
        && opt.group().world_size() > 1
        && !opt.params().buffers().is_empty()
}

fn missing(restored: &Restored, file: &str) -> Error {
    restored.refuse(format!("has no file {file}.safetensors"))
}

/// The error feedback of strategy `number`: this rank's own one. At another number of ranks it is the mean of all ranks'
/// memories, so that what all ranks together have not sent yet has the same effect as before.
fn error_feedback(files: &[&VectorFile], number: usize) -> Result<ErrorFeedback> {
    let prefix = format!("{number}/");
    let mut names: Vec<&str> = files.iter().flat_map(|file| file.names()).collect();
    names.retain(|name| name.starts_with(&prefix));
    names.sort_unstable();
    names.dedup();
    let vector = |name: &str| {
        let (kind, param) = name[prefix.len()..].split_once('/').unwrap_or_default();
        Ok((kind.to_owned(), param.to_owned(), mean_of(files, name)?))
    };
    names.into_iter().map(vector).collect()
}
