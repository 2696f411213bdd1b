//! A [`Communicator`] made of a blocking [`Transport`]. A started operation runs while the caller
//! computes. An operation that a caller *runs* is executed on the caller's thread if no other one
//! is under way.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use candelabrum_memory::Flat;

use super::answer::Answer;
use super::collective::Header;
use super::engine::{Engine, Resource, When};
use super::failures::{Abort, Failure, Failures};
use super::layers::Layers;
use super::members::Members;
use super::membership::Membership;
use super::pending::Started;
use super::stats::Moved;
use super::transport::{Progress, Transport};
use super::wait::{Load, Wait};
use super::{
    Announced, Borrowed, Collective, CommStats, Communicator, ElementType, Group, Label, Payload,
    Pending,
};
use crate::{Error, Result};

/// The handle of a group. When all handles of a rank are dropped, the started operations are
/// finished, and the rank leaves the job in order.
pub(crate) struct Threaded<T: Transport> {
    common: Arc<Common<T>>,
    membership: Membership,
    /// If set, an all-reduce is divided into layers.
    layers: Option<Layered<T>>,
    /// See [`Communicator::interleave`].
    interleaved: AtomicBool,
}

/// The state that all groups of a rank share.
struct Common<T: Transport> {
    backend: &'static str,
    /// The ranks of all groups.
    world_size: usize,
    takes_device_memory: bool,
    deadline: Duration,
    failures: Failures,
    engine: Engine<Members<T>>,
}

impl<T: Transport> Common<T> {
    /// Gives the communication thread a turn, in which the transport can tell the others of a failure, if
    /// only a thread with the turn can.
    fn wake(&self) {
        drop(self.engine.begin(When::Soon, |_| Ok(())));
    }
}

/// The groups of an all-reduce by layers, in addition to the group of all ranks.
struct Layered<T: Transport> {
    layers: Layers,
    /// Keeps the groups of the layers alive.
    _groups: Vec<Threaded<T>>,
}

/// The properties of a transport after it has connected.
pub(crate) struct Connected<T> {
    pub(crate) transport: T,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) deadline: Duration,
    pub(crate) abort: Arc<dyn Abort>,
}

impl<T: Transport> Threaded<T> {
    /// Starts the communication thread, which first calls `connect`. `connect` gets the place in
    /// which this rank's failure is stored.
    pub(crate) fn start(
        connect: impl FnOnce(&Failure) -> Result<Connected<T>> + Send + 'static,
    ) -> Result<Self> {
        let (engine, made) = Engine::start(move || {
            let first = Failure::default();
            let Connected { transport, rank, world_size, deadline, abort } = connect(&first)?;
            let failures = Failures::new(first, abort);
            let (backend, device) = (transport.backend(), transport.takes_device_memory());
            let (members, membership) =
                Members::world(transport, rank, world_size, failures.clone());
            Ok((members, rank, (membership, backend, device, deadline, failures)))
        })?;
        let (membership, backend, takes_device_memory, deadline, failures) = made;
        let world_size = membership.ranks.len();
        let common =
            Common { backend, world_size, takes_device_memory, deadline, failures, engine };
        Ok(Self::of(Arc::new(common), membership))
    }

    fn part(&self, colour: Option<u64>, key: i64) -> Result<Option<Self>> {
        let id = self.membership.id;
        let membership =
            self.timed(|engine| engine.run(move |members| members.split(id, colour, key)))?;
        Ok(membership.map(|membership| Self::of(Arc::clone(&self.common), membership)))
    }

    fn of(common: Arc<Common<T>>, membership: Membership) -> Self {
        Self { common, membership, layers: None, interleaved: AtomicBool::new(false) }
    }

    /// Runs `work`, for which the caller waits, and counts the time.
    fn timed<R>(&self, work: impl FnOnce(&Engine<Members<T>>) -> R) -> R {
        let start = Instant::now();
        let result = work(&self.common.engine);
        self.membership.counters.count_exposed(start.elapsed());
        result
    }

    /// The task of the engine for an operation.
    fn task(
        &self,
        op: Collective,
        payload: Payload,
    ) -> impl FnOnce(&mut Members<T>) -> Result<Progress> + Send + 'static {
        let id = self.membership.id;
        let layers = self.layers.as_ref().map(|layered| layered.layers);
        let abort = Arc::clone(&self.common.failures.abort);
        move |members| match (layers, op) {
            (Some(layers), Collective::AllReduce(op)) => {
                let result = members.all_reduce_in_layers(layers, op, payload);
                // A rank of another host may wait for this rank, and must not see it leave before
                // it knows why.
                let result = result.inspect_err(|error| {
                    if error.is_echo() {
                        abort.fail(error);
                    }
                });
                result.map(Progress::Complete)
            }
            _ => members.begin(id, op, payload),
        }
    }

    /// The task of the engine for an operation that this rank refuses. The other ranks get the
    /// reason, unless they refuse the operation too.
    fn refusal(
        &self,
        op: Collective,
        why: Error,
    ) -> impl FnOnce(&mut Members<T>) -> Result<Progress> + Send + 'static {
        let ids = match (&self.layers, op) {
            (Some(Layered { layers, .. }), Collective::AllReduce(_)) => layers.exchanging(),
            _ => vec![self.membership.id],
        };
        move |members| Err(members.refuse(&ids, op, why))
    }

    fn message(&self, op: Collective, payload: Payload) -> Pending {
        let Self { common, membership, .. } = self;
        let known = common.failures.first.get().map_or(Ok(()), Err);
        let on_host = || match common.takes_device_memory {
            true => Ok(()),
            false => Ok(payload.check_on_host()?),
        };
        if let Err(error) = known.and_then(|()| on_host()) {
            return Pending::ready(Err(error));
        }
        let (header, moved) = (Header::of(0, op, &payload), Moved::of(&payload, membership.rank));
        let label = payload.label().cloned();
        let inner = membership.messages.start(header, payload);
        if T::DRIVES_MESSAGES && common.engine.run_if_idle(Members::progress).is_none() {
            // This thread could not move the messages, so the task wakes the communication thread.
            drop(common.engine.begin(When::Soon, |_| Ok(())));
        }
        let (common, membership) = (Arc::clone(common), membership.clone());
        Pending::new(StartedMessage { common, membership, header, label, moved, inner })
    }
}

impl<T: Transport> Communicator for Threaded<T> {
    fn backend(&self) -> &'static str {
        self.common.backend
    }

    fn rank(&self) -> usize {
        self.membership.rank
    }

    fn world_size(&self) -> usize {
        self.membership.ranks.len()
    }

    fn ranks(&self) -> &[usize] {
        &self.membership.ranks
    }

    fn alloc(&self, element: ElementType, len: usize) -> Result<Payload> {
        let id = self.membership.id;
        self.timed(|engine| engine.run(move |members| members.alloc(id, element, len)))
    }

    fn alloc_message(&self, len: usize) -> Payload {
        match self.membership.messages.alloc(len) {
            Some(memory) => Flat::shared(ElementType::U8, len, memory).into(),
            None => Payload::zeros(ElementType::U8, len),
        }
    }

    fn start(&self, op: Collective, mut payload: Payload) -> Pending {
        if let Err(error) = payload.check_not_recorded() {
            return Pending::ready(Err(error));
        }
        let engine = &self.common.engine;
        let refused = op.check(&payload, self.rank(), self.world_size());
        let refused = refused.and_then(|()| payload.mark_ready()).err();
        let ticket = match refused {
            Some(why) if op.is_collective() => engine.begin(When::Soon, self.refusal(op, why)),
            Some(why) => return Pending::ready(Err(why)),
            None if !op.is_collective() => return self.message(op, payload),
            None => {
                let is_left = T::is_left_to_a_wait(payload.byte_len(), self.common.world_size);
                let when = if is_left { When::WaitedFor } else { When::Soon };
                engine.begin(when, self.task(op, payload))
            }
        };
        let counters = Arc::clone(&self.membership.counters);
        Pending::new(Answer::new(counters, ticket))
    }

    fn run(&self, op: Collective, payload: Payload) -> Result<Payload> {
        payload.check_not_recorded()?;
        let refused = op.check(&payload, self.rank(), self.world_size()).err();
        match refused {
            _ if !op.is_collective() => self.start(op, payload).wait(),
            Some(why) => self.timed(|engine| engine.run(self.refusal(op, why))?.wait()),
            None => self.timed(|engine| engine.run(self.task(op, payload))?.wait()),
        }
    }

    fn run_in_place(&self, op: Collective, mut values: Borrowed<'_>) -> Result<()> {
        let id = self.membership.id;
        let without_copy = match op {
            Collective::AllReduce(_) => self.layers.is_none(),
            Collective::Broadcast { .. } => true,
            _ => false,
        };
        if without_copy && op.check_type(values.element_type(), self.world_size()).is_ok() {
            let work = |members: &mut Members<T>| members.execute_in_place(id, op, &mut values);
            if let Some(result) = self.timed(|engine| engine.run_if_idle(work)) {
                return result;
            }
        }
        values.by_copy(op, |payload| self.run(op, payload))
    }

    fn announce(&self, next: Vec<Announced>) {
        let has_effect = T::TAKES_ANNOUNCEMENTS && self.layers.is_none();
        if has_effect && !self.interleaved.load(Ordering::Relaxed) {
            let id = self.membership.id;
            // It needs no thread of its own, because the first operation is behind it.
            drop(self.common.engine.begin(When::WaitedFor, move |members| {
                members.announce(id, &next);
                Ok(())
            }));
        }
    }

    fn finds_bad_numbers(&self) -> bool {
        T::FINDS_BAD_NUMBERS && self.layers.is_none()
    }

    fn interleave(&self) {
        self.interleaved.store(true, Ordering::Relaxed);
    }

    fn split(&self, colour: Option<u64>, key: i64) -> Result<Option<Group>> {
        Ok(self.part(colour, key)?.map(|part| Arc::new(part) as Group))
    }

    fn hierarchical(&self, hosts: &[usize]) -> Result<Group> {
        let (expected, got) = (self.world_size(), hosts.len());
        if got != expected {
            return Err(Error::Length { op: "hierarchical", expected, got });
        }
        let own = hosts[self.rank()];
        let ranks_on = |host: usize| hosts.iter().filter(|&&other| other == host).count();
        let even = hosts.iter().all(|&host| ranks_on(host) == ranks_on(own));
        let place = hosts[..self.rank()].iter().filter(|&&other| other == own).count();
        let lowest = hosts.iter().position(|&other| other == own).unwrap_or(0);
        let lost = || Error::Protocol { what: "a group without its member".to_owned() };

        let mut flat = self.part(Some(0), 0)?.ok_or_else(lost)?;
        let host = self.part(Some(own as u64), 0)?.ok_or_else(lost)?;
        let speaks = even || place == 0;
        let across = self.part(speaks.then_some(place as u64), lowest as i64)?;
        let layers = Layers {
            flat: flat.membership.id,
            host: host.membership.id,
            across: across.as_ref().map(|across| across.membership.id),
            even,
        };
        let groups = std::iter::once(host).chain(across).collect();
        flat.layers = Some(Layered { layers, _groups: groups });
        Ok(Arc::new(flat))
    }

    fn stats(&self) -> CommStats {
        self.membership.counters.snapshot()
    }

    fn abort(&self, message: &str) {
        self.common.failures.abort.abort(message);
    }

    fn failure(&self) -> Option<Error> {
        let Failures { first, abort, .. } = &self.common.failures;
        first.get().or_else(|| abort.failure())
    }

    fn fail(&self, error: &Error) {
        if self.common.failures.add_from_outside(error) {
            self.common.wake();
        }
    }

    fn leave_reports_to_the_caller(&self) {
        self.common.failures.leaves_reports.store(true, Ordering::Relaxed);
    }
}

/// A message under way.
struct StartedMessage<T: Transport> {
    common: Arc<Common<T>>,
    membership: Membership,
    header: Header,
    label: Option<Label>,
    moved: Moved,
    inner: Pending,
}

impl<T: Transport> StartedMessage<T> {
    /// If the transport has no thread for messages, moves them from here until this one is
    /// complete.
    fn drive(&mut self) -> Result<()> {
        let Self { common, membership, header, .. } = self;
        let (mut load, mut wait) = (Load::default(), Wait::begin());
        while !self.inner.is_complete() {
            common.failures.first.get().map_or(Ok(()), Err)?;
            // If another thread has the turn, that thread moves the messages.
            common.engine.run_if_idle(Members::progress);
            let waited = wait.pause(&mut load);
            if waited > common.deadline {
                let named = header.op.rank_named().map(|peer| vec![membership.ranks[peer]]);
                let missing = named.unwrap_or_else(|| membership.ranks.to_vec());
                let missing: Vec<String> = missing.iter().map(usize::to_string).collect();
                let (rank, during) = (membership.own(), header.to_string());
                return Err(Error::Timeout { rank, during, missing: missing.join(", "), waited });
            }
        }
        Ok(())
    }
}

impl<T: Transport> Started for StartedMessage<T> {
    fn is_complete(&mut self) -> bool {
        if T::DRIVES_MESSAGES {
            self.common.engine.run_if_idle(Members::progress);
        }
        self.inner.is_complete()
    }

    fn wait_for(&mut self, limit: Duration) -> bool {
        if !T::DRIVES_MESSAGES {
            return self.inner.wait_for(limit);
        }
        let (mut load, mut wait) = (Load::default(), Wait::begin());
        while !self.is_complete() {
            // After a failure no message can arrive any more, and `wait` returns the failure.
            if self.common.failures.first.get().is_some() {
                return true;
            }
            if wait.pause(&mut load) >= limit {
                return false;
            }
        }
        true
    }

    fn wait(mut self: Box<Self>) -> Result<Payload> {
        let start = Instant::now();
        let blocks = !self.is_complete();
        let driven = if T::DRIVES_MESSAGES { self.drive() } else { Ok(()) };
        let Self { common, membership, header, label, moved, inner } = *self;
        let result = driven.and_then(|()| inner.wait());
        let waited = start.elapsed();
        if blocks {
            membership.counters.count_exposed(waited);
        }
        let result = result.inspect(|result| membership.count(header.op, moved.to(result), waited));
        result.map_err(|error| {
            let error = membership.explain(error, header, label.as_ref());
            if common.failures.add(&error) {
                common.wake();
            }
            error
        })
    }
}

impl<T: Transport> Drop for Threaded<T> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.common.failures.abort.abort("panicked");
        }
        let id = self.membership.id;
        // Leaving is queued after the started operations. Dropping the engine waits for it, this
        // function does not.
        drop(self.common.engine.begin(When::Soon, move |members| {
            members.leave(id);
            Ok(())
        }));
    }
}

impl<T: Transport> fmt::Debug for Threaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let backend = self.common.backend;
        write!(f, "Communicator({backend}, rank {} of {})", self.rank(), self.world_size())
    }
}
