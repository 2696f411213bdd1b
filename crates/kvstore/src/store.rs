//! The key-value store, as a worker sees it.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use candelabrum_dist::{CommStats, Error as DistError, Group, World};
use candelabrum_memory::{FiniteCheck, Span};
use candelabrum_optim::Recipe;
use candle_core::{Device, Tensor};
use parking_lot::Mutex;
use serde::Serialize;

use crate::client::Client;
use crate::codec::Compression;
use crate::config::{StoreConfig, StoreKind};
use crate::keys::Keys;
use crate::link::{InProcess, Link, Ranks};
use crate::placement::{self, Part};
use crate::roles::{Role, Roles};
use crate::shard::{Hello, Init, OptimizerSettings, RowInit};
use crate::values::{RowSparse, Values};
use crate::wire::{Header, Memory, Message, Op, numbers};
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
pub struct KvStore(Arc<Shared>);

struct Shared {
    config: StoreConfig,
    /// This process's rank in the world.
    rank: usize,
    workers: Group,
    /// Workers and servers. `None` for a store of one process.
    all: Option<Group>,
    /// Memory for pushes.
    memory: Memory,
    state: Mutex<State>,
}

struct State {
    client: Client,
    keys: Keys<Place>,
    compression: Compression,
    /// The last result of a push, a pull or an initialisation, if it was an error.
    last_error: String,
}

/// What a worker knows of a key.
#[derive(Debug)]
struct Place {
    dims: Vec<usize>,
    parts: Vec<Part>,
    /// Whether it is a table of rows.
    is_table: bool,
    /// By part: the version of the value that this worker pulled last.
    versions: Vec<u64>,
    /// What compression has not sent yet.
    residual: Vec<f32>,
}

impl Place {
    /// Elements of a row.
    fn dim(&self) -> usize {
        self.dims.iter().skip(1).product()
    }
}

/// A group of all processes for the messages of a store alone. All processes call it together.
pub(crate) fn messages_of(world: &World) -> Result<Group> {
    let lost = || Error::Roles { what: "a group has lost its member".to_owned() };
    world.everyone().split(Some(0), 0)?.ok_or_else(lost)
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
        let rank = world.rank();
        let deadline = world.deadline()?;
        let (link, workers, all): (Box<dyn Link>, _, _) = if kind == StoreKind::Local {
            (Box::new(InProcess::new(rank)), World::single().group(), None)
        } else {
            let roles = Roles::new(world)?;
            if let Role::Server(_) = roles.role() {
                let what = format!("server {rank} creates a store: it calls `Server::run` instead");
                return Err(Error::Roles { what });
            }
            let all = messages_of(world)?;
            (Box::new(Ranks::new(all.clone(), roles.servers())), world.group(), Some(all))
        };
        let client = Client::new(rank, link, deadline);
        let (keys, compression, last_error) =
            (Keys::new(rank), Compression::default(), String::new());
        let state = State { client, keys, compression, last_error };
        let store = Self(Arc::new(Shared {
            config: config.clone(),
            rank,
            workers,
            memory: all.as_ref().map_or_else(Memory::default, Memory::of),
            all,
            state: Mutex::new(state),
        }));
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let hello = Hello { kind, staleness_bound, big_array_bound, version };
        store.tell_all("the greeting", Op::Hello, &hello)?;
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

    /// The workers, for their own collectives.
    pub fn workers(&self) -> &Group {
        &self.0.workers
    }

    /// Bytes and time of this worker's messages to servers and from them.
    pub fn traffic(&self) -> CommStats {
        self.0.all.as_ref().map_or_else(CommStats::default, |all| all.stats())
    }

    /// The time for which this worker has waited for servers.
    pub fn waited(&self) -> Duration {
        self.0.state.lock().client.waited
    }

    /// Returns when every worker has called it. All earlier pushes have left then.
    ///
    /// # Errors
    /// An earlier request that a server has refused, a failure of another rank, or a passed deadline.
    pub fn barrier(&self) -> Result<()> {
        // Another worker may wait for a push before it calls this.
        self.0.state.lock().client.send_all()?;
        self.0.workers.barrier()?;
        self.0.state.lock().client.check()
    }

    /// Gives a key its first value: that of the first worker. All workers call it together, with
    /// values of one shape.
    ///
    /// # Errors
    /// A key that was initialised, a key of another kind, NaN or infinity, workers with different keys
    /// or shapes, a failure of another rank, or a passed deadline.
    pub fn init(&self, key: impl Into<Key>, value: &Tensor) -> Result<()> {
        self.init_all([(key.into(), value.clone())])
    }

    /// [`Self::init`] of several keys, which costs one answer's time in all.
    ///
    /// # Errors
    /// Those of [`Self::init`].
    pub fn init_all(&self, values: impl IntoIterator<Item = (Key, Tensor)>) -> Result<()> {
        let mut tickets = Vec::new();
        let started = self.start_inits(values, &mut tickets);
        self.noted(self.wait_for_inits(started, &tickets))
    }

    fn start_inits(
        &self,
        values: impl IntoIterator<Item = (Key, Tensor)>,
        tickets: &mut Vec<(usize, u64)>,
    ) -> Result<()> {
        for (key, value) in values {
            self.check_type(&key, Values::Tensor(&value))?;
            let elements = Values::Tensor(&value).elements()?;
            self.check_finite(&key, &elements)?;
            self.start_init(&key, value.dims(), None, &elements, tickets)?;
        }
        Ok(())
    }

    /// Makes a key a table of `rows` rows of `dim` elements, distributed over the servers by rows. The
    /// servers make the first values, so no worker ever has the whole table. All workers call it
    /// together.
    ///
    /// # Errors
    /// Those of [`Self::init`], a table without elements or with more than `u32::MAX` rows, and a
    /// deviation without meaning.
    pub fn init_rows(
        &self,
        key: impl Into<Key>,
        rows: usize,
        dim: usize,
        init: RowInit,
    ) -> Result<()> {
        let refuse = |setting, value: String, range| Err(Error::Setting { setting, value, range });
        let bytes =
            rows.checked_mul(dim).and_then(|elements| elements.checked_mul(size_of::<f32>()));
        if rows == 0 || dim == 0 || u32::try_from(rows).is_err() || bytes.is_none() {
            let value = format!("{rows} × {dim}");
            let range = "it has elements, rows fit into u32, and all bytes into usize";
            return refuse("the size of a table", value, range);
        }
        if let RowInit::Normal { std, .. } = init
            && !(std.is_finite() && std >= 0.0)
        {
            let range = "it is finite and at least 0";
            return refuse("the deviation of a table's first values", std.to_string(), range);
        }
        let mut tickets = Vec::new();
        let started = self.start_init(&key.into(), &[rows, dim], Some(init), &[], &mut tickets);
        self.noted(self.wait_for_inits(started, &tickets))
    }

    fn start_init(
        &self,
        key: &Key,
        dims: &[usize],
        rows: Option<RowInit>,
        elements: &[f32],
        tickets: &mut Vec<(usize, u64)>,
    ) -> Result<()> {
        let mut state = self.0.state.lock();
        let State { client, keys, .. } = &mut *state;
        client.check()?;
        let servers = client.link().servers();
        let len = dims.iter().product();
        let bound = self.0.config.big_array_bound;
        let parts = match rows {
            Some(_) => placement::even(dims[0], servers),
            None => placement::dense(key, keys.len() as u32, len, bound, servers),
        };
        let versions = vec![0; parts.len()];
        let is_table = rows.is_some();
        let place = Place {
            dims: dims.to_vec(),
            parts: parts.clone(),
            is_table,
            versions,
            residual: Vec::new(),
        };
        let number = keys.insert(key, place)?;
        for Part { server, range } in parts {
            let ticket = client.ticket();
            let sends = self.rank() == 0 && !is_table;
            let values = if sends { &elements[range.clone()] } else { &[] };
            let header = Header {
                ticket,
                key: number,
                elements: values.len() as u64,
                receipt: u32::from(client.confirms(size_of_val(values))),
                ..Header::new(Op::Init)
            };
            let init = Init { key: key.clone(), dims: dims.to_vec(), part: range, rows };
            let mut message = Message::json(header, &init, size_of_val(values));
            message.data_mut().copy_from_slice(bytemuck::cast_slice(values));
            client.request(server, i32::MAX, message, true)?;
            tickets.push((server, ticket));
        }
        Ok(())
    }

    fn wait_for_inits(&self, started: Result<()>, tickets: &[(usize, u64)]) -> Result<()> {
        let waited = started.and_then(|()| {
            let mut tickets = tickets.iter();
            tickets.try_for_each(|asked| self.answer(*asked, || "init".to_owned()).map(drop))
        });
        waited.inspect_err(|_| self.ignore(tickets.iter().map(|(_, ticket)| *ticket)))
    }

    /// The caller has got an error, and needs no further answers to its request.
    fn ignore(&self, tickets: impl Iterator<Item = u64>) {
        let mut state = self.0.state.lock();
        tickets.for_each(|ticket| state.client.ignore(ticket));
    }

    /// Initialises a key and pulls its value: the first worker's value, on every worker.
    ///
    /// # Errors
    /// Those of [`Self::init`] and [`Self::pull`].
    pub fn broadcast(&self, key: impl Into<Key>, value: &Tensor) -> Result<Tensor> {
        let key = key.into();
        self.init(&key, value)?;
        self.pull(&key, 0)?.wait()
    }

    /// Pushes a value, and returns at once. Keys with a higher `priority` leave first. The pushes and
    /// pulls of one key keep their order.
    ///
    /// The store's optimizer or updater updates the stored value: in dist_sync by the sum of one push
    /// of each worker, otherwise by this push. Without either, the sum or the push becomes the value.
    ///
    /// # Errors
    /// An unknown key, another shape, NaN or infinity, a value out of the compression's range, a key that
    /// is a table, an earlier request that a server has refused, or a failure of another rank.
    pub fn push<'a>(
        &self,
        key: impl Into<Key>,
        values: impl Into<Values<'a>>,
        priority: i32,
    ) -> Result<()> {
        let compression = self.0.state.lock().compression;
        let key = key.into();
        self.noted(self.start_push(Op::Push, &key, values.into(), priority, compression).map(drop))
    }

    /// Pulls a value. Returns at once; [`Pull::wait`] returns the value after all earlier pushes of
    /// this worker to this key.
    ///
    /// # Errors
    /// An unknown key, a key that is a table, an earlier request that a server has refused, or a
    /// failure of another rank.
    pub fn pull(&self, key: impl Into<Key>, priority: i32) -> Result<Pull> {
        self.noted(self.start_pull(key.into(), priority))
    }

    fn start_pull(&self, key: Key, priority: i32) -> Result<Pull> {
        let mut state = self.0.state.lock();
        let State { client, keys, .. } = &mut *state;
        client.check()?;
        let (number, place) = keys.find(&key)?;
        self.check_form(&key, place, false, "pull")?;
        let mut tickets = Vec::new();
        for Part { server, range } in &place.parts {
            let ticket = client.ticket();
            let message =
                Message::text(Header { ticket, key: number, ..Header::new(Op::Pull) }, "");
            client.request(*server, priority, message, true)?;
            tickets.push((*server, ticket, range.clone()));
        }
        Ok(Pull { store: self.clone(), number, dims: place.dims.clone(), key, tickets })
    }

    /// Pushes a value and pulls the updated one, in one message to the server and one back. MXNet's
    /// `pushpull`.
    ///
    /// # Errors
    /// Those of [`Self::push`].
    pub fn pushpull<'a>(
        &self,
        key: impl Into<Key>,
        values: impl Into<Values<'a>>,
        priority: i32,
    ) -> Result<Pull> {
        let compression = self.0.state.lock().compression;
        self.pushpull_with(key, values, priority, compression)
    }

    /// [`Self::pushpull`] with this compression for this push.
    ///
    /// # Errors
    /// Those of [`Self::push`], and a compression without meaning.
    pub fn pushpull_with<'a>(
        &self,
        key: impl Into<Key>,
        values: impl Into<Values<'a>>,
        priority: i32,
        compression: Compression,
    ) -> Result<Pull> {
        compression.check()?;
        let key = key.into();
        let pushed = self.start_push(Op::PushPull, &key, values.into(), priority, compression);
        let (number, dims, tickets) = self.noted(pushed)?;
        Ok(Pull { store: self.clone(), number, dims, key, tickets })
    }

    fn start_push(
        &self,
        op: Op,
        key: &Key,
        values: Values<'_>,
        priority: i32,
        compression: Compression,
    ) -> Result<(u32, Vec<usize>, Vec<Asked>)> {
        let rank = self.0.rank;
        let mut state = self.0.state.lock();
        let State { client, keys, .. } = &mut *state;
        client.check()?;
        let (number, place) = keys.find_mut(key)?;
        self.check_form(key, place, false, "push")?;
        if let Some(got) = values.other_dims(&place.dims) {
            let (key, expected) = (key.clone(), place.dims.clone());
            return Err(Error::Shape { rank, key, expected, got });
        }
        self.check_type(key, values)?;
        let elements = values.elements()?;
        let mut own = Vec::new();
        if compression.keeps_residual() || !place.residual.is_empty() {
            self.check_finite(key, &elements)?;
            own = elements.to_vec();
            own.iter_mut().zip(&place.residual).for_each(|(x, rest)| *x += rest);
            self.check_finite(key, &own)?;
        }
        // Nothing leaves before all parts are encoded: an error must not leave half a push on servers.
        let mut messages = Vec::new();
        for (part, version) in place.parts.iter().zip(&place.versions) {
            let ticket = client.ticket();
            let range = part.range.clone();
            let receipt = u32::from(client.confirms(size_of::<f32>() * range.len()));
            let version = *version;
            let header = Header { ticket, key: number, version, receipt, ..Header::new(op) };
            let encoded = if own.is_empty() {
                compression.encode_all(&self.0.memory, header, &elements[range.clone()])
            } else {
                compression.encode(&self.0.memory, header, &mut own[range.clone()])
            };
            let message = encoded.map_err(|position| {
                let position = range.start + position;
                let (key, value) = (key.clone(), elements[position]);
                if !value.is_finite() {
                    return Error::NotFinite { rank, key, position, value };
                }
                let compression = format!("{compression:?}");
                Error::OutOfRange { rank, key, position, value, compression }
            })?;
            messages.push((part.server, ticket, range, message));
        }
        let mut tickets = Vec::new();
        for (server, ticket, range, message) in messages {
            client.request(server, priority, message, op == Op::PushPull)?;
            tickets.push((server, ticket, range));
        }
        if compression.keeps_residual() {
            place.residual = own;
        } else {
            place.residual.clear();
        }
        Ok((number, place.dims.clone(), tickets))
    }

    /// Pushes rows of a table, for instance the gradient of an embedding, and returns at once. Rows may
    /// be in any order. A row that is there twice counts as the sum. A push without rows counts as a
    /// push of its round in dist_sync.
    ///
    /// # Errors
    /// An unknown key, one that is no table, a row that the table does not have, values of another
    /// length, NaN or infinity, an earlier request that a server has refused, or a failure of another
    /// rank.
    pub fn push_rows(&self, key: impl Into<Key>, rows: &RowSparse, priority: i32) -> Result<()> {
        self.noted(self.start_push_rows(key.into(), rows, priority))
    }

    fn start_push_rows(&self, key: Key, rows: &RowSparse, priority: i32) -> Result<()> {
        let rank = self.0.rank;
        let mut state = self.0.state.lock();
        let State { client, keys, .. } = &mut *state;
        client.check()?;
        let (number, place) = keys.find(&key)?;
        self.check_form(&key, place, true, "a push of rows")?;
        let dim = place.dim();
        if rows.values.len() != rows.rows.len() * dim {
            let (expected, got) = (vec![rows.rows.len(), dim], vec![rows.values.len()]);
            return Err(Error::Shape { rank, key, expected, got });
        }
        self.check_rows(&key, place, &rows.rows)?;
        self.check_finite(&key, &rows.values)?;
        for (part, version) in place.parts.iter().zip(&place.versions) {
            let ticket = client.ticket();
            let own: Vec<usize> = (0..rows.rows.len())
                .filter(|index| part.range.contains(&(rows.rows[*index] as usize)))
                .collect();
            let len = own.len() * (4 + 4 * dim);
            let header = Header {
                ticket,
                key: number,
                version: *version,
                elements: own.len() as u64,
                receipt: u32::from(client.confirms(len)),
                ..Header::new(Op::PushRows)
            };
            let mut message = self.0.memory.message(header, len);
            let (positions, values) = message.data_mut().split_at_mut(4 * own.len());
            for (index, (position, row)) in
                own.iter().zip(positions.chunks_exact_mut(4).zip(values.chunks_exact_mut(4 * dim)))
            {
                let local = rows.rows[*index] - part.range.start as u32;
                position.copy_from_slice(&local.to_ne_bytes());
                let from = &rows.values[index * dim..(index + 1) * dim];
                row.copy_from_slice(bytemuck::cast_slice(from));
            }
            client.request(part.server, priority, message, false)?;
        }
        Ok(())
    }

    /// Pulls the given rows of a table: only these travel. Returns at once.
    ///
    /// # Errors
    /// An unknown key, one that is no table, a row that the table does not have, an earlier request
    /// that a server has refused, or a failure of another rank.
    pub fn row_sparse_pull(
        &self,
        key: impl Into<Key>,
        rows: &[u32],
        priority: i32,
    ) -> Result<PullRows> {
        self.noted(self.start_pull_rows(key.into(), rows, priority))
    }

    fn start_pull_rows(&self, key: Key, rows: &[u32], priority: i32) -> Result<PullRows> {
        let mut state = self.0.state.lock();
        let State { client, keys, .. } = &mut *state;
        client.check()?;
        let (number, place) = keys.find(&key)?;
        self.check_form(&key, place, true, "row_sparse_pull")?;
        self.check_rows(&key, place, rows)?;
        let mut rows = rows.to_vec();
        rows.sort_unstable();
        rows.dedup();
        let mut tickets = Vec::new();
        for Part { server, range } in &place.parts {
            let start = rows.partition_point(|row| (*row as usize) < range.start);
            let end = rows.partition_point(|row| (*row as usize) < range.end);
            if start == end {
                continue;
            }
            let ticket = client.ticket();
            let elements = (end - start) as u64;
            let header = Header { ticket, key: number, elements, ..Header::new(Op::PullRows) };
            let mut message = Message::new(header, "", 4 * (end - start));
            for (to, row) in message.data_mut().chunks_exact_mut(4).zip(&rows[start..end]) {
                to.copy_from_slice(&(row - range.start as u32).to_ne_bytes());
            }
            client.request(*server, priority, message, true)?;
            tickets.push((*server, ticket, start..end));
        }
        let dim = place.dim();
        Ok(PullRows { store: self.clone(), number, key, rows, dim, tickets })
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
        self.tell_all("set_optimizer", Op::SetOptimizer, &OptimizerSettings { recipe, divide_by })
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

    /// Compresses the values of later pushes. What a compression with residual has not sent is added to
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

    /// Writes the state of every server to a file of its own in `dir`, a directory of that server's
    /// host: values, the optimizer's state, the versions. All workers call it together, between two
    /// rounds. The files are safetensors, and each replaces an older one whole.
    ///
    /// # Errors
    /// A file that cannot be written, an open round, a failure of another rank, or a passed deadline.
    pub fn save_optimizer_states(&self, dir: &Path) -> Result<()> {
        self.by_first_worker("save_optimizer_states", &[Op::Save], dir)
    }

    /// Reads what [`Self::save_optimizer_states`] has written. The store must have the same keys and
    /// optimizer, and the same number of servers. All workers call it together, and pull afterwards.
    /// Servers change when all of them have read a usable file: after an error, none has changed.
    ///
    /// # Errors
    /// A file that cannot be read or does not fit, a failure of another rank, or a passed deadline.
    pub fn load_optimizer_states(&self, dir: &Path) -> Result<()> {
        self.by_first_worker("load_optimizer_states", &[Op::Load, Op::Adopt], dir)
    }

    fn by_first_worker(&self, during: &str, steps: &[Op], dir: &Path) -> Result<()> {
        let Some(dir) = dir.to_str() else {
            let path = dir.to_owned();
            return Err(Error::State { path, what: "the name is no UTF-8".to_owned() });
        };
        // All pushes of all workers have arrived after this.
        self.ask_all(during, Op::Flush, "")?;
        self.barrier()?;
        let work = || {
            let done = steps.iter().try_for_each(|op| self.ask_all(during, *op, dir).map(drop));
            if done.is_err() && steps.contains(&Op::Load) {
                // The first error says what was wrong.
                drop(self.ask_all(during, Op::Discard, ""));
            }
            done
        };
        let outcome = if self.rank() == 0 { work() } else { Ok(()) };
        // The other workers learn of a failure, and do not go on before it is known.
        let own = match &outcome {
            Ok(()) => String::new(),
            Err(Error::Refused { server, message }) => format!("{server} {message}"),
            Err(error) => format!("- {error}"),
        };
        let told = self.0.workers.broadcast_text(&own, 0)?;
        outcome?;
        match told.split_once(' ') {
            None => Ok(()),
            Some((server, message)) => {
                let message = message.to_owned();
                Err(server.parse().map_or_else(
                    |_| {
                        let peer = self.0.workers.ranks()[0];
                        DistError::PeerFailed { peer, message: message.clone() }.into()
                    },
                    |server| Error::Refused { server, message: message.clone() },
                ))
            }
        }
    }

    /// The counts of every server.
    ///
    /// # Errors
    /// A failure of another rank or a passed deadline.
    pub fn stats(&self) -> Result<Vec<ServerStats>> {
        let answers = self.ask_all("stats", Op::Stats, "")?;
        answers.iter().map(|answer| answer.content(self.0.rank)).collect()
    }

    /// Waits for the answer of a server. `during` says for what, in an error. Other threads may use the
    /// store meanwhile: the answer may depend on their pushes.
    fn answer(&self, asked: (usize, u64), during: impl Fn() -> String) -> Result<Message> {
        let start = Instant::now();
        loop {
            let looked = self.0.state.lock().client.look(asked, start, &during);
            if let Some(answer) = looked.transpose() {
                return self.noted(answer);
            }
        }
    }

    /// Notes a result of the program's calls. If the program drops the store after an error, it does so
    /// because of the error, and the other workers are told which one.
    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        let text = result.as_ref().err().map_or_else(String::new, Error::to_string);
        self.0.state.lock().last_error = text;
        result
    }

    fn ask_all(&self, during: &str, op: Op, text: &str) -> Result<Vec<Message>> {
        let make = |ticket, _| Message::text(Header { ticket, ..Header::new(op) }, text);
        let answers = self.0.state.lock().client.ask_all(during, make);
        self.noted(answers)
    }

    /// [`Self::ask_all`] with settings.
    fn tell_all(&self, during: &str, op: Op, content: &impl Serialize) -> Result<()> {
        let make = |ticket, _| Message::json(Header { ticket, ..Header::new(op) }, content, 0);
        let answers = self.0.state.lock().client.ask_all(during, make);
        self.noted(answers.map(drop))
    }

    fn check_form(&self, key: &Key, place: &Place, table: bool, what: &'static str) -> Result<()> {
        if place.is_table == table {
            return Ok(());
        }
        let kind = match place.is_table {
            true => "a table of rows: use push_rows and row_sparse_pull",
            false => "dense: use push and pull",
        };
        Err(Error::Form { rank: self.0.rank, what, key: key.clone(), kind })
    }

    fn check_type(&self, key: &Key, values: Values<'_>) -> Result<()> {
        let Some(dtype) = values.other_type() else { return Ok(()) };
        let (rank, key, got) = (self.0.rank, key.clone(), format!("{dtype:?}"));
        Err(Error::ElementType { rank, key, got })
    }

    fn check_rows(&self, key: &Key, place: &Place, rows: &[u32]) -> Result<()> {
        let all = place.dims[0];
        match rows.iter().find(|row| **row as usize >= all) {
            None => Ok(()),
            Some(&row) => {
                let (rank, key, row) = (self.0.rank, key.clone(), row.into());
                Err(Error::Row { rank, key, row, rows: all })
            }
        }
    }

    fn check_finite(&self, key: &Key, values: &[f32]) -> Result<()> {
        let mut check = FiniteCheck::default();
        check.look(0, Span::Host(values))?;
        match check.first()? {
            None => Ok(()),
            Some((_, position)) => {
                let (rank, key) = (self.0.rank, key.clone());
                Err(Error::NotFinite { rank, key, position, value: values[position] })
            }
        }
    }
}

impl fmt::Debug for KvStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, rank, workers) = (self.0.config.kind, self.rank(), self.num_workers());
        write!(f, "KvStore({kind}, worker {rank} of {workers})")
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A worker that has failed reports it otherwise: it must not look like one that has ended.
        let has_failed = self.all.as_ref().is_some_and(|all| all.failure().is_some());
        if !thread::panicking() && !has_failed {
            // If the servers cannot be reached, there is nobody to say goodbye to.
            let State { client, last_error, .. } = self.state.get_mut();
            drop(client.leave(last_error));
        }
    }
}

/// A part of an answer: the server, the ticket, and the elements or rows in it.
type Asked = (usize, u64, Range<usize>);

/// A value that has been asked for. Dropping it gives the value up, and nothing else.
#[must_use = "the value arrives when it is waited for"]
pub struct Pull {
    store: KvStore,
    number: u32,
    key: Key,
    dims: Vec<usize>,
    tickets: Vec<Asked>,
}

impl Pull {
    /// Whether [`Self::wait`] does not block.
    ///
    /// # Errors
    /// An earlier request that a server has refused, or a failure of another rank.
    pub fn is_complete(&self) -> Result<bool> {
        let mut state = self.store.0.state.lock();
        state.client.check()?;
        Ok(self.tickets.iter().all(|(_, ticket, _)| state.client.has_arrived(*ticket)))
    }

    /// Waits for the value: a tensor in f32 on the CPU.
    ///
    /// # Errors
    /// A request that a server has refused, a worker that has left a round of dist_sync, a failure of
    /// another rank, or a passed deadline.
    pub fn wait(self) -> Result<Tensor> {
        let mut values = vec![0.0; self.dims.iter().product()];
        let dims = self.dims.clone();
        self.wait_into(&mut values)?;
        Ok(Tensor::from_vec(values, dims, &Device::Cpu)?)
    }

    /// Waits for the value and copies its elements to `to`.
    ///
    /// # Errors
    /// Those of [`Self::wait`], and a `to` of another length.
    pub fn wait_into(self, to: &mut [f32]) -> Result<()> {
        let expected: usize = self.dims.iter().product();
        if to.len() != expected {
            let (rank, key) = (self.store.0.rank, self.key.clone());
            return Err(Error::Shape {
                rank,
                key,
                expected: self.dims.clone(),
                got: vec![to.len()],
            });
        }
        for (part, (server, ticket, range)) in self.tickets.iter().enumerate() {
            let during = || format!("pull of `{}`", self.key);
            let answer = self.store.answer((*server, *ticket), during);
            let answer = answer.inspect_err(|_| {
                self.store.ignore(self.tickets.iter().map(|(_, ticket, _)| *ticket));
            })?;
            let values = numbers::<f32>(answer.data());
            let mut state = self.store.0.state.lock();
            if values.len() != range.len() {
                let from = state.client.link().rank_of(*server);
                let what = format!("{} elements for {}", values.len(), range.len());
                return Err(Error::Message { from, what });
            }
            to[range.clone()].copy_from_slice(&values);
            state.keys.note_version(self.number, part, answer.header().version);
        }
        Ok(())
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        forget(&self.store, &self.tickets);
    }
}

/// Rows that have been asked for. Dropping it gives them up, and nothing else.
#[must_use = "the rows arrive when they are waited for"]
pub struct PullRows {
    store: KvStore,
    number: u32,
    key: Key,
    rows: Vec<u32>,
    dim: usize,
    tickets: Vec<Asked>,
}

impl PullRows {
    /// Waits for the rows, which ascend and are there once each.
    ///
    /// # Errors
    /// Those of [`Pull::wait`].
    pub fn wait(mut self) -> Result<RowSparse> {
        let rows = std::mem::take(&mut self.rows);
        let mut values = vec![0.0; rows.len() * self.dim];
        for (server, ticket, range) in &self.tickets {
            let during = || format!("row_sparse_pull of `{}`", self.key);
            let answer = self.store.answer((*server, *ticket), during);
            let answer = answer.inspect_err(|_| {
                self.store.ignore(self.tickets.iter().map(|(_, ticket, _)| *ticket));
            })?;
            let part = numbers::<f32>(answer.data());
            let mut state = self.store.0.state.lock();
            if part.len() != range.len() * self.dim {
                let from = state.client.link().rank_of(*server);
                let what = format!("{} elements for {} rows", part.len(), range.len());
                return Err(Error::Message { from, what });
            }
            values[range.start * self.dim..range.end * self.dim].copy_from_slice(&part);
            state.keys.note_version(self.number, *server, answer.header().version);
        }
        Ok(RowSparse { rows, values })
    }
}

impl Drop for PullRows {
    fn drop(&mut self) {
        forget(&self.store, &self.tickets);
    }
}

fn forget(store: &KvStore, tickets: &[Asked]) {
    if !tickets.is_empty() {
        let mut state = store.0.state.lock();
        tickets.iter().for_each(|(_, ticket, _)| state.client.forget(*ticket));
    }
}

impl fmt::Debug for Pull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pull(`{}` {:?})", self.key, self.dims)
    }
}

impl fmt::Debug for PullRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PullRows({} rows of `{}`)", self.rows.len(), self.key)
    }
}

impl Keys<Place> {
    fn note_version(&mut self, number: u32, part: usize, version: u64) {
        if let Some(place) = self.entry_mut(number).versions.get_mut(part) {
            *place = version;
        }
    }
}
