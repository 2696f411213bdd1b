//! The all-reduce of a world of several hosts. It first reduces within each host, because memory is
//! faster than a network, and then between hosts. So each number crosses the network once per host.
//!
//! If all hosts have equally many ranks, the ranks of a host share the work. Each rank reduces its
//! part (reduce-scatter) and all-reduces this part with the ranks of the same place on the other
//! hosts. Then the ranks of a host gather the parts (all-gather). Otherwise the first rank of each
//! host does the exchange between hosts.
//! The order of additions is the same in both cases: the ranks of a host in rank order, then the
//! hosts' sums in the order of the hosts' lowest ranks. Each sum is rounded to the element type. A
//! mean is divided once, at the end.
//!
//! Ranks that share out an average stop before the last step: each rank keeps the part that it has
//! all-reduced ([`Communicator::replica`](super::Communicator::replica)). The bits are those of the
//! all-reduce, because each number goes through the same additions.
//!
//! The whole operation is one task of the queue. So between its steps this rank cannot run
//! another operation, which another rank might run before or after it.

use std::time::Instant;

use candelabrum_memory::reduce;

use super::group_info::GroupLayers;
use super::groups::Groups;
use super::stats::PayloadBytes;
use super::transport::RankTransport;
use super::{Collective, Payload, ReduceOp};
use crate::Result;

impl<T: RankTransport> Groups<T> {
    pub(super) fn all_reduce_in_layers(
        &mut self,
        layers: GroupLayers,
        op: ReduceOp,
        mut payload: Payload,
    ) -> Result<Payload> {
        payload.check_on_host()?;
        let start = Instant::now();
        let (sum, divisor) = self.undivided(layers, op);
        if layers.even {
            self.by_parts(layers, sum, divisor, &mut payload)?;
        } else {
            self.by_speakers(layers, sum, divisor, &mut payload)?;
        }
        let bytes = payload.bytes().len();
        let moved = PayloadBytes { input: bytes, output: bytes, own: 0 };
        self.count(layers.flat, Collective::AllReduce(op), moved, start.elapsed());
        Ok(payload)
    }

    /// Reduces this rank's part of the payload over all ranks. The payload has a part for each rank of this host.
    pub(super) fn reduce_scatter_in_layers(
        &mut self,
        layers: GroupLayers,
        op: ReduceOp,
        payload: Payload,
    ) -> Result<Payload> {
        payload.check_on_host()?;
        let start = Instant::now();
        let (sum, divisor) = self.undivided(layers, op);
        let (element, place) = (payload.element_type(), self.rank(layers.host));
        let mut moved = PayloadBytes::from_payload(&payload, place);
        let own = payload.part_ranges().get(place).cloned().unwrap_or_default();
        let scatter = Collective::ReduceScatterV(sum);
        let mut payload = self.member(layers.host)?.execute_part(scatter, payload)?;
        // The ranks of this place on all hosts have the same part, or none.
        if let Some(across) = layers.across.filter(|_| !own.is_empty()) {
            let mut part = Payload::zeros(element, own.len() / element.size());
            part.bytes_mut().copy_from_slice(&payload.bytes()[own.clone()]);
            let all = Collective::AllReduce(sum);
            let part = self.member(across)?.execute_part(all, labelled(part, &payload))?;
            payload.bytes_mut()[own.clone()].copy_from_slice(part.bytes());
            if self.size(across) > 1 {
                moved =
                    PayloadBytes { input: moved.input + own.len(), own: 2 * own.len(), ..moved };
            }
        }
        if let Some(count) = divisor {
            reduce::divide(element, &mut payload.bytes_mut()[own], count);
        }
        self.count(layers.host, Collective::ReduceScatterV(op), moved, start.elapsed());
        Ok(payload)
    }

    /// The operation of the steps, and the number by which its result is divided at the end.
    fn undivided(&self, layers: GroupLayers, op: ReduceOp) -> (ReduceOp, Option<usize>) {
        match op {
            ReduceOp::Mean => (ReduceOp::Sum, Some(self.size(layers.flat))),
            other => (other, None),
        }
    }

    fn by_parts(
        &mut self,
        layers: GroupLayers,
        op: ReduceOp,
        divisor: Option<usize>,
        payload: &mut Payload,
    ) -> Result<()> {
        let (element, bytes) = (payload.element_type(), payload.bytes().len());
        let padded = payload.len().next_multiple_of(self.size(layers.host));
        let mut whole = Payload::zeros(element, padded);
        whole.bytes_mut()[..bytes].copy_from_slice(payload.bytes());
        let scatter = Collective::ReduceScatter(op);
        let mut part = self.member(layers.host)?.execute_part(scatter, labelled(whole, payload))?;
        if let Some(across) = layers.across {
            part = self
                .member(across)?
                .execute_part(Collective::AllReduce(op), labelled(part, payload))?;
        }
        if let Some(count) = divisor {
            reduce::divide(element, part.bytes_mut(), count);
        }
        let whole = self
            .member(layers.host)?
            .execute_part(Collective::AllGather, labelled(part, payload))?;
        payload.bytes_mut().copy_from_slice(&whole.bytes()[..bytes]);
        Ok(())
    }

    fn by_speakers(
        &mut self,
        layers: GroupLayers,
        op: ReduceOp,
        divisor: Option<usize>,
        payload: &mut Payload,
    ) -> Result<()> {
        let element = payload.element_type();
        let mut own = Payload::zeros(element, payload.len());
        own.bytes_mut().copy_from_slice(payload.bytes());
        let reduce = Collective::Reduce { op, root: 0 };
        let mut sum = self.member(layers.host)?.execute_part(reduce, labelled(own, payload))?;
        if let Some(across) = layers.across {
            sum = self
                .member(across)?
                .execute_part(Collective::AllReduce(op), labelled(sum, payload))?;
            if let Some(count) = divisor {
                reduce::divide(element, sum.bytes_mut(), count);
            }
        } else {
            sum = Payload::zeros(element, payload.len());
        }
        let broadcast = Collective::Broadcast { root: 0 };
        let sum = self.member(layers.host)?.execute_part(broadcast, labelled(sum, payload))?;
        payload.bytes_mut().copy_from_slice(sum.bytes());
        Ok(())
    }
}

/// Returns `step` with the label of the payload `from`.
fn labelled(step: Payload, from: &Payload) -> Payload {
    match from.label() {
        Some(label) => step.labelled(label.clone()),
        None => step,
    }
}
