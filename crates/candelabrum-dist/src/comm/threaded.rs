//! A [`Communicator`] made of a blocking [`RankTransport`]. A started operation runs while the caller
//! computes. An operation that a caller *runs* is executed on the caller's thread if no other one
//! is under way.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use candelabrum_memory::FlatTensor;

use super::collective::CollectiveHeader;
use super::failures::{AbortSignal, Failures, FirstFailure};
use super::group_info::{GroupInfo, GroupLayers, OpContext};
use super::groups::Groups;
use super::message::{MessageOwner, PairMessage};
use super::queue::{CommQueue, Resource, TaskTime};
use super::services::Services;
use super::stats::PayloadBytes;
use super::transport::RankTransport;
use super::{
    Announcement, BorrowedElements, Collective, CommStats, Communicator, ElementType, Group, Mesh,
    Payload, Pending,
};
use crate::{Error, Result};

/// The handle of a group. When all handles of a rank are dropped, the started operations are
/// finished, and the rank leaves the job in order.
pub(crate) struct ThreadedGroup<T: RankTransport> {
    common: Arc<SharedState<T>>,
    group_info: GroupInfo,
    /// If set, an all-reduce of all ranks or a reduce-scatter of a host's ranks is divided into layers.
    layers: Option<LayerGroups<T>>,
    /// See [`Communicator::interleave`].
    interleaved: AtomicBool,
}

/// The state that all groups of a rank share.
struct SharedState<T: RankTransport> {
    backend: &'static str,
    /// The ranks of all groups.
    world_size: usize,
    takes_device_memory: bool,
    deadline: Duration,
    failures: Arc<Failures>,
    queue: CommQueue<Groups<T>>,
    services: Arc<Services>,
}

impl<T: RankTransport> MessageOwner for SharedState<T> {
    fn progress(&self) {
        self.queue.run_if_idle(Groups::progress);
    }

    fn wake(&self) {
        drop(self.queue.begin(TaskTime::Soon, |_| Ok(())));
    }
}

/// The groups of a reduction by layers, in addition to the group that it belongs to.
struct LayerGroups<T: RankTransport> {
    layers: GroupLayers,
    /// The ranks of this host, in the group of all ranks.
    host: Option<Arc<ThreadedGroup<T>>>,
    /// Keeps the group between hosts alive.
    _across: Option<Arc<ThreadedGroup<T>>>,
}

/// The properties of a transport after it has connected.
pub(crate) struct Connection<T> {
    pub(crate) transport: T,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) deadline: Duration,
    pub(crate) abort: Arc<dyn AbortSignal>,
}

impl<T: RankTransport> ThreadedGroup<T> {
    /// Starts the communication thread, which first calls `connect`. `connect` gets the place in
    /// which this rank's failure is stored.
    pub(crate) fn start(
        connect: impl FnOnce(&FirstFailure) -> Result<Connection<T>> + Send + 'static,
    ) -> Result<Self> {
        let (queue, made) = CommQueue::start(move || {
            let first = FirstFailure::default();
            let Connection { transport, rank, world_size, deadline, abort } = connect(&first)?;
            let failures = Arc::new(Failures::new(first, abort));
            let (backend, device) = (transport.backend(), transport.takes_device_memory());
            let (groups, group_info) =
                Groups::world(transport, rank, world_size, Arc::clone(&failures));
            Ok((groups, rank, (group_info, backend, device, deadline, failures)))
        })?;
        let (group_info, backend, takes_device_memory, deadline, failures) = made;
        let world_size = group_info.ranks.len();
        let services = Arc::default();
        let common = SharedState {
            backend,
            world_size,
            takes_device_memory,
            deadline,
            failures,
            queue,
            services,
        };
        Ok(Self::new(Arc::new(common), group_info))
    }

    fn part(&self, colour: Option<u64>, key: i64) -> Result<Option<Self>> {
        let id = self.group_info.id;
        let group_info =
            self.timed(|queue| queue.run(move |groups| groups.split(id, colour, key)))?;
        Ok(group_info.map(|group_info| Self::new(Arc::clone(&self.common), group_info)))
    }

    fn new(common: Arc<SharedState<T>>, group_info: GroupInfo) -> Self {
        Self { common, group_info, layers: None, interleaved: AtomicBool::new(false) }
    }

    /// Runs `work`, for which the caller waits, and counts the time.
    fn timed<R>(&self, work: impl FnOnce(&CommQueue<Groups<T>>) -> R) -> R {
        let start = Instant::now();
        let result = work(&self.common.queue);
        self.group_info.counters.count_exposed(start.elapsed());
        result
    }

    /// The groups in which this rank would exchange data for an operation that it refuses.
    fn exchanging(&self, op: Collective) -> Vec<usize> {
        let id = self.group_info.id;
        match &self.layers {
            Some(LayerGroups { layers, .. }) if layers.divide(id, op) => {
                std::iter::once(layers.host).chain(layers.across).collect()
            }
            _ => vec![id],
        }
    }

    fn message(&self, op: Collective, payload: Payload) -> Pending {
        let Self { common, group_info, .. } = self;
        let known = common.failures.first.get().map_or(Ok(()), Err);
        let on_host = || match common.takes_device_memory {
            true => Ok(()),
            false => Ok(payload.check_on_host()?),
        };
        if let Err(error) = known.and_then(|()| on_host()) {
            return Pending::ready(Err(error));
        }
        let (header, moved) = (
            CollectiveHeader::new(0, op, &payload),
            PayloadBytes::from_payload(&payload, group_info.rank),
        );
        let (group_info, label) = (group_info.clone(), payload.label().cloned());
        let work = group_info.messages.start(header, payload);
        if T::DRIVES_MESSAGES && common.queue.run_if_idle(Groups::progress).is_none() {
            // This thread could not move the messages, so the task wakes the communication thread.
            drop(common.queue.begin(TaskTime::Soon, |_| Ok(())));
        }
        let failures = Arc::clone(&common.failures);
        let context = OpContext { group_info, header, label, failures };
        let driven = T::DRIVES_MESSAGES.then_some(common.deadline);
        Pending::message(PairMessage { owner: self.common.clone(), context, moved, work, driven })
    }
}

impl<T: RankTransport> Communicator for ThreadedGroup<T> {
    fn backend(&self) -> &'static str {
        self.common.backend
    }

    fn rank(&self) -> usize {
        self.group_info.rank
    }

    fn world_size(&self) -> usize {
        self.group_info.ranks.len()
    }

    fn ranks(&self) -> &[usize] {
        &self.group_info.ranks
    }

    fn alloc(&self, element: ElementType, len: usize) -> Result<Payload> {
        let id = self.group_info.id;
        self.timed(|queue| queue.run(move |groups| groups.member(id)?.alloc(element, len)))
    }

    fn alloc_message(&self, len: usize) -> Payload {
        match self.group_info.messages.alloc(len) {
            Some(memory) => FlatTensor::shared(ElementType::U8, len, memory).into(),
            None => Payload::zeros(ElementType::U8, len),
        }
    }

    fn start(&self, op: Collective, mut payload: Payload) -> Pending {
        if let Err(error) = payload.check_not_recorded() {
            return Pending::ready(Err(error));
        }
        let checked = op.check(&payload, self.rank(), self.world_size());
        let queue = &self.common.queue;
        let handle = match checked.and_then(|()| payload.mark_ready()) {
            Ok(()) if !op.is_collective() => return self.message(op, payload),
            Err(why) if !op.is_collective() => return Pending::ready(Err(why)),
            Ok(()) => {
                let is_left = T::is_left_to_a_wait(payload.byte_len(), self.common.world_size);
                let when = if is_left { TaskTime::WaitedFor } else { TaskTime::Soon };
                let (id, layers) = (self.group_info.id, self.layers.as_ref().map(|all| all.layers));
                queue.begin(when, move |groups| groups.run(id, layers, op, payload))
            }
            Err(why) => {
                let ids = self.exchanging(op);
                queue.begin(TaskTime::Soon, move |groups| Err(groups.refuse(&ids, op, why)))
            }
        };
        Pending::queued(handle, &self.group_info.counters)
    }

    fn run(&self, op: Collective, payload: Payload) -> Result<Payload> {
        payload.check_not_recorded()?;
        if !op.is_collective() {
            return self.start(op, payload).wait();
        }
        let (id, layers) = (self.group_info.id, self.layers.as_ref().map(|all| all.layers));
        let begun = match op.check(&payload, self.rank(), self.world_size()) {
            Ok(()) => {
                self.timed(|queue| queue.run(move |groups| groups.run(id, layers, op, payload)))
            }
            Err(why) => {
                let ids = self.exchanging(op);
                self.timed(|queue| queue.run(move |groups| Err(groups.refuse(&ids, op, why))))
            }
        };
        begun?.wait()
    }

    fn run_in_place(&self, op: Collective, mut values: BorrowedElements<'_>) -> Result<()> {
        let id = self.group_info.id;
        let without_copy = match op {
            Collective::AllReduce(_) => {
                self.layers.as_ref().is_none_or(|all| !all.layers.divide(id, op))
            }
            Collective::Broadcast { .. } => true,
            _ => false,
        };
        if without_copy && op.check_type(values.element_type(), self.world_size()).is_ok() {
            let work =
                |groups: &mut Groups<T>| groups.member(id)?.execute_in_place(op, &mut values);
            if let Some(result) = self.timed(|queue| queue.run_if_idle(work)) {
                return result;
            }
        }
        values.by_copy(op, |payload| self.run(op, payload))
    }

    fn announce(&self, next: Vec<Announcement>) {
        let has_effect = T::TAKES_ANNOUNCEMENTS && self.layers.is_none();
        if has_effect && !self.interleaved.load(Ordering::Relaxed) {
            let id = self.group_info.id;
            // It needs no thread of its own, because the first operation is behind it.
            drop(self.common.queue.begin(TaskTime::WaitedFor, move |groups| {
                groups.announce(id, &next);
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

    fn hierarchical(&self, mesh: &Mesh) -> Result<Group> {
        mesh.check(self.world_size())?;
        let (own, even) = (mesh.rows()[self.rank()], mesh.is_even());
        let place = mesh.place_of(self.rank());
        let lowest = mesh.row_of(self.rank()).first().copied().unwrap_or_default();

        let mut flat = self.part(Some(0), 0)?.ok_or_else(Error::no_member)?;
        let mut host = self.part(Some(own as u64), 0)?.ok_or_else(Error::no_member)?;
        let speaks = even || place == 0;
        let across = self.part(speaks.then_some(place as u64), lowest as i64)?;
        let layers = GroupLayers {
            flat: flat.group_info.id,
            host: host.group_info.id,
            across: across.as_ref().map(|across| across.group_info.id),
            even,
        };
        let across = across.map(Arc::new);
        if even {
            host.layers = Some(LayerGroups { layers, host: None, _across: across.clone() });
        }
        let host = Some(Arc::new(host));
        flat.layers = Some(LayerGroups { layers, host, _across: across });
        Ok(Arc::new(flat))
    }

    fn replica(&self) -> Option<Group> {
        let LayerGroups { layers, host, .. } = self.layers.as_ref()?;
        let has_replicas = layers.even && !self.common.takes_device_memory;
        let host = host.as_ref().filter(|_| has_replicas)?;
        Some(Arc::clone(host) as Group)
    }

    fn stats(&self) -> CommStats {
        self.group_info.counters.snapshot()
    }

    fn abort(&self, message: &str) {
        self.common.failures.abort.abort(message);
    }

    fn failure(&self) -> Option<Error> {
        let Failures { first, abort, .. } = &*self.common.failures;
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

    fn channel(&self) -> Result<Group> {
        let part = self.part(Some(0), 0)?.ok_or_else(Error::no_member)?;
        let id = part.group_info.id;
        self.timed(|queue| {
            queue.run(move |groups| {
                groups.keep_for_messages(id);
                Ok(())
            })
        })?;
        Ok(Arc::new(part))
    }

    fn retire(&self) {
        drop(self.common.queue.begin(TaskTime::Soon, |groups| {
            groups.leave_all();
            Ok(())
        }));
    }

    fn services(&self) -> Option<&Arc<Services>> {
        Some(&self.common.services)
    }
}

impl<T: RankTransport> Drop for ThreadedGroup<T> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.common.failures.abort.abort("panicked");
        }
        let id = self.group_info.id;
        // Leaving is queued after the started operations. Dropping the queue waits for it, this
        // function does not.
        drop(self.common.queue.begin(TaskTime::Soon, move |groups| {
            groups.leave(id);
            Ok(())
        }));
    }
}

impl<T: RankTransport> fmt::Debug for ThreadedGroup<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let backend = self.common.backend;
        write!(f, "Communicator({backend}, rank {} of {})", self.rank(), self.world_size())
    }
}
