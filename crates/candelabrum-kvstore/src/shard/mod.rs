//! The part of a store that one server holds: values, their optimizers, and who waits for them.
//!
//! A shard takes one request after the other and gives answers. It knows neither threads nor a
//! communicator, so a server, a store of one process and the tests use the same shard.
//!
//! | idea | file |
//! |---|---|
//! | which pushes make the next update, and which pulls wait for it | `rounds.rs` |
//! | a dense value | `dense.rs` |
//! | a table of rows | `table.rs` |
//! | what workers say before they push | `settings.rs` |
//! | what all workers must say before an answer | `gathering.rs` |
//! | what an update needs besides the value | `means.rs` |
//! | the state in a file | `state.rs`, `loaded.rs` |

mod dense;
mod gathering;
mod loaded;
mod means;
mod rounds;
mod settings;
mod state;
mod table;
#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) use self::means::Updater;
pub use self::settings::RowInit;
pub(crate) use self::settings::{KeyInit, OptimizerSettings, StoreSettings};

use self::dense::DenseValue;
use self::gathering::{Gathering, GatheringState};
use self::loaded::StoredValue;
use self::means::UpdateInputs;
use self::rounds::{Rounds, WaitKind, WaitingRequest};

use self::table::RowTable;
use crate::config::StoreKind;
use crate::wire::{MOST_AHEAD, MessageHeader, MessageKind, MessageMemory, WireMessage};
use crate::{Error, Result, ServerStats, stats};

/// An answer for a worker.
pub(crate) type WorkerAnswer = (usize, WireMessage);

/// See the module.
pub(crate) struct ServerShard {
    /// The number of the server, and of all servers.
    place: (usize, usize),
    /// The workers' ranks.
    ranks: Vec<usize>,
    /// By worker: whether it has not left.
    here: Vec<bool>,
    /// By worker: after which error it left.
    why: Vec<String>,
    deadline: Duration,
    settings: Option<(usize, StoreSettings)>,
    /// By the key's number. Other servers have the numbers between.
    slots: BTreeMap<u32, KeySlot>,
    optimizer: Option<OptimizerSettings>,
    /// Optimizers that some workers have set. A worker may set its next one while others have not set
    /// one that was refused.
    next_optimizers: VecDeque<(OptimizerSettings, Gathering)>,
    updater: Option<Updater>,
    /// A state that was read and is not yet this one.
    loaded: Option<Vec<StoredValue>>,
    stats: ServerStats,
    /// Memory for sums.
    scratch: Vec<f32>,
    /// Memory for answers.
    memory: MessageMemory,
    answers: Vec<WorkerAnswer>,
}

/// A key's place.
struct KeySlot {
    init: KeyInit,
    /// The workers that have initialised it, until all have.
    starting: Option<Gathering>,
    rounds: Rounds,
    value: KeyValue,
}

enum KeyValue {
    Dense(DenseValue),
    Table(RowTable),
}

impl ServerShard {
    /// A shard for the workers with these ranks. `place` is the number of the server and the number of
    /// all servers. Answers are written in `memory`.
    pub(crate) fn new(
        rank: usize,
        place: (usize, usize),
        ranks: Vec<usize>,
        deadline: Duration,
        updater: Option<Updater>,
        memory: MessageMemory,
    ) -> Self {
        let workers = ranks.len();
        Self {
            place,
            ranks,
            here: vec![true; workers],
            why: vec![String::new(); workers],
            deadline,
            settings: None,
            slots: BTreeMap::new(),
            optimizer: None,
            next_optimizers: VecDeque::new(),
            updater,
            loaded: None,
            stats: ServerStats::new(rank, workers),
            scratch: Vec::new(),
            memory,
            answers: Vec::new(),
        }
    }

    pub(crate) fn set_updater(&mut self, updater: Updater) {
        self.updater = Some(updater);
    }

    pub(crate) fn stats_mut(&mut self) -> &mut ServerStats {
        &mut self.stats
    }

    /// What was counted until now.
    pub(crate) fn counts(&self) -> ServerStats {
        let rows = |slot: &KeySlot| match &slot.value {
            KeyValue::Dense(_) => 0,
            KeyValue::Table(table) => table.count(),
        };
        let rows = self.slots.values().map(rows).sum();
        ServerStats { rows, peak_memory: stats::peak_memory(), ..self.stats.clone() }
    }

    /// Whether all workers have left.
    pub(crate) fn is_over(&self) -> bool {
        self.here.iter().all(|here| !here)
    }

    /// Carries out a request of a worker. Returns the answers that are due now, for any worker.
    pub(crate) fn handle(&mut self, worker: usize, message: WireMessage) -> Vec<WorkerAnswer> {
        self.stats.requests[worker] += 1;
        let (&MessageHeader { ticket, receipt, .. }, op) = (message.header(), message.op());
        if receipt == 1 {
            let header =
                MessageHeader { ticket, receipt, ..MessageHeader::new(MessageKind::Answer) };
            self.answers.push((worker, WireMessage::text(header, "")));
        }
        if let Err(error) = self.carry_out(worker, op, message) {
            self.refuse(worker, ticket, &error);
        }
        std::mem::take(&mut self.answers)
    }

    fn carry_out(&mut self, worker: usize, op: MessageKind, message: WireMessage) -> Result<()> {
        let from = self.ranks[worker];
        let ticket = message.header().ticket;
        match op {
            MessageKind::Hello => self.greet(worker, ticket, message.content(from)?),
            MessageKind::Init => self.init(worker, &message),
            MessageKind::Push | MessageKind::PushPull | MessageKind::PushRows => {
                self.push(worker, op, message)
            }
            MessageKind::Pull | MessageKind::PullRows => self.pull(worker, message),
            MessageKind::Room => self.room(worker, &message),
            MessageKind::SetOptimizer => self.set_optimizer(worker, &message),
            MessageKind::Flush => self.answer(worker, ticket, ""),
            MessageKind::Save => {
                self.save(Path::new(&*message.text_of()))?;
                self.answer(worker, ticket, "")
            }
            MessageKind::Load => {
                self.load(Path::new(&*message.text_of()))?;
                self.answer(worker, ticket, "")
            }
            MessageKind::Adopt => {
                self.adopt(from)?;
                self.answer(worker, ticket, "")
            }
            MessageKind::Discard => {
                self.loaded = None;
                self.answer(worker, ticket, "")
            }
            MessageKind::Stats => {
                let header = MessageHeader { ticket, ..MessageHeader::new(MessageKind::Answer) };
                self.answers.push((worker, WireMessage::json(header, &self.counts(), 0)));
                Ok(())
            }
            MessageKind::Goodbye => self.leave(worker, ticket, &message.text_of()),
            // A server takes it before the shard would.
            MessageKind::Train | MessageKind::Answer | MessageKind::Refusal => {
                Err(Error::Message {
                    from,
                    what: "a worker sent what no shard can answer".to_owned(),
                })
            }
        }
    }

    fn answer(&mut self, worker: usize, ticket: u64, text: &str) -> Result<()> {
        let header = MessageHeader { ticket, ..MessageHeader::new(MessageKind::Answer) };
        self.answers.push((worker, WireMessage::text(header, text)));
        Ok(())
    }

    fn refuse(&mut self, worker: usize, ticket: u64, error: &Error) {
        self.answers.push((worker, refusal(ticket, error)));
    }

    fn greet(&mut self, worker: usize, ticket: u64, hello: StoreSettings) -> Result<()> {
        match &self.settings {
            Some((first, known)) if *known != hello => Err(Error::Inconsistent {
                what: "the configuration of the store".to_owned(),
                first: self.ranks[*first],
                expected: known.to_string(),
                rank: self.ranks[worker],
                got: hello.to_string(),
            }),
            Some(_) => self.answer(worker, ticket, ""),
            None => {
                self.settings = Some((worker, hello));
                self.answer(worker, ticket, "")
            }
        }
    }

    fn init(&mut self, worker: usize, message: &WireMessage) -> Result<()> {
        let (from, &MessageHeader { ticket, key, .. }) = (self.ranks[worker], message.header());
        let init: KeyInit = message.content(from)?;
        let number = key;
        let slot = match self.slots.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                init.check().map_err(|what| Error::Message { from, what })?;
                self.optimizer.as_ref().map_or(Ok(()), |settings| settings.check_for(&init))?;
                let (kind, bound) = match &self.settings {
                    Some((_, hello)) => (hello.kind, hello.staleness_bound),
                    None => (StoreKind::Local, None),
                };
                let workers = self.ranks.len();
                let value = match &init.rows {
                    None => KeyValue::Dense(DenseValue::new(&init)?),
                    Some(rows) => KeyValue::Table(RowTable::new(&init, rows)?),
                };
                let rounds = Rounds::new(kind, bound, workers);
                let starting = Some(Gathering::new(workers));
                place.insert(KeySlot { init: init.clone(), starting, rounds, value })
            }
        };
        let Some(starting) = &mut slot.starting else {
            return Err(Error::KeyTwice { rank: from, key: slot.init.key.clone() });
        };
        let mut problem = None;
        if slot.init != init {
            let first = starting.first().unwrap_or(worker);
            problem = Some(Error::Inconsistent {
                what: format!("key number {number}"),
                first: self.ranks[first],
                expected: describe(&slot.init),
                rank: from,
                got: describe(&init),
            });
        } else if worker == 0
            && let KeyValue::Dense(dense) = &mut slot.value
        {
            let assigned = dense.assign(message);
            problem = assigned.err().map(|what| Error::Message { from, what });
        }
        let gathered = starting.add(worker, ticket, problem);
        if let GatheringState::All(_) = gathered {
            slot.starting = None;
        }
        self.answer_gathering(gathered);
        self.refuse_where_some_have_left();
        Ok(())
    }

    /// Answers the waiting workers once all workers have made the call, or once the call has failed.
    fn answer_gathering(&mut self, gathered: GatheringState) {
        match gathered {
            GatheringState::InPart => {}
            GatheringState::All(asked) => {
                for (worker, ticket) in asked {
                    let header =
                        MessageHeader { ticket, ..MessageHeader::new(MessageKind::Answer) };
                    self.answers.push((worker, WireMessage::text(header, "")));
                }
            }
            GatheringState::Failed(error, asked) => {
                for (worker, ticket) in asked {
                    self.answers.push((worker, refusal(ticket, &error)));
                }
            }
        }
    }

    /// The calls that only some workers have made, each with its name.
    fn gatherings<'a>(
        slots: &'a mut BTreeMap<u32, KeySlot>,
        next_optimizers: &'a mut VecDeque<(OptimizerSettings, Gathering)>,
    ) -> impl Iterator<Item = (String, &'a mut Gathering)> {
        let setting = next_optimizers.iter_mut().map(|(_, all)| ("set_optimizer".to_owned(), all));
        let starting = slots.values_mut().filter_map(|slot| {
            let all = slot.starting.as_mut()?;
            Some((format!("init of `{}`", slot.init.key), all))
        });
        setting.chain(starting)
    }

    /// Refuses the calls that cannot be completed, because a worker has left without them.
    fn refuse_where_some_have_left(&mut self) {
        let Self { slots, next_optimizers, here, why, ranks, answers, .. } = self;
        if here.iter().all(|here| *here) {
            return;
        }
        for (during, all) in Self::gatherings(slots, next_optimizers) {
            let Some(left) = all.missing().find(|worker| !here[*worker]) else { continue };
            let why = &why[left];
            for (worker, ticket) in all.give_up() {
                let (left, rank, during) = (ranks[left], ranks[worker], during.clone());
                let error = Error::LeftWithout { left, why: why.clone(), during, rank };
                answers.push((worker, refusal(ticket, &error)));
            }
        }
    }

    fn push(&mut self, worker: usize, op: MessageKind, message: WireMessage) -> Result<()> {
        let from = self.ranks[worker];
        let &MessageHeader { ticket, key: number, .. } = message.header();
        let slot = ready(&mut self.slots, number, from)?;
        let key = || slot.init.key.clone();
        let form = |what, kind| Error::Form { rank: from, what, key: key(), kind };
        let checked = match (&slot.value, op) {
            (KeyValue::Dense(dense), MessageKind::Push | MessageKind::PushPull) => {
                dense.check(&message)
            }
            (KeyValue::Table(table), MessageKind::PushRows) => table.check_push(&message),
            (KeyValue::Dense(_), _) => return Err(form("a push of rows", "dense: use push")),
            (KeyValue::Table(_), _) => {
                return Err(form("a dense push", "a table of rows: use push_rows"));
            }
        };
        checked.map_err(|what| Error::Message { from, what: format!("{what} (`{}`)", key()) })?;
        if let Some(left) = slot.rounds.blocker(&self.here) {
            let (why, key) = (self.why[left].clone(), key());
            return Err(Error::WorkerLeft { left: self.ranks[left], why, rank: from, key });
        }
        if slot.rounds.held(worker) >= MOST_AHEAD {
            let what = format!("the worker is {MOST_AHEAD} pushes of `{}` ahead already", key());
            return Err(Error::Message { from, what });
        }
        slot.rounds.push(worker, message);
        if op == MessageKind::PushPull {
            slot.rounds.wait(WaitingRequest::new(worker, ticket, WaitKind::Pull));
        }
        self.stats.pushes[worker] += 1;
        self.advance(number)
    }

    fn pull(&mut self, worker: usize, message: WireMessage) -> Result<()> {
        let from = self.ranks[worker];
        let (op, &MessageHeader { ticket, key: number, .. }) = (message.op(), message.header());
        let slot = ready(&mut self.slots, number, from)?;
        let key = || slot.init.key.clone();
        let form = |what, kind| Error::Form { rank: from, what, key: key(), kind };
        let kind = match (&slot.value, op) {
            (KeyValue::Table(table), MessageKind::PullRows) => {
                let wanted = table.check_pull(&message);
                wanted.map_err(|what| Error::Message {
                    from,
                    what: format!("{what} (`{}`)", key()),
                })?;
                WaitKind::PullRows(Box::new(message))
            }
            (KeyValue::Dense(_), MessageKind::Pull) => WaitKind::Pull,
            (KeyValue::Dense(_), _) => return Err(form("row_sparse_pull", "dense: use pull")),
            (KeyValue::Table(_), _) => {
                return Err(form("pull", "a table of rows: use row_sparse_pull"));
            }
        };
        slot.rounds.wait(WaitingRequest::new(worker, ticket, kind));
        self.answer_waits(number);
        Ok(())
    }

    fn room(&mut self, worker: usize, message: &WireMessage) -> Result<()> {
        let &MessageHeader { ticket, key: number, .. } = message.header();
        let slot = ready(&mut self.slots, number, self.ranks[worker])?;
        slot.rounds.wait(WaitingRequest::new(worker, ticket, WaitKind::Room));
        self.answer_waits(number);
        Ok(())
    }

    /// Carries out the updates of a key for which all pushes are there, and answers the pulls that
    /// waited for them.
    fn advance(&mut self, number: u32) -> Result<()> {
        let Self { slots, here, stats, scratch, optimizer, updater, .. } = self;
        let Some(slot) = slots.get_mut(&number) else { return Ok(()) };
        let mut result = Ok(());
        while let Some(pushes) = slot.rounds.next(here) {
            let version = slot.rounds.version();
            // A push without rows has no values that could be stale.
            for (worker, message) in pushes.iter().filter(|(_, push)| push.header().elements > 0) {
                let seen = version - message.header().version.min(version);
                stats.staleness[*worker].add(seen);
            }
            let means = UpdateInputs {
                key: &slot.init.key,
                dims: &slot.init.dims,
                settings: optimizer.as_ref(),
                updater: updater.as_mut(),
            };
            let updated = match &mut slot.value {
                KeyValue::Dense(dense) => dense.update(&pushes, means, scratch),
                KeyValue::Table(table) => table.update(&pushes, means),
            };
            slot.rounds.applied(&pushes);
            stats.updates += 1;
            stats.max_lead = stats.max_lead.max(slot.rounds.lead(here));
            result = result.and(updated);
        }
        self.answer_waits(number);
        result
    }

    /// Answers the requests for a key that wait no longer, and refuses those that would wait for ever.
    fn answer_waits(&mut self, number: u32) {
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let version = slot.rounds.version();
        for WaitingRequest { worker, ticket, kind, .. } in slot.rounds.ready() {
            let header = MessageHeader {
                ticket,
                key: number,
                version,
                ..MessageHeader::new(MessageKind::Answer)
            };
            let message = match (&mut slot.value, &kind) {
                (_, WaitKind::Room) => WireMessage::text(
                    MessageHeader { elements: slot.rounds.held(worker), ..header },
                    "",
                ),
                (KeyValue::Table(table), WaitKind::PullRows(rows)) => {
                    table.answer(&self.memory, header, rows)
                }
                (KeyValue::Dense(dense), _) => dense.answer(&self.memory, header),
                (KeyValue::Table(_), WaitKind::Pull) => continue,
            };
            self.answers.push((worker, message));
        }
        if let Some(left) = slot.rounds.blocker(&self.here) {
            for wait in slot.rounds.give_up(|_| true) {
                let why = self.why[left].clone();
                let (left, rank, key) =
                    (self.ranks[left], self.ranks[wait.worker], slot.init.key.clone());
                let refusal = refusal(wait.ticket, &Error::WorkerLeft { left, why, rank, key });
                self.answers.push((wait.worker, refusal));
            }
        }
    }

    fn set_optimizer(&mut self, worker: usize, message: &WireMessage) -> Result<()> {
        let (from, ticket) = (self.ranks[worker], message.header().ticket);
        let settings: OptimizerSettings = message.content(from)?;
        let problem = self.check_optimizer(&settings).err();
        let missing = |(_, all): &(_, Gathering)| !all.has(worker);
        let place = self.next_optimizers.iter().position(missing).unwrap_or_else(|| {
            let all = Gathering::new(self.ranks.len());
            self.next_optimizers.push_back((settings.clone(), all));
            self.next_optimizers.len() - 1
        });
        let (known, all) = &mut self.next_optimizers[place];
        let differs = (*known != settings).then(|| Error::Inconsistent {
            what: "the optimizer".to_owned(),
            first: self.ranks[all.first().unwrap_or(worker)],
            expected: known.describe(),
            rank: from,
            got: settings.describe(),
        });
        let gathered = all.add(worker, ticket, differs.or(problem));
        if let GatheringState::All(_) = gathered {
            self.optimizer = Some(settings);
            // Each value makes its optimizer at its next update.
            for slot in self.slots.values_mut() {
                match &mut slot.value {
                    KeyValue::Dense(dense) => dense.forget_optimizer(),
                    KeyValue::Table(table) => table.forget_optimizer(),
                }
            }
        }
        self.next_optimizers.retain(|(_, all)| !all.is_whole());
        self.answer_gathering(gathered);
        self.refuse_where_some_have_left();
        Ok(())
    }

    /// Returns an error if a value of this server cannot be updated by this optimizer.
    fn check_optimizer(&self, settings: &OptimizerSettings) -> Result<()> {
        settings.recipe.build().bind(&[])?;
        self.slots.values().try_for_each(|slot| settings.check_for(&slot.init))
    }

    /// A worker pushes no more. In dist_sync, the rounds that need it cannot be completed. In
    /// dist_async, the others no longer wait for it.
    fn leave(&mut self, worker: usize, ticket: u64, error: &str) -> Result<()> {
        self.here[worker] = false;
        if !error.is_empty() {
            self.why[worker] = format!(" after an error ({error})");
        }
        // It takes no more answers.
        for slot in self.slots.values_mut() {
            drop(slot.rounds.give_up(|wait| wait.worker == worker));
        }
        let Self { slots, next_optimizers, .. } = self;
        Self::gatherings(slots, next_optimizers).for_each(|(_, all)| all.forget(worker));
        self.refuse_where_some_have_left();
        let numbers: Vec<u32> = self.slots.keys().copied().collect();
        numbers.into_iter().try_for_each(|number| self.advance(number))?;
        self.answer(worker, ticket, "")
    }

    /// Refuses requests that have waited for other workers longer than the deadline.
    pub(crate) fn look_at_the_clock(&mut self, now: Instant) -> Vec<WorkerAnswer> {
        let mut refusals = Vec::new();
        let Self { slots, next_optimizers, deadline, ranks, .. } = self;
        for (during, all) in Self::gatherings(slots, next_optimizers) {
            for ((worker, ticket), waited) in all.late(now, *deadline) {
                let missing: Vec<String> = all.missing().map(|w| ranks[w].to_string()).collect();
                let (rank, missing, during) = (ranks[worker], missing.join(", "), during.clone());
                let seconds = waited.as_secs();
                refusals.push((worker, ticket, Error::Alone { rank, during, missing, seconds }));
            }
        }
        for slot in self.slots.values_mut() {
            let missing: Vec<usize> =
                slot.rounds.missing(&self.here).into_iter().map(|w| self.ranks[w]).collect();
            let late = slot.rounds.give_up(|wait| now - wait.since > self.deadline);
            for wait in late {
                let missing: Vec<String> = missing.iter().map(usize::to_string).collect();
                let error = Error::Late {
                    rank: self.ranks[wait.worker],
                    key: slot.init.key.clone(),
                    missing: missing.join(", "),
                    seconds: (now - wait.since).as_secs(),
                };
                refusals.push((wait.worker, wait.ticket, error));
            }
        }
        for (worker, ticket, error) in refusals {
            self.refuse(worker, ticket, &error);
        }
        std::mem::take(&mut self.answers)
    }
}

/// The slot of a key that all workers have initialised.
fn ready(slots: &mut BTreeMap<u32, KeySlot>, number: u32, from: usize) -> Result<&mut KeySlot> {
    let slot = slots.get_mut(&number);
    slot.filter(|slot| slot.starting.is_none()).ok_or_else(|| Error::Message {
        from,
        what: format!("it names key number {number}, which was not initialised"),
    })
}

fn refusal(ticket: u64, error: &Error) -> WireMessage {
    let header = MessageHeader { ticket, ..MessageHeader::new(MessageKind::Refusal) };
    WireMessage::text(header, &error.to_string())
}

fn describe(init: &KeyInit) -> String {
    let KeyInit { key, dims, part, rows } = init;
    match rows {
        None => format!("`{key}` of shape {dims:?} (elements {part:?})"),
        Some(rows) => format!("the table `{key}` of shape {dims:?} (rows {part:?}, {rows:?})"),
    }
}

impl fmt::Debug for ServerShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shard({} keys of {} workers)", self.slots.len(), self.ranks.len())
    }
}
