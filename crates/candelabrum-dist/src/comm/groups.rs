//! All groups of a rank behind one queue. Each runs the operations that its handle requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::collective::CollectiveHeader;
use super::failures::Failures;
use super::group_info::{GroupInfo, GroupLayers, OpContext, WORLD};
use super::queue::Resource;
use super::stats::PayloadBytes;
use super::transport::{RankTransport, no_room};
use super::{Announcement, BorrowedElements, Collective, ElementType, Label, Payload, Pending};
use crate::{Error, Result};

/// The groups of a rank. After the first failure every operation returns the same error, because
/// the ranks no longer agree on the next operation. Every failure of an operation passes here, and is
/// reported to the other ranks, whatever the backend.
pub(super) struct Groups<T> {
    /// The groups by number, without groups whose handle has been dropped.
    groups: BTreeMap<usize, GroupTransport<T>>,
    /// The next group's number.
    next: usize,
    /// The groups that this rank does not leave with the others.
    for_messages: BTreeSet<usize>,
    has_left_world: bool,
    failures: Arc<Failures>,
}

/// A rank's transport and state in one group.
pub(super) struct GroupTransport<T> {
    transport: T,
    group_info: GroupInfo,
    /// The number of this group's collectives so far.
    sequence: u64,
    failures: Arc<Failures>,
}

impl<T: RankTransport> Groups<T> {
    /// The group of all ranks, without further groups.
    pub(super) fn world(
        transport: T,
        rank: usize,
        world_size: usize,
        failures: Arc<Failures>,
    ) -> (Self, GroupInfo) {
        let ranks = (0..world_size).collect();
        let member = GroupTransport::new(transport, WORLD, rank, ranks, Arc::clone(&failures));
        let group_info = member.group_info.clone();
        let groups = Self {
            groups: BTreeMap::from([(WORLD, member)]),
            next: WORLD + 1,
            for_messages: BTreeSet::new(),
            has_left_world: false,
            failures,
        };
        (groups, group_info)
    }

    /// The group with this number, for its next operation.
    pub(super) fn member(&mut self, id: usize) -> Result<&mut GroupTransport<T>> {
        if let Some(error) = self.failures.first.get() {
            return Err(error);
        }
        let what = "an operation of a group that this rank has left, for instance because its `World` was dropped,";
        let is_left = id == WORLD && self.has_left_world;
        let member = self.groups.get_mut(&id).filter(|_| !is_left);
        member.ok_or_else(|| Error::Unsupported { what: what.to_owned() })
    }

    /// Runs the operation in group `id`. In a group with `layers` an all-reduce of all ranks runs in their groups, and
    /// so does a reduce-scatter of the ranks of a host.
    pub(super) fn run(
        &mut self,
        id: usize,
        layers: Option<GroupLayers>,
        op: Collective,
        payload: Payload,
    ) -> Result<Pending> {
        let in_layers = layers.filter(|layers| layers.divide(id, op));
        let result = match (in_layers, op) {
            (Some(layers), Collective::AllReduce(op)) => {
                self.all_reduce_in_layers(layers, op, payload)
            }
            (Some(layers), Collective::ReduceScatterV(op)) => {
                self.reduce_scatter_in_layers(layers, op, payload)
            }
            _ => {
                let member = self.member(id)?;
                return match payload.is_on_device() && member.transport.takes_device_memory() {
                    true => member.begin(op, payload),
                    false => Ok(Pending::ready(Ok(member.execute(op, payload)?))),
                };
            }
        };
        let result = result.inspect_err(|error| {
            // A rank of another host may wait for this rank, and must not see it leave before it
            // knows why.
            if error.is_echo() {
                self.failures.abort.fail(error);
            }
        });
        Ok(Pending::ready(Ok(result?)))
    }

    /// See [`super::Communicator::announce`].
    pub(super) fn announce(&mut self, id: usize, next: &[Announcement]) {
        if let Some(GroupTransport { transport, sequence, .. }) = self.groups.get_mut(&id) {
            let headers = (*sequence + 1..).zip(next).map(|(number, op)| op.header(number));
            transport.announce(headers.collect());
        }
    }

    /// Announces to the other ranks of the groups that this rank refuses an operation because of
    /// `why`. The result is always an error. If all ranks refuse the same operation, the groups
    /// remain usable. Otherwise the other ranks get the reason.
    pub(super) fn refuse(&mut self, ids: &[usize], op: Collective, why: Error) -> Error {
        if let Some(error) = self.failures.first.get() {
            return error;
        }
        let told = ids.iter().try_for_each(|id| match self.groups.get_mut(id) {
            Some(member) => member.refuse(op),
            None => Ok(()),
        });
        let error = match told {
            Ok(()) => return why,
            // The other ranks run another operation, because this rank refuses.
            Err(
                Error::Disagreement { .. } | Error::PeerFailed { .. } | Error::NotAnnounced { .. },
            ) => why,
            Err(error) => error,
        };
        self.failures.add(&error);
        error
    }

    /// Divides a group, see [`super::Communicator::split`].
    pub(super) fn split(
        &mut self,
        id: usize,
        colour: Option<u64>,
        key: i64,
    ) -> Result<Option<GroupInfo>> {
        let new = self.next;
        let made = self.member(id)?.split(new, colour, key)?;
        self.next += 1;
        Ok(made.map(|member| {
            let group_info = member.group_info.clone();
            self.groups.insert(new, member);
            group_info
        }))
    }

    /// The number of ranks in a group.
    pub(super) fn size(&self, id: usize) -> usize {
        self.groups.get(&id).map_or(1, |member| member.group_info.ranks.len())
    }

    /// This rank's number in a group.
    pub(super) fn rank(&self, id: usize) -> usize {
        self.groups.get(&id).map_or(0, |member| member.group_info.rank)
    }

    /// Counts an operation that consisted of other operations.
    pub(super) fn count(&self, id: usize, op: Collective, moved: PayloadBytes, busy: Duration) {
        if let Some(member) = self.groups.get(&id) {
            member.group_info.count(op, moved, busy);
        }
    }

    /// See [`super::Communicator::channel`].
    pub(super) fn keep_for_messages(&mut self, id: usize) {
        self.for_messages.insert(id);
    }

    /// See [`super::Communicator::retire`].
    pub(super) fn leave_all(&mut self) {
        let all = self.groups.keys().filter(|id| !self.for_messages.contains(id));
        all.copied().collect::<Vec<_>>().into_iter().for_each(|id| self.leave(id));
    }

    /// Ends the use of a group, once: its handle has been dropped, or this rank retires.
    pub(super) fn leave(&mut self, id: usize) {
        if id == WORLD && std::mem::replace(&mut self.has_left_world, true) {
            return;
        }
        if let Some(member) = self.groups.get_mut(&id) {
            member.transport.leave();
        }
        if id != WORLD {
            self.groups.remove(&id);
        }
    }
}

impl<T: RankTransport> GroupTransport<T> {
    fn new(
        transport: T,
        id: usize,
        rank: usize,
        ranks: Arc<[usize]>,
        failures: Arc<Failures>,
    ) -> Self {
        let (messages, counters) = (transport.messages(), Arc::default());
        let group_info = GroupInfo { id, rank, ranks, counters, messages };
        Self { transport, group_info, sequence: 0, failures }
    }

    /// Allocates memory, see [`super::Communicator::alloc`].
    pub(super) fn alloc(&mut self, element: ElementType, len: usize) -> Result<Payload> {
        self.sequence += 1;
        let header = CollectiveHeader::of_allocation(self.sequence, element, len);
        let result = if len.checked_mul(element.size()).is_some() {
            self.transport.alloc(header)
        } else {
            // The ranks agree on the length, so each of them refuses it. As bytes it is a number.
            let header = CollectiveHeader::of_allocation(self.sequence, ElementType::U8, len);
            let agreed = self.transport.execute(header, Payload::empty());
            agreed.and_then(|_| Err(no_room(element, len)))
        };
        result.map_err(|error| self.failed(error, header, None))
    }

    /// Begins the next operation, on numbers in a device's memory. The device may still work afterwards.
    fn begin(&mut self, op: Collective, payload: Payload) -> Result<Pending> {
        self.sequence += 1;
        let header = CollectiveHeader::new(self.sequence, op, &payload);
        let (label, group_info) = (payload.label().cloned(), self.group_info.clone());
        let moved = PayloadBytes::from_payload(&payload, group_info.rank);
        let failures = Arc::clone(&self.failures);
        let context = Arc::new(OpContext { group_info, header, label, failures });
        let start = Instant::now();
        match self.transport.begin(header, payload, &context) {
            Ok(work) => Ok(Pending::on_device(work, context, moved, start)),
            Err(error) => Err(context.fail(context.explain(error))),
        }
    }

    /// Runs the next operation to its end.
    pub(super) fn execute(&mut self, op: Collective, payload: Payload) -> Result<Payload> {
        let moved = PayloadBytes::from_payload(&payload, self.group_info.rank);
        let start = Instant::now();
        let result = self.execute_part(op, payload)?;
        self.group_info.count(op, moved.to(&result), start.elapsed());
        Ok(result)
    }

    /// As [`Self::execute`], for a step of an operation that is counted as a whole.
    pub(super) fn execute_part(&mut self, op: Collective, payload: Payload) -> Result<Payload> {
        if !self.transport.takes_device_memory()
            && let Err(error) = payload.check_on_host()
        {
            let error = error.into();
            self.failures.add(&error);
            return Err(error);
        }
        self.sequence += 1;
        let header = CollectiveHeader::new(self.sequence, op, &payload);
        let label = payload.label().cloned();
        let _span = span(header, label.as_ref()).entered();
        let result = self.transport.execute(header, payload);
        result.map_err(|error| self.failed(error, header, label.as_ref()))
    }

    /// Runs the next operation on numbers in the caller's memory.
    pub(super) fn execute_in_place(
        &mut self,
        op: Collective,
        values: &mut BorrowedElements<'_>,
    ) -> Result<()> {
        self.sequence += 1;
        let (element, len) = (values.element_type(), values.len());
        let header = CollectiveHeader {
            op,
            tag: 0,
            ..CollectiveHeader::of_allocation(self.sequence, element, len)
        };
        let bytes = len * element.size();
        let moved = PayloadBytes { input: bytes, output: bytes, own: 0 };
        let _span = span(header, None).entered();
        let start = Instant::now();
        let result = self.transport.execute_in_place(header, values);
        result.map_err(|error| self.failed(error, header, None))?;
        self.group_info.count(op, moved, start.elapsed());
        Ok(())
    }

    /// The error of an operation, for the program. It is stored and reported.
    fn failed(&self, error: Error, header: CollectiveHeader, label: Option<&Label>) -> Error {
        let error = self.group_info.explain(error, header, label);
        self.failures.add(&error);
        error
    }

    fn refuse(&mut self, op: Collective) -> Result<()> {
        self.sequence += 1;
        let header = CollectiveHeader::of_refusal(self.sequence, op);
        let result = self.transport.execute(header, Payload::empty());
        result.map(drop).map_err(|error| self.group_info.explain(error, header, None))
    }

    /// All ranks gather their colours and keys, and each computes the members of its new group.
    fn split(&mut self, id: usize, colour: Option<u64>, key: i64) -> Result<Option<Self>> {
        let wish = [i64::from(colour.is_some()), colour.unwrap_or(0) as i64, key];
        let wishes = self.execute(Collective::AllGather, Payload::from_slice(&wish))?;
        let wishes = wishes.as_slice::<i64>()?;
        let GroupInfo { rank: own, ranks, .. } = &self.group_info;
        let mut members: Vec<usize> =
            (0..ranks.len()).filter(|r| wishes[3 * r..3 * r + 2] == wish[..2]).collect();
        members.sort_by_key(|rank| wishes[3 * rank + 2]);
        let members = colour.map(|_| members);
        let transport = self.transport.split(members.as_deref()).inspect_err(|error| {
            self.failures.add(error);
        })?;
        let Some(transport) = transport else { return Ok(None) };
        let members = members.unwrap_or_default();
        let rank = members.iter().position(|member| member == own).unwrap_or(0);
        let ranks = members.iter().map(|&member| ranks[member]).collect();
        Ok(Some(Self::new(transport, id, rank, ranks, Arc::clone(&self.failures))))
    }
}

/// The span of an operation in the timeline.
fn span(header: CollectiveHeader, label: Option<&Label>) -> tracing::Span {
    let CollectiveHeader { op, element, len, .. } = header;
    tracing::debug_span!(
        target: "candelabrum::comm", "transfer",
        op = op.name(), bytes = len * element.size(), label = label.map(Label::text)
    )
}

impl<T: RankTransport> Resource for Groups<T> {
    fn any_thread(&self) -> bool {
        self.groups.values().all(|member| member.transport.any_thread())
    }

    fn progress(&mut self) -> bool {
        let mut more = false;
        for member in self.groups.values_mut() {
            more |= member.transport.progress();
        }
        more
    }

    fn finish(&mut self) {
        if let Some(world) = self.groups.get_mut(&WORLD) {
            world.transport.finish();
        }
    }
}
