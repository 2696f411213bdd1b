//! All groups that a rank belongs to, behind one engine: what their handles ask for is done here.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::collective::Header;
use super::engine::Subject;
use super::stats::{Counters, Moved};
use super::transport::Transport;
use super::{Collective, ElementType, Label, Payload};
use crate::{Error, Result};

/// The number of the world among a rank's groups: the first.
pub(super) const WORLD: usize = 0;

/// The groups of a rank, by number. After the first failure everything gives the same error: the
/// ranks no longer agree on where they are.
pub(super) struct Members<T> {
    /// `None` for groups whose handle has been dropped.
    groups: Vec<Option<Member<T>>>,
    failure: Failure,
}

/// The first failure of a rank's communication, which all its groups share: every later operation gives
/// the same error.
#[derive(Clone, Debug, Default)]
pub(super) struct Failure(Arc<OnceLock<Error>>);

impl Failure {
    pub(super) fn get(&self) -> Option<Error> {
        self.0.get().cloned()
    }

    /// Keeps the error if it is the first; whether it is.
    pub(super) fn set(&self, error: &Error) -> bool {
        self.0.set(error.clone()).is_ok()
    }
}

/// A rank's place in a group.
pub(super) struct Member<T> {
    transport: T,
    place: Place,
    /// Counts operations that all ranks take part in.
    sequence: u64,
}

/// What both a group's handle and its engine know.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) id: usize,
    pub(super) rank: usize,
    /// The members' ranks in the world.
    pub(super) ranks: Arc<[usize]>,
    pub(super) counters: Arc<Counters>,
}

impl Place {
    pub(super) fn world(rank: usize, world_size: usize) -> Self {
        Self { id: WORLD, rank, ranks: (0..world_size).collect(), counters: Arc::default() }
    }
}

impl<T: Transport> Members<T> {
    pub(super) fn world(transport: T, place: Place, failure: Failure) -> Self {
        Self { groups: vec![Some(Member { transport, place, sequence: 0 })], failure }
    }

    pub(super) fn alloc(&mut self, id: usize, element: ElementType, len: usize) -> Result<Payload> {
        self.with(id, |member| {
            member.sequence += 1;
            let header =
                Header { sequence: member.sequence, op: Collective::Barrier, element, len, tag: 0 };
            let result = member.transport.alloc(member.sequence, element, len);
            result.map_err(|error| member.explain(error, header, None))
        })
    }

    pub(super) fn execute(
        &mut self,
        id: usize,
        op: Collective,
        buffer: Payload,
    ) -> Result<Payload> {
        self.with(id, |member| member.execute(op, buffer))
    }

    /// Makes groups of a group, see [`super::Communicator::split`].
    pub(super) fn split(
        &mut self,
        id: usize,
        colour: Option<u64>,
        key: i64,
    ) -> Result<Option<Place>> {
        let new = self.groups.len();
        let made = self.with(id, |member| member.split(new, colour, key))?;
        let place = made.as_ref().map(|made| made.place.clone());
        self.groups.extend(made.map(Some));
        Ok(place)
    }

    /// The number of ranks in a group.
    pub(super) fn size(&self, id: usize) -> usize {
        self.groups.get(id).and_then(Option::as_ref).map_or(1, |member| member.place.ranks.len())
    }

    /// Counts an operation that was made of others.
    pub(super) fn count(&self, id: usize, op: Collective, moved: Moved, busy: Duration) {
        if let Some(member) = self.groups.get(id).and_then(Option::as_ref) {
            let place = &member.place;
            place.counters.count(op, moved, place.rank, place.ranks.len(), busy);
        }
    }

    /// The handle of a group has been dropped.
    pub(super) fn leave(&mut self, id: usize) {
        let Some(group) = self.groups.get_mut(id) else { return };
        if let Some(member) = group {
            member.transport.leave();
        }
        if id != WORLD {
            *group = None;
        }
    }

    fn with<R>(&mut self, id: usize, work: impl FnOnce(&mut Member<T>) -> Result<R>) -> Result<R> {
        if let Some(error) = self.failure.get() {
            return Err(error);
        }
        let what = || "a group was used that has been left".to_owned();
        let member = self.groups.get_mut(id).and_then(Option::as_mut);
        let result = work(member.ok_or_else(|| Error::Protocol { what: what() })?);
        result.inspect_err(|error| {
            self.failure.set(error);
        })
    }
}

impl<T: Transport> Member<T> {
    fn execute(&mut self, op: Collective, buffer: Payload) -> Result<Payload> {
        if !self.transport.takes_device_memory() {
            buffer.check_on_host()?;
        }
        self.sequence += u64::from(op.is_collective());
        let header = Header::of(self.sequence, op, &buffer);
        let element = buffer.element_type();
        let label = buffer.label().cloned();
        let rank = self.place.rank;
        let own =
            buffer.parts().map_or(0, |parts| parts.get(rank).map_or(0, |n| n * element.size()));
        let input = buffer.byte_len();
        let start = Instant::now();
        let _span = tracing::debug_span!(
            target: "candelabrum::comm", "transfer",
            op = op.name(), bytes = input, label = label.as_ref().map(Label::text)
        )
        .entered();
        match self.transport.execute(header, buffer) {
            Ok(output) => {
                let moved = Moved { input, output: output.byte_len(), own };
                let world_size = self.place.ranks.len();
                self.place.counters.count(op, moved, rank, world_size, start.elapsed());
                Ok(output)
            }
            Err(error) => Err(self.explain(error, header, label.as_ref())),
        }
    }

    /// All ranks tell colour and key, and each sees for itself who is with it.
    fn split(&mut self, id: usize, colour: Option<u64>, key: i64) -> Result<Option<Self>> {
        let wish = [i64::from(colour.is_some()), colour.unwrap_or(0) as i64, key];
        let wishes = self.execute(Collective::AllGather, Payload::from_slice(&wish))?;
        let wishes = wishes.as_slice::<i64>()?;
        let mut members: Vec<usize> =
            (0..self.place.ranks.len()).filter(|r| wishes[3 * r..3 * r + 2] == wish[..2]).collect();
        members.sort_by_key(|rank| wishes[3 * rank + 2]);
        let members = colour.map(|_| members);
        let Some(transport) = self.transport.split(members.as_deref())? else { return Ok(None) };
        let members = members.unwrap_or_default();
        let rank = members.iter().position(|&member| member == self.place.rank).unwrap_or(0);
        let ranks = members.iter().map(|&member| self.place.ranks[member]).collect();
        let place = Place { id, rank, ranks, counters: Arc::default() };
        Ok(Some(Self { transport, place, sequence: 0 }))
    }

    /// Adds to an error what was in the buffer, and in which group it happened.
    fn explain(&self, error: Error, header: Header, label: Option<&Label>) -> Error {
        let label = label.map_or(String::new(), |label| format!(" ({})", label.text()));
        let group = if self.place.id == WORLD {
            String::new()
        } else {
            let ranks: Vec<String> = self.place.ranks.iter().map(usize::to_string).collect();
            format!(" in the group of ranks {}", ranks.join(", "))
        };
        let own = self.place.ranks[self.place.rank];
        error.with_context(own, &header.to_string(), &label, &group)
    }
}

impl<T: Transport> Subject for Members<T> {
    fn any_thread(&self) -> bool {
        self.groups.iter().flatten().all(|member| member.transport.any_thread())
    }

    fn progress(&mut self) -> bool {
        let mut more = false;
        for member in self.groups.iter_mut().flatten() {
            more |= member.transport.progress();
        }
        more
    }

    fn finish(&mut self) {
        if let Some(world) = self.groups.first_mut().and_then(Option::as_mut) {
            world.transport.finish();
        }
    }
}
