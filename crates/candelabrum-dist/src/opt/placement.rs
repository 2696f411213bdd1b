//! Who updates a bucket.
//!
//! | placement | who has the averages of a bucket, updates its parameters and keeps the optimizer's state |
//! |---|---|
//! | every rank | every rank |
//! | owners | each rank for its shard ([`Shard`](super::Shard)) |
//! | servers, by rounds | ranks without batches, each for its shard: the last ranks of a step |
//! | servers, at once | servers that make an update of each worker's gradient, when the gradient arrives |
//!
//! The first three are one step. They differ in the ranks that own shards. In the fourth a worker takes its steps alone,
//! and an update sends the gradient to the servers instead of changing the values here.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use candelabrum_memory::SpanMut;
use candelabrum_nn::{DistOption, Param};
use candelabrum_optim::{Clip, Optimizer, Recipe};

use super::config::{DistOptConfig, Shard};
use super::server_call::ServerCall;
use crate::comm::{CommStats, Group};
use crate::{Error, Result};

/// The servers of a training, as one of its workers sees them.
#[derive(Debug)]
pub enum Servers {
    /// Servers that make one update of the gradients of all workers.
    Rounds(RoundServers),
    /// Servers that make an update of each worker's gradient, when the gradient arrives.
    AtOnce(Box<dyn UpdateServers>),
}

/// Servers that take part in the steps of all workers.
pub struct RoundServers {
    /// The ranks that compute gradients.
    pub workers: Group,
    /// The workers, and after them the servers.
    pub ranks: Group,
    /// The number of this model among those that the servers train.
    pub model: usize,
    /// Gives a text to [`StepServer::answer`](super::StepServer::answer) of each server. The first worker calls it.
    pub tell: ServerMessages,
}

/// Gives a text to all servers.
pub type ServerMessages = Box<dyn FnMut(&str) -> Result<()> + Send>;

/// Fills a parameter with the values that servers send, and waits for them.
pub type NewValues = Box<dyn FnOnce(SpanMut<'_>) -> Result<()> + Send>;

/// Servers that make an update of each worker's gradient, when the gradient arrives.
pub trait UpdateServers: fmt::Debug + Send {
    /// The workers.
    fn workers(&self) -> &Group;

    /// Sets the optimizer of the servers. All workers call it together.
    ///
    /// # Errors
    /// Workers with different optimizers, or a failure of another rank.
    fn set_optimizer(&mut self, recipe: &Recipe) -> Result<()>;

    /// Gives the servers the first worker's values of these parameters, whose numbers are their places. All workers call it
    /// together, once.
    ///
    /// # Errors
    /// Workers with different parameters, or a failure of another rank.
    fn bind(&mut self, params: &[Param]) -> Result<()>;

    /// Sends a gradient, and returns the way to the values that the servers make of it. `option` is the strategy that has
    /// compressed the gradient, so its values fit into that strategy's messages.
    ///
    /// # Errors
    /// A gradient that is not finite, servers that have refused an earlier one, or a failure of another rank.
    fn push(
        &mut self,
        param: usize,
        gradient: &[f32],
        option: (DistOption, f32),
    ) -> Result<NewValues>;

    /// The way to the values that the servers have now.
    ///
    /// # Errors
    /// Servers that have refused an earlier request, or a failure of another rank.
    fn pull(&mut self, param: usize) -> Result<NewValues>;

    /// Returns when all workers have called it, and the servers have all earlier gradients.
    ///
    /// # Errors
    /// Servers that have refused an earlier request, or a failure of another rank.
    fn barrier(&mut self) -> Result<()>;

    /// Lets each server write its values and its optimizer's state to a file in `dir`. All workers call it together.
    ///
    /// # Errors
    /// A file that cannot be written, or a failure of another rank.
    fn save(&mut self, dir: &Path) -> Result<()>;

    /// Lets each server read what [`save`](Self::save) has written. All workers call it together.
    ///
    /// # Errors
    /// A file that does not fit, or a failure of another rank.
    fn load(&mut self, dir: &Path) -> Result<()>;

    /// Bytes and time of this worker's messages.
    fn traffic(&self) -> CommStats;
}

/// Who updates a bucket, as this rank sees it.
#[derive(Debug)]
pub(super) enum Placement {
    EveryRank,
    /// The owners of shards.
    Owners,
    /// The servers of a step, of which this rank is a worker.
    Rounds(ServedWorker),
    /// This rank is a server. The workers say the names of their frozen parameters, of which it does not know all.
    Server {
        frozen: String,
    },
    /// Servers beside the steps.
    AtOnce(Box<dyn UpdateServers>),
}

/// A worker's part in steps with servers.
pub(super) struct ServedWorker {
    model: usize,
    tell: ServerMessages,
    /// Whether this worker speaks for all.
    is_first: bool,
    recipe: Recipe,
    /// The state of the servers' optimizers, while a checkpoint is made or read.
    pub(super) state: Option<Box<dyn Optimizer>>,
}

/// The ranks of a step.
#[derive(Clone, Debug)]
pub(super) struct StepRanks {
    /// Those that compute gradients. On a server, those of [`Self::all`].
    pub(super) workers: Group,
    /// Those that exchange gradients: the workers, and after them the servers.
    pub(super) all: Group,
    /// Those that have all shards together: those of this rank's host where hosts have copies, or all.
    pub(super) replica: Group,
    /// How many of them compute gradients.
    pub(super) count: usize,
}

impl StepRanks {
    /// Ranks that all compute gradients.
    pub(super) fn new(group: Group, shard: Shard) -> Self {
        let replica = if shard == Shard::None { None } else { group.replica() };
        let replica = replica.unwrap_or_else(|| Arc::clone(&group));
        let count = group.world_size();
        Self { workers: Arc::clone(&group), all: group, replica, count }
    }

    /// The first `count` of `all`, `workers`, compute gradients.
    pub(super) fn with_servers(workers: Group, all: Group, count: usize) -> Self {
        Self { workers, replica: Arc::clone(&all), all, count }
    }

    /// The traffic so far.
    pub(super) fn traffic(&self) -> CommStats {
        match Arc::ptr_eq(&self.all, &self.replica) {
            true => self.all.stats(),
            false => self.all.stats() + self.replica.stats(),
        }
    }

    /// The first rank of [`Self::replica`] that owns shards, and the number of all its ranks.
    pub(super) fn owners(&self) -> (usize, usize) {
        (if self.has_servers() { self.count } else { 0 }, self.replica.world_size())
    }

    /// Whether some ranks compute no gradients.
    pub(super) fn has_servers(&self) -> bool {
        self.count < self.all.world_size()
    }

    /// Whether this rank is one of them.
    pub(super) fn is_server(&self) -> bool {
        self.has_servers() && self.all.rank() >= self.count
    }
}

impl Placement {
    /// A worker's placement, and the ranks of its steps.
    ///
    /// # Errors
    /// Settings that servers cannot serve.
    pub(super) fn on_servers(
        servers: Servers,
        recipe: &Recipe,
        config: &DistOptConfig,
    ) -> Result<(Self, StepRanks)> {
        let refuse = |setting, value: String, range| Err(Error::Setting { setting, value, range });
        if config.shard != Shard::None {
            let range = "none with servers, which have the state of the optimizer";
            return refuse("shard", config.shard.to_string(), range);
        }
        match servers {
            Servers::Rounds(RoundServers { workers, ranks, model, tell }) => {
                let (is_first, count) = (workers.rank() == 0, workers.world_size());
                let recipe = recipe.clone();
                let worker = ServedWorker { model, tell, is_first, recipe, state: None };
                Ok((Self::Rounds(worker), StepRanks::with_servers(workers, ranks, count)))
            }
            Servers::AtOnce(mut servers) => {
                if let Some(Clip::Norm(limit)) = config.clip_gradients {
                    let range = "left out where each gradient is an update: there is no norm of all workers' gradients";
                    return refuse("clip_gradients", format!("a norm of {limit}"), range);
                }
                servers.set_optimizer(recipe)?;
                let alone = crate::World::single().group();
                let mut ranks = StepRanks::new(alone, Shard::None);
                ranks.workers = Arc::clone(servers.workers());
                Ok((Self::AtOnce(servers), ranks))
            }
        }
    }

    /// Whether all ranks that compute gradients take their steps together.
    pub(super) fn is_in_step(&self) -> bool {
        !matches!(self, Self::AtOnce(_))
    }

    /// Tells the servers of a step what its workers are about to do.
    ///
    /// # Errors
    /// Servers that cannot be reached.
    pub(super) fn tell(&mut self, call: impl FnOnce() -> ServerCall) -> Result<()> {
        match self {
            Self::Rounds(worker) if worker.is_first => {
                (worker.tell)(&call().to_text(worker.model)?)
            }
            _ => Ok(()),
        }
    }

    /// The servers beside the steps.
    pub(super) fn update_servers(&mut self) -> Option<&mut dyn UpdateServers> {
        match self {
            Self::AtOnce(servers) => Some(&mut **servers),
            _ => None,
        }
    }

    /// This worker's part in steps with servers.
    pub(super) fn worker(&mut self) -> Option<&mut ServedWorker> {
        match self {
            Self::Rounds(worker) => Some(worker),
            _ => None,
        }
    }

    /// Refuses a strategy that averages parameters where ranks do not update them.
    pub(super) fn check_average_of_parameters(&self) -> Result<()> {
        let (setting, value, range) = match self {
            Self::EveryRank => return Ok(()),
            Self::Owners => ("shard", "set", "none with a strategy that averages parameters"),
            Self::Rounds(_) | Self::Server { .. } | Self::AtOnce(_) => (
                "the strategy",
                "one that averages parameters",
                "another one with servers, which alone have parameters to average",
            ),
        };
        Err(Error::Setting { setting, value: value.to_owned(), range })
    }
}

impl ServedWorker {
    /// The state of the servers' optimizers. `bind` binds an optimizer to whole parameters.
    pub(super) fn state(
        &mut self,
        bind: impl FnOnce(&mut dyn Optimizer) -> Result<()>,
    ) -> Result<&mut (dyn Optimizer + 'static)> {
        let state = match self.state.take() {
            Some(state) => state,
            None => {
                let mut optimizer = self.recipe.build();
                bind(&mut *optimizer)?;
                optimizer
            }
        };
        Ok(&mut **self.state.insert(state))
    }
}

impl fmt::Debug for RoundServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RoundServers({:?})", self.ranks)
    }
}

impl fmt::Debug for ServedWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServedWorker(first: {})", self.is_first)
    }
}
