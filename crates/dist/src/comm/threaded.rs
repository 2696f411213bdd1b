//! A [`Communicator`] out of a blocking [`Transport`]: what is started goes on while the caller
//! computes, what is run is done by the caller where nothing else is under way.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::engine::{Engine, Ticket, When};
use super::layers::Layers;
use super::members::{Failure, Members, Place};
use super::pending::Started;
use super::stats::Counters;
use super::transport::{Abort, Transport};
use super::{Collective, CommStats, Communicator, ElementType, Group, Payload, Pending};
use crate::{Error, Result};

/// Below so many bytes, an operation whose transport is this host's processors takes less time than
/// waking a thread for it, and would take it from who computes.
const WORTH_A_THREAD: usize = 256 * 1024;

/// A group's handle. When all handles of a rank are dropped, what was started is finished and the
/// job left in order.
pub(crate) struct Threaded<T: Transport> {
    backend: &'static str,
    /// Whether operations are work of this host's processors and nothing else.
    on_processors: bool,
    place: Place,
    abort: Arc<dyn Abort>,
    failure: Failure,
    engine: Arc<Engine<Members<T>>>,
    /// Where all-reduces go by layers.
    layers: Option<Layered<T>>,
}

/// What an all-reduce by layers needs, beside the group of all ranks.
struct Layered<T: Transport> {
    layers: Layers,
    /// Keeps the groups of the layers.
    _groups: Vec<Threaded<T>>,
}

/// What a transport tells about itself once it is connected.
pub(crate) struct Connected<T> {
    pub(crate) transport: T,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) abort: Arc<dyn Abort>,
}

impl<T: Transport> Threaded<T> {
    /// Starts the communication thread, which first calls `connect`.
    pub(crate) fn start(
        connect: impl FnOnce() -> Result<Connected<T>> + Send + 'static,
    ) -> Result<Self> {
        let failure = Failure::default();
        let shared = failure.clone();
        let (engine, (backend, on_processors, place, abort)) = Engine::start(move || {
            let Connected { transport, rank, world_size, abort } = connect()?;
            let place = Place::world(rank, world_size);
            let known = (transport.backend(), transport.is_on_processors(), place.clone(), abort);
            Ok((Members::world(transport, place, shared), rank, known))
        })?;
        let engine = Arc::new(engine);
        Ok(Self { backend, on_processors, place, abort, failure, engine, layers: None })
    }

    fn part(&self, colour: Option<u64>, key: i64) -> Result<Option<Self>> {
        let id = self.place.id;
        let start = Instant::now();
        let place = self.engine.run(move |members| members.split(id, colour, key));
        self.place.counters.count_exposed(start.elapsed());
        Ok(place?.map(|place| {
            let (abort, engine) = (Arc::clone(&self.abort), Arc::clone(&self.engine));
            let (&Self { backend, on_processors, .. }, failure) = (self, self.failure.clone());
            Self { backend, on_processors, place, abort, failure, engine, layers: None }
        }))
    }

    /// What the engine is to do.
    fn task(
        &self,
        op: Collective,
        buffer: Payload,
    ) -> impl FnOnce(&mut Members<T>) -> Result<Payload> + Send + 'static {
        let id = self.place.id;
        let layers = self.layers.as_ref().map(|layered| layered.layers);
        move |members| match (layers, op) {
            (Some(layers), Collective::AllReduce(op)) => {
                members.all_reduce_in_layers(layers, op, buffer)
            }
            _ => members.execute(id, op, buffer),
        }
    }
}

impl<T: Transport> Communicator for Threaded<T> {
    fn backend(&self) -> &'static str {
        self.backend
    }

    fn rank(&self) -> usize {
        self.place.rank
    }

    fn world_size(&self) -> usize {
        self.place.ranks.len()
    }

    fn ranks(&self) -> &[usize] {
        &self.place.ranks
    }

    fn alloc(&self, element: ElementType, len: usize) -> Result<Payload> {
        let id = self.place.id;
        let start = Instant::now();
        let result = self.engine.run(move |members| members.alloc(id, element, len));
        self.place.counters.count_exposed(start.elapsed());
        result
    }

    fn start(&self, op: Collective, buffer: Payload) -> Pending {
        if let Err(error) = op.check(&buffer, self.rank(), self.world_size()) {
            return Pending::ready(Err(error));
        }
        let light = self.on_processors && buffer.byte_len() < WORTH_A_THREAD;
        let when = if light { When::WhenWaitedFor } else { When::Soon };
        let ticket = self.engine.begin(when, self.task(op, buffer));
        Pending::new(Answer { counters: Arc::clone(&self.place.counters), ticket })
    }

    fn run(&self, op: Collective, buffer: Payload) -> Result<Payload> {
        op.check(&buffer, self.rank(), self.world_size())?;
        let start = Instant::now();
        let result = self.engine.run(self.task(op, buffer));
        self.place.counters.count_exposed(start.elapsed());
        result
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
            flat: flat.place.id,
            host: host.place.id,
            across: across.as_ref().map(|across| across.place.id),
            even,
        };
        let groups = std::iter::once(host).chain(across).collect();
        flat.layers = Some(Layered { layers, _groups: groups });
        Ok(Arc::new(flat))
    }

    fn stats(&self) -> CommStats {
        self.place.counters.snapshot()
    }

    fn abort(&self, message: &str) {
        self.abort.abort(message);
    }

    fn failure(&self) -> Option<Error> {
        self.failure.get().or_else(|| self.abort.failure())
    }

    fn fail(&self, error: &Error) {
        if self.failure.set(error) {
            self.abort.fail(error);
        }
    }
}

/// What the engine will answer.
struct Answer<T: Transport> {
    counters: Arc<Counters>,
    ticket: Ticket<Members<T>, Payload>,
}

impl<T: Transport> Started for Answer<T> {
    fn is_complete(&mut self) -> bool {
        self.ticket.is_complete()
    }

    fn wait(self: Box<Self>) -> Result<Payload> {
        let Self { counters, ticket } = *self;
        if ticket.is_complete() {
            return ticket.wait();
        }
        let start = Instant::now();
        let result = ticket.wait();
        counters.count_exposed(start.elapsed());
        result
    }
}

impl<T: Transport> Drop for Threaded<T> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.abort.abort("panicked");
        }
        let id = self.place.id;
        // After what was started. Nobody waits for it here: the engine does, when it is dropped.
        drop(self.engine.begin(When::Soon, move |members| {
            members.leave(id);
            Ok(())
        }));
    }
}

impl<T: Transport> fmt::Debug for Threaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator({}, rank {} of {})", self.backend, self.rank(), self.world_size())
    }
}
