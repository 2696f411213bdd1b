//! The key-value store, as a worker sees it: its settings, and what all requests share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use candelabrum_dist::{CommStats, Group, World};
use candelabrum_optim::Recipe;
use parking_lot::Mutex;
use serde::Serialize;

use super::known_key::{KnownKey, PulledPart};
use crate::client::Client;
use crate::codec::Compression;
use crate::config::{StoreConfig, StoreKind};
use crate::keys::KeyTable;
use crate::link::{InProcess, RemoteServers, ShardLink, groups_of};
use crate::roles::{ProcessRole, RoleAssignment};
use crate::shard::{OptimizerSettings, StoreSettings};
use crate::wire::{MessageHeader, MessageKind, MessageMemory, WireMessage, numbers};
use crate::{Error, Key, Result, ServerStats};

/// MXNet's key-value store: values under keys, to which workers push and from which they pull.
///
/// A clone is cheap and is the same store. When the last clone is dropped, this worker leaves: in
/// dist_async the other workers go on.
///
/// ```
/// use candelabrum_dist::World;
/// use candelabrum_kvstore::KvStore;
/// use candle_core::{Device, Tensor};
///
/// let store = KvStore::create("local", &World::single())?;
/// store.init(3, &Tensor::new(&[1f32, 2.0], &Device::Cpu)?)?;
/// // Without an updater or an optimizer, a push assigns. Several values are added first.
/// let (a, b) = (Tensor::new(&[3f32, 4.0], &Device::Cpu)?, Tensor::new(&[1f32, 1.0], &Device::Cpu)?);
/// store.push(3, &[a, b], 0)?;
/// assert_eq!(store.pull(3, 0)?.wait()?.to_vec1::<f32>()?, [4.0, 5.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct KvStore(pub(super) Arc<StoreInner>);

pub(super) struct StoreInner {
    pub(super) config: StoreConfig,
    /// This process's rank in the world.
    pub(super) rank: usize,
    pub(super) workers: Group,
    /// Workers and servers. `None` for a store of one process.
    all: Option<Group>,
    /// The same ones, for the steps of a training.
    steps: Option<Group>,
    /// The models that are trained through the store.
    models: AtomicUsize,
    /// Memory for pushes.
    pub(super) memory: MessageMemory,
    pub(super) state: Mutex<StoreState>,
}

pub(super) struct StoreState {
    pub(super) client: Client,
    pub(super) keys: KeyTable<KnownKey>,
    pub(super) compression: Compression,
    /// The last result of a push, a pull or an initialisation, if it was an error.
    last_error: String,
}

impl KvStore {
    /// A store by its name: `local`, `dist_sync` or `dist_async`. A distributed store needs servers
    /// among the ranks of `world` ([`World::servers`]), and all workers create it together, while each
    /// server calls [`Server::run`](crate::Server::run).
    ///
    /// # Errors
    /// Another name, a world without servers, a rank that is a server, workers with different settings,
    /// or a failure of another rank.
    pub fn create(name: &str, world: &World) -> Result<Self> {
        Self::with_config(&StoreConfig::new(name.parse()?), world)
    }

    /// As [`Self::create`], with all settings.
    ///
    /// # Errors
    /// Those of [`Self::create`], and settings without meaning.
    pub fn with_config(config: &StoreConfig, world: &World) -> Result<Self> {
        config.check()?;
        let &StoreConfig { kind, staleness_bound, big_array_bound } = config;
        let rank = world.everyone().rank();
        let deadline = world.deadline()?;
        let (link, workers, groups): (Box<dyn ShardLink>, _, _) = if kind == StoreKind::Local {
            (Box::new(InProcess::new(rank)), World::single().group(), [None, None])
        } else {
            let roles = RoleAssignment::new(world)?;
            if let ProcessRole::Server(_) = roles.role() {
                let what = format!("server {rank} creates a store: it calls `Server::run` instead");
                return Err(Error::Roles { what });
            }
            let [all, steps] = groups_of(world)?;
            let link = RemoteServers::new(all.clone(), roles.servers());
            (Box::new(link), world.group(), [Some(all), Some(steps)])
        };
        let keeps_pushes = kind == StoreKind::DistSync || staleness_bound.is_some();
        let client = Client::new(rank, link, deadline, keeps_pushes);
        let (keys, compression, last_error) =
            (KeyTable::new(rank), Compression::default(), String::new());
        let state = StoreState { client, keys, compression, last_error };
        let [all, steps] = groups;
        let store = Self(Arc::new(StoreInner {
            config: config.clone(),
            rank,
            workers,
            memory: all.as_ref().map_or_else(MessageMemory::default, MessageMemory::new),
            all,
            steps,
            models: AtomicUsize::new(0),
            state: Mutex::new(state),
        }));
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let hello = StoreSettings { kind, staleness_bound, big_array_bound, version };
        store.tell_all("the greeting", MessageKind::Hello, &hello)?;
        Ok(store)
    }

    /// The settings.
    pub fn config(&self) -> &StoreConfig {
        &self.0.config
    }

    /// This worker's number.
    pub fn rank(&self) -> usize {
        self.0.workers.rank()
    }

    /// This process's rank in the world, for errors.
    pub(crate) fn world_rank(&self) -> usize {
        self.0.rank
    }

    /// The number of workers.
    pub fn num_workers(&self) -> usize {
        self.0.workers.world_size()
    }

    /// The workers, for their own collectives. Call [`Self::flush`] before one: a worker may otherwise wait
    /// for a push that another worker, which waits in the collective, has not sent yet.
    pub fn workers(&self) -> &Group {
        &self.0.workers
    }

    /// Workers and servers, for the steps of a training. `None` for a store of one process.
    pub(crate) fn step_ranks(&self) -> Option<&Group> {
        self.0.steps.as_ref()
    }

    /// The number of another model that is trained through the store.
    pub(crate) fn next_model(&self) -> usize {
        self.0.models.fetch_add(1, Ordering::Relaxed)
    }

    /// Says to all servers what all workers are about to do.
    pub(crate) fn tell_servers(&self, text: &str) -> Result<()> {
        self.0.state.lock().client.tell_all(MessageKind::Train, text)
    }

    /// Bytes and time of this worker's messages to servers and from them.
    pub fn traffic(&self) -> CommStats {
        self.0.all.as_ref().map_or_else(CommStats::default, |all| all.stats())
    }

    /// The time for which this worker has waited for servers.
    pub fn waited(&self) -> Duration {
        self.0.state.lock().client.waited
    }

    /// Returns when all earlier pushes of this worker have left. It waits for no other worker, unless this
    /// one is 32 pushes of a key ahead: the next ones leave when the slowest worker has caught up.
    ///
    /// # Errors
    /// An earlier request that a server has refused, a failure of another rank, or a passed deadline.
    pub fn flush(&self) -> Result<()> {
        self.send_all()?;
        self.0.state.lock().client.check()
    }

    /// Sends all requests. Other threads may use the store meanwhile.
    fn send_all(&self) -> Result<()> {
        let mut start = Instant::now();
        while !self.0.state.lock().client.send_some(&mut start)? {}
        Ok(())
    }

    /// Returns when every worker has called it. All earlier pushes have left then.
    ///
    /// # Errors
    /// An earlier request that a server has refused, a failure of another rank, or a passed deadline.
    pub fn barrier(&self) -> Result<()> {
        // Another worker may wait for a push before it calls this.
        self.send_all()?;
        self.0.workers.barrier()?;
        self.0.state.lock().client.check()
    }

    /// Lets servers update values by this optimizer, of which they get the settings as data. The
    /// gradients of a key, added over the workers, are first divided by `divide_by`: the number of
    /// workers makes a mean of a sum (MXNet's `rescale_grad` is the inverse). All workers call it
    /// together. States of an earlier optimizer are lost. A value's count of steps is that of its
    /// updates.
    ///
    /// # Errors
    /// Settings without meaning, workers with different optimizers, an optimizer that needs the norm of
    /// a whole value although a value is divided, a failure of another rank, or a passed deadline.
    pub fn set_optimizer(&self, optimizer: impl Into<Recipe>, divide_by: f32) -> Result<()> {
        if !(divide_by.is_finite() && divide_by > 0.0) {
            let (setting, value) = ("divide_by", divide_by.to_string());
            return Err(Error::Setting { setting, value, range: "it is a number above 0" });
        }
        let recipe = optimizer.into();
        // Its groups may select keys that are initialised later.
        recipe.build().bind(&[])?;
        self.tell_all(
            "set_optimizer",
            MessageKind::SetOptimizer,
            &OptimizerSettings { recipe, divide_by },
        )
    }

    /// Updates values by `updater`, which gets the key, the pushed value and the stored one, as long as
    /// no optimizer is set. Only a store of one process can have it: code does not travel between
    /// ranks, so servers have their own ([`Server::updater`](crate::Server::updater)).
    ///
    /// # Errors
    /// [`Error::Setting`] in a distributed store.
    pub fn set_updater(
        &self,
        updater: impl FnMut(&Key, &[f32], &mut [f32]) + Send + 'static,
    ) -> Result<()> {
        let mut state = self.0.state.lock();
        if state.client.link().set_updater(Box::new(updater)) {
            return Ok(());
        }
        Err(Error::Setting {
            setting: "the updater",
            value: format!("set on worker {}", self.rank()),
            range: "code does not travel between ranks: give it to `Server::updater`",
        })
    }

    /// Compresses the values of later dense pushes. What a compression with residual has not sent is added to
    /// the next push of the same key. A push without such a compression sends the rest, too.
    ///
    /// # Errors
    /// Settings without meaning.
    pub fn set_gradient_compression(&self, compression: Compression) -> Result<()> {
        compression.check()?;
        self.0.state.lock().compression = compression;
        Ok(())
    }

    /// The Euclidean norm of everything that compression has not sent yet.
    pub fn residual_norm(&self) -> f64 {
        let state = self.0.state.lock();
        let residuals = state.keys.iter().flat_map(|(_, place)| &place.residual);
        residuals.map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
    }

    /// What compression has not sent yet of a key: as many elements as its value, or none at all.
    ///
    /// # Errors
    /// An unknown key.
    pub fn residual(&self, key: impl Into<Key>) -> Result<Vec<f32>> {
        let state = self.0.state.lock();
        let (_, place) = state.keys.find(&key.into())?;
        Ok(place.residual.clone())
    }

    /// Sets what the next dense push of a key adds to its values: a [`residual`](Self::residual) that was saved.
    ///
    /// # Errors
    /// An unknown key, a table of rows, or another number of elements than that of the value.
    pub fn set_residual(&self, key: impl Into<Key>, residual: Vec<f32>) -> Result<()> {
        let (key, rank) = (key.into(), self.0.rank);
        let mut state = self.0.state.lock();
        let (_, place) = state.keys.find_mut(&key)?;
        self.check_form(&key, place, false, "set_residual")?;
        if !residual.is_empty() && residual.len() != place.dims.iter().product::<usize>() {
            let (expected, got) = (place.dims.clone(), vec![residual.len()]);
            return Err(Error::Shape { rank, key, expected, got });
        }
        place.residual = residual;
        Ok(())
    }

    /// The counts of every server.
    ///
    /// # Errors
    /// A failure of another rank or a passed deadline.
    pub fn stats(&self) -> Result<Vec<ServerStats>> {
        let answers = self.ask_all("stats", MessageKind::Stats, "")?;
        answers.iter().map(|answer| answer.content(self.0.rank)).collect()
    }

    /// Waits for the answer of a server. `during` says for what, in an error. Other threads may use the
    /// store meanwhile: the answer may depend on their pushes.
    pub(super) fn answer(
        &self,
        asked: (usize, u64),
        during: impl Fn() -> String,
    ) -> Result<WireMessage> {
        let start = Instant::now();
        loop {
            let looked = self.0.state.lock().client.look(asked, start, &during);
            if let Some(answer) = looked.transpose() {
                return self.recorded(answer);
            }
        }
    }

    /// Waits for the parts of a pulled value and copies them to `to`. A part has `width` elements for
    /// each place of its range.
    pub(super) fn collect(
        &self,
        (number, tickets): (u32, &[PulledPart]),
        (width, to): (usize, &mut [f32]),
        during: impl Fn() -> String,
    ) -> Result<()> {
        for PulledPart { part, server, ticket, range } in tickets {
            let answer = self.answer((*server, *ticket), &during);
            let answer =
                answer.inspect_err(|_| self.ignore(tickets.iter().map(|asked| asked.ticket)))?;
            let (values, place) =
                (numbers::<f32>(answer.data()), range.start * width..range.end * width);
            let mut state = self.0.state.lock();
            if values.len() != place.len() {
                let from = state.client.link().rank_of(*server);
                let what = format!("{} elements for {}", values.len(), place.len());
                return Err(Error::Message { from, what });
            }
            to[place].copy_from_slice(&values);
            state.keys.record_version(number, *part, answer.header().version);
        }
        Ok(())
    }

    /// The caller has got an error, and needs no further answers to its request.
    pub(super) fn ignore(&self, tickets: impl Iterator<Item = u64>) {
        let mut state = self.0.state.lock();
        tickets.for_each(|ticket| state.client.ignore(ticket));
    }

    /// The caller has dropped its handle of these answers.
    pub(super) fn forget(&self, tickets: &[PulledPart]) {
        if !tickets.is_empty() {
            let mut state = self.0.state.lock();
            tickets.iter().for_each(|asked| state.client.forget(asked.ticket));
        }
    }

    /// Notes a result of the program's calls. If the program drops the store after an error, it does so
    /// because of the error, and the other workers are told which one.
    pub(super) fn recorded<T>(&self, result: Result<T>) -> Result<T> {
        let text = result.as_ref().err().map_or_else(String::new, Error::to_string);
        self.0.state.lock().last_error = text;
        result
    }

    pub(super) fn ask_all(
        &self,
        during: &str,
        op: MessageKind,
        text: &str,
    ) -> Result<Vec<WireMessage>> {
        let make =
            |ticket, _| WireMessage::text(MessageHeader { ticket, ..MessageHeader::new(op) }, text);
        let answers = self.0.state.lock().client.ask_all(during, make);
        self.recorded(answers)
    }

    /// [`Self::ask_all`] with settings.
    fn tell_all(&self, during: &str, op: MessageKind, content: &impl Serialize) -> Result<()> {
        let make = |ticket, _| {
            WireMessage::json(MessageHeader { ticket, ..MessageHeader::new(op) }, content, 0)
        };
        let answers = self.0.state.lock().client.ask_all(during, make);
        self.recorded(answers.map(drop))
    }
}

impl fmt::Debug for KvStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, rank, workers) = (self.0.config.kind, self.rank(), self.num_workers());
        write!(f, "KvStore({kind}, worker {rank} of {workers})")
    }
}

impl Drop for StoreInner {
    fn drop(&mut self) {
        // A worker that has failed reports it otherwise: it must not look like one that has ended.
        let has_failed = self.all.as_ref().is_some_and(|all| all.failure().is_some());
        if !thread::panicking() && !has_failed {
            // If the servers cannot be reached, there is nobody to say goodbye to.
            let StoreState { client, last_error, .. } = self.state.get_mut();
            drop(client.leave(last_error));
        }
    }
}
