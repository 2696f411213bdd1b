//! The operations of a communicator, and the header by which ranks check that they all call the
//! same one.

use std::fmt;

use super::{ElementType, Payload, ReduceOp};
use crate::{Error, Result};

/// An operation of all ranks, or one end of a message between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Collective {
    /// Every rank gets the reduction of all ranks' payloads.
    AllReduce(ReduceOp),
    /// Every rank gets `root`'s payload.
    Broadcast {
        /// The rank that sends.
        root: usize,
    },
    /// Every rank gets all ranks' payloads, in rank order.
    AllGather,
    /// The reduction is cut into one equal part for each rank. Rank `r` gets part `r`.
    ReduceScatter(ReduceOp),
    /// As [`Collective::ReduceScatter`], with parts of any lengths, the same on all ranks: see
    /// [`with_parts`](super::Payload::with_parts). The payload keeps its length. Part `r` of rank `r` becomes part
    /// `r` of the reduction, and what is in the other parts is arbitrary afterwards.
    ReduceScatterV(ReduceOp),
    /// Part `r` of rank `r`'s payload goes to the same place in all ranks' payloads. The parts have any lengths, the
    /// same on all ranks: see [`with_parts`](super::Payload::with_parts). What a rank has in the parts of other ranks
    /// is ignored.
    AllGatherInPlace,
    /// `root` gets all ranks' payloads, in rank order. The other ranks get nothing.
    Gather {
        /// The rank that receives.
        root: usize,
    },
    /// `root`'s payload is cut into one equal part for each rank. Rank `r` gets part `r`.
    Scatter {
        /// The rank that sends.
        root: usize,
    },
    /// `root` gets the reduction of all ranks' payloads. The other ranks get nothing.
    Reduce {
        /// The operation that combines the values.
        op: ReduceOp,
        /// The rank that receives.
        root: usize,
    },
    /// Every rank gets all ranks' payloads, in rank order. The payloads may have different lengths,
    /// which are the result's [`parts`](super::Payload::parts).
    AllGatherV,
    /// Each rank's payload is cut into one equal part for each rank. Part `r` goes to rank `r`. The
    /// result is the received parts in rank order.
    AllToAll,
    /// As [`Collective::AllToAll`], with parts of any lengths, see
    /// [`with_parts`](super::Payload::with_parts). The result's parts are the lengths received from
    /// each rank.
    AllToAllV,
    /// No rank continues until all ranks have arrived.
    Barrier,
    /// The payload goes to one rank, which must receive it with [`Collective::Recv`].
    Send {
        /// The rank that receives.
        to: usize,
    },
    /// Receives a payload of this length from one rank. The messages of a pair of ranks keep their
    /// order.
    Recv {
        /// The rank that sends.
        from: usize,
    },
    /// Receives the next message of any rank, of any length. The empty payload gives the element
    /// type. The result's [`source`](super::Payload::source) is the sender.
    RecvAny,
}

/// The properties of a kind of operation.
struct OpKind {
    name: &'static str,
    /// Whether it reduces, and so names a [`ReduceOp`].
    reduces: bool,
    /// The name of its argument that is a rank; empty if it has none.
    named: &'static str,
}

const fn kind(name: &'static str, reduces: bool, named: &'static str) -> OpKind {
    OpKind { name, reduces, named }
}

/// All kinds. The index is the code in headers.
const KINDS: [OpKind; 16] = [
    kind("all_reduce", true, ""),
    kind("broadcast", false, "root"),
    kind("all_gather", false, ""),
    kind("reduce_scatter", true, ""),
    kind("gather", false, "root"),
    kind("scatter", false, "root"),
    kind("barrier", false, ""),
    kind("send", false, "to"),
    kind("recv", false, "from"),
    kind("reduce", true, "root"),
    kind("all_gather_v", false, ""),
    kind("all_to_all", false, ""),
    kind("all_to_all_v", false, ""),
    kind("recv_any", false, ""),
    kind("reduce_scatter_v", true, ""),
    kind("all_gather_in_place", false, ""),
];

impl Collective {
    /// The code of its kind, its reduction and the rank that it names. A reduction or rank that it
    /// does not have is arbitrary.
    fn parts(self) -> (u8, ReduceOp, usize) {
        let none = ReduceOp::Sum;
        match self {
            Self::AllReduce(op) => (0, op, 0),
            Self::Broadcast { root } => (1, none, root),
            Self::AllGather => (2, none, 0),
            Self::ReduceScatter(op) => (3, op, 0),
            Self::Gather { root } => (4, none, root),
            Self::Scatter { root } => (5, none, root),
            Self::Barrier => (6, none, 0),
            Self::Send { to } => (7, none, to),
            Self::Recv { from } => (8, none, from),
            Self::Reduce { op, root } => (9, op, root),
            Self::AllGatherV => (10, none, 0),
            Self::AllToAll => (11, none, 0),
            Self::AllToAllV => (12, none, 0),
            Self::RecvAny => (13, none, 0),
            Self::ReduceScatterV(op) => (14, op, 0),
            Self::AllGatherInPlace => (15, none, 0),
        }
    }

    /// The operation of these [`parts`](Self::parts).
    fn of_parts(kind: u8, op: ReduceOp, rank: usize) -> Option<Self> {
        Some(match kind {
            0 => Self::AllReduce(op),
            1 => Self::Broadcast { root: rank },
            2 => Self::AllGather,
            3 => Self::ReduceScatter(op),
            4 => Self::Gather { root: rank },
            5 => Self::Scatter { root: rank },
            6 => Self::Barrier,
            7 => Self::Send { to: rank },
            8 => Self::Recv { from: rank },
            9 => Self::Reduce { op, root: rank },
            10 => Self::AllGatherV,
            11 => Self::AllToAll,
            12 => Self::AllToAllV,
            13 => Self::RecvAny,
            14 => Self::ReduceScatterV(op),
            15 => Self::AllGatherInPlace,
            _ => return None,
        })
    }

    fn kind(self) -> &'static OpKind {
        &KINDS[usize::from(self.parts().0)]
    }

    pub(crate) fn name(self) -> &'static str {
        self.kind().name
    }

    /// Whether every rank takes part.
    pub(crate) fn is_collective(self) -> bool {
        !matches!(self, Self::Send { .. } | Self::Recv { .. } | Self::RecvAny)
    }

    /// Whether all ranks cut their payloads into the same parts.
    pub(crate) fn has_common_parts(self) -> bool {
        matches!(self, Self::ReduceScatterV(_) | Self::AllGatherInPlace)
    }

    /// The other rank that the operation names, if it names one.
    pub(crate) fn rank_named(self) -> Option<usize> {
        let (_, _, rank) = self.parts();
        (!self.kind().named.is_empty()).then_some(rank)
    }

    fn reduce_op(self) -> Option<ReduceOp> {
        let (_, op, _) = self.parts();
        self.kind().reduces.then_some(op)
    }

    /// Returns an error if this rank cannot run the operation, whatever the other ranks do.
    pub(crate) fn check(self, payload: &Payload, rank: usize, world_size: usize) -> Result<()> {
        let len = payload.len();
        self.check_type(payload.element_type(), world_size)?;
        let divides = match self {
            Self::ReduceScatter(_) | Self::AllToAll => true,
            Self::Scatter { root } => rank == root,
            _ => false,
        };
        if divides && !len.is_multiple_of(world_size) {
            return Err(Error::NotDivisible { op: self.name(), len, world_size });
        }
        let needs_parts = self == Self::AllToAllV || self.has_common_parts();
        if needs_parts && payload.parts().is_none_or(|p| p.len() != world_size) {
            let parts = payload.parts().map_or(0, <[usize]>::len);
            return Err(Error::Parts { op: self.name(), parts, world_size });
        }
        Ok(())
    }

    /// Refuses a rank that does not exist, and a mean of integers. An operation in place needs no other
    /// check.
    pub(crate) fn check_type(self, element: ElementType, world_size: usize) -> Result<()> {
        if let Some(rank) = self.rank_named().filter(|&named| named >= world_size) {
            return Err(Error::RankOutOfRange { op: self.name(), rank, world_size });
        }
        if self.reduce_op() == Some(ReduceOp::Mean) && !element.is_float() {
            return Err(Error::Unsupported { what: format!("{self} of {element}") });
        }
        Ok(())
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &OpKind { name, named, .. } = self.kind();
        f.write_str(name)?;
        match (self.reduce_op(), self.rank_named()) {
            (None, None) => Ok(()),
            (None, Some(rank)) => write!(f, "({named} {rank})"),
            (Some(op), None) => write!(f, "({})", op.name()),
            (Some(op), Some(rank)) => write!(f, "({}, {named} {rank})", op.name()),
        }
    }
}

/// The next operation of one rank. The ranks exchange headers before any data, so ranks that
/// disagree return an error instead of hanging or mixing their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CollectiveHeader {
    /// The number of the collective in this group, counted from 1; 0 for messages.
    pub(crate) sequence: u64,
    pub(crate) op: Collective,
    pub(crate) element: ElementType,
    pub(crate) len: usize,
    /// The label, the step and the common parts of the payload, see [`Payload::tag`].
    pub(crate) tag: u64,
    /// The code of the kind of operation that this rank refuses. The rank then takes part in the
    /// exchange of headers only, and `op` is a barrier.
    pub(crate) refused: Option<u8>,
}

impl CollectiveHeader {
    /// The number of words of its encoding.
    pub(crate) const WORDS: usize = 4;

    /// The header of the operation number `sequence` on `payload`.
    pub(crate) fn new(sequence: u64, op: Collective, payload: &Payload) -> Self {
        let (element, len) = (payload.element_type(), payload.len());
        let tag = payload.tag(op.has_common_parts());
        Self { sequence, op, element, len, tag, refused: None }
    }

    /// The header of an allocation of memory for `len` elements.
    pub(crate) fn of_allocation(sequence: u64, element: ElementType, len: usize) -> Self {
        Self { sequence, op: Collective::Barrier, element, len, tag: 0, refused: None }
    }

    /// The header of an operation that this rank refuses.
    pub(crate) fn of_refusal(sequence: u64, op: Collective) -> Self {
        let (kind, ..) = op.parts();
        Self { refused: Some(kind), ..Self::of_allocation(sequence, ElementType::U8, 0) }
    }

    pub(crate) fn encode(self) -> [u64; Self::WORDS] {
        let (kind, op, rank) = self.op.parts();
        let refused = self.refused.map_or(0, |kind| kind + 1);
        let packed = (rank as u64) << 32
            | u64::from(refused) << 24
            | u64::from(self.element.code()) << 16
            | u64::from(op.code()) << 8
            | u64::from(kind);
        [self.sequence, packed, self.len as u64, self.tag]
    }

    pub(crate) fn decode([sequence, packed, len, tag]: [u64; Self::WORDS]) -> Option<Self> {
        let [kind, op, element, refused, ..] = packed.to_le_bytes();
        let op = Collective::of_parts(kind, ReduceOp::from_code(op)?, (packed >> 32) as usize)?;
        let element = ElementType::from_code(element)?;
        let refused = refused.checked_sub(1);
        Some(Self { sequence, op, element, len: len as usize, tag, refused })
    }

    /// Whether ranks with these headers can run the operation together. Lengths may differ if each
    /// rank has a length of its own, or if only the root's length is used.
    fn agrees(&self, other: &Self) -> bool {
        let has_own_len = matches!(
            self.op,
            Collective::Scatter { .. } | Collective::AllGatherV | Collective::AllToAllV
        );
        *self == if has_own_len { Self { len: self.len, ..*other } } else { *other }
    }

    /// The lowest 32 bits of the training step's number; 0 outside a step.
    fn step(&self) -> u32 {
        self.tag as u32
    }
}

impl fmt::Display for CollectiveHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequence, op, element, len, refused, .. } = self;
        if let Some(kind) = refused.and_then(|kind| KINDS.get(usize::from(kind))) {
            return write!(f, "{} number {sequence}, which it refuses", kind.name);
        }
        op.fmt(f)?;
        if op.is_collective() {
            write!(f, " number {sequence}")?;
        }
        write!(f, " of {len} × {element}")?;
        match self.step() {
            0 => Ok(()),
            step => write!(f, " in step {step}"),
        }
    }
}

/// Compares the headers of all ranks of a group with the header of its first rank. Every rank sees
/// the same headers, so every rank returns the same error. `ranks` are the ranks' numbers in the
/// world.
pub(crate) fn check_agreement(
    headers: &[[u64; CollectiveHeader::WORDS]],
    ranks: &[usize],
) -> Result<()> {
    let unreadable =
        |rank: usize| Error::Protocol { what: format!("rank {rank} sent an unreadable header") };
    let read = |(&words, &rank): (&_, &_)| {
        CollectiveHeader::decode(words).map(|header| (rank, header)).ok_or_else(|| unreadable(rank))
    };
    let headers = headers.iter().zip(ranks).map(read).collect::<Result<Vec<_>>>()?;
    let Some(&(first, expected)) = headers.first() else { return Ok(()) };
    let Some(&(rank, other)) = headers.iter().find(|(_, other)| !expected.agrees(other)) else {
        return Ok(());
    };
    // A rank that refuses knows the reason. The error of a rank that does not refuse is an echo of
    // it.
    let refuses = headers.iter().find(|(_, header)| header.refused.is_some());
    if let Some((peer, header)) = refuses
        && headers.iter().any(|(_, header)| header.refused.is_none())
    {
        return Err(Error::PeerFailed { peer: *peer, message: format!("was asked for {header}") });
    }
    let first_op = expected.op;
    let (mut what, expected) = (other.to_string(), expected.to_string());
    if what == expected {
        let parts = if first_op.has_common_parts() { " or other parts" } else { "" };
        what.push_str(&format!(" with another label{parts}"));
    }
    Err(Error::Disagreement { rank, what, first, expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(op: Collective, len: usize) -> CollectiveHeader {
        CollectiveHeader {
            sequence: 9,
            op,
            element: ElementType::Bf16,
            len,
            tag: 7 << 32 | 3,
            refused: None,
        }
    }

    #[test]
    fn headers_survive_their_encoding() {
        let kinds = 0..KINDS.len() as u8;
        let ops = kinds.filter_map(|kind| Collective::of_parts(kind, ReduceOp::Max, 70_000));
        assert_eq!(ops.clone().count(), KINDS.len());
        for op in ops {
            let header = header(op, usize::MAX >> 1);
            let decoded = CollectiveHeader::decode(header.encode()).expect("its own encoding");
            assert_eq!((decoded, decoded.to_string()), (header, header.to_string()));
        }
        let refused = CollectiveHeader::of_refusal(9, Collective::AllGather);
        assert_eq!(CollectiveHeader::decode(refused.encode()), Some(refused));
    }

    #[test]
    fn the_rank_that_differs_is_named() {
        let sum = header(Collective::AllReduce(ReduceOp::Sum), 10);
        let longer = header(Collective::AllReduce(ReduceOp::Sum), 11);
        assert!(check_agreement(&[sum.encode(), sum.encode()], &[0, 1]).is_ok());
        let headers = [sum.encode(), sum.encode(), longer.encode()];
        let message = check_agreement(&headers, &[4, 0, 6]).unwrap_err().to_string();
        for part in [
            "rank 6 calls",
            "rank 4 calls",
            "number 9",
            "11 × bf16",
            "10 × bf16",
            "all_reduce(sum)",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }

    #[test]
    fn ranks_that_refuse_are_named_unless_all_do() {
        let refused = |op| CollectiveHeader::of_refusal(9, op).encode();
        let gathers = refused(Collective::AllGather);
        assert!(check_agreement(&[gathers, gathers], &[0, 1]).is_ok());
        let sum = header(Collective::AllReduce(ReduceOp::Sum), 10).encode();
        let error = check_agreement(&[sum, gathers, gathers], &[5, 3, 4]).unwrap_err();
        assert!(error.is_echo() && error.to_string().starts_with("rank 3: "), "{error}");
        let error = check_agreement(&[gathers, refused(Collective::Barrier)], &[0, 1]).unwrap_err();
        assert!(matches!(error, Error::Disagreement { rank: 1, .. }), "{error}");
    }

    #[test]
    fn impossible_requests_are_refused_before_anything_moves() {
        let mean = Collective::AllReduce(ReduceOp::Mean);
        assert!(mean.check(&Payload::zeros(ElementType::I32, 4), 0, 2).is_err());
        let (four, five) = (Payload::from_slice(&[0_f32; 4]), Payload::from_slice(&[0_f32; 5]));
        assert!(mean.check(&four, 0, 2).is_ok());
        assert!(Collective::ReduceScatter(ReduceOp::Sum).check(&five, 0, 2).is_err());
        assert!(Collective::Broadcast { root: 2 }.check(&five, 0, 2).is_err());
        assert!(Collective::Scatter { root: 0 }.check(&five, 1, 2).is_ok());
        assert!(Collective::AllToAllV.check(&four, 0, 2).is_err(), "it was not cut");
    }
}
