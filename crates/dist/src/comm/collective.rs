//! What a communicator can be asked to do, and the header by which ranks agree that they all do
//! the same.

use std::fmt;

use super::{ElementType, Payload, ReduceOp};
use crate::{Error, Result};

/// An operation in which every rank takes part, or the two ends of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Collective {
    /// Every rank gets the reduction of all ranks' buffers.
    AllReduce(ReduceOp),
    /// Every rank gets `root`'s buffer.
    Broadcast {
        /// The rank that sends.
        root: usize,
    },
    /// Every rank gets all ranks' buffers, in rank order.
    AllGather,
    /// The reduction is cut into as many equal parts as ranks; rank `r` gets part `r`.
    ReduceScatter(ReduceOp),
    /// `root` gets all ranks' buffers, in rank order; the others get nothing.
    Gather {
        /// The rank that receives.
        root: usize,
    },
    /// `root`'s buffer is cut into as many equal parts as ranks; rank `r` gets part `r`.
    Scatter {
        /// The rank that sends.
        root: usize,
    },
    /// `root` gets the reduction of all ranks' buffers; the others get nothing.
    Reduce {
        /// How values become one.
        op: ReduceOp,
        /// The rank that receives.
        root: usize,
    },
    /// Every rank gets all ranks' buffers, in rank order; they may have different lengths, which
    /// the result's [`parts`](super::Payload::parts) tell.
    AllGatherV,
    /// Each rank's buffer is cut into as many equal parts as ranks; part `r` goes to rank `r`, and
    /// what comes from the ranks is put together in rank order.
    AllToAll,
    /// The same with parts of any lengths: those that the buffer was
    /// [cut into](super::Payload::with_parts). The result's parts tell what came from whom.
    AllToAllV,
    /// Nobody goes on until everybody is here.
    Barrier,
    /// The buffer goes to one rank, which must ask for it with [`Collective::Recv`].
    Send {
        /// The rank that receives.
        to: usize,
    },
    /// A buffer of this length comes from one rank. Messages of a pair of ranks keep their order.
    Recv {
        /// The rank that sends.
        from: usize,
    },
    /// The next message of whichever rank has sent one, of any length; the empty buffer tells the
    /// element type, the result's [`source`](super::Payload::source) who sent it.
    RecvAny,
}

impl Collective {
    /// Whether every rank takes part.
    pub(crate) fn is_collective(self) -> bool {
        !matches!(self, Self::Send { .. } | Self::Recv { .. } | Self::RecvAny)
    }

    /// The other rank that the operation names, if it names one.
    fn rank_named(self) -> Option<usize> {
        match self {
            Self::Broadcast { root }
            | Self::Gather { root }
            | Self::Scatter { root }
            | Self::Reduce { root, .. } => Some(root),
            Self::Send { to } => Some(to),
            Self::Recv { from } => Some(from),
            Self::AllReduce(_)
            | Self::AllGather
            | Self::AllGatherV
            | Self::ReduceScatter(_)
            | Self::AllToAll
            | Self::AllToAllV
            | Self::Barrier
            | Self::RecvAny => None,
        }
    }

    fn reduce_op(self) -> Option<ReduceOp> {
        match self {
            Self::AllReduce(op) | Self::ReduceScatter(op) | Self::Reduce { op, .. } => Some(op),
            _ => None,
        }
    }

    /// Refuses what cannot be carried out whatever the other ranks do.
    pub(crate) fn check(self, buffer: &Payload, rank: usize, world_size: usize) -> Result<()> {
        let (element, len) = (buffer.element_type(), buffer.len());
        if let Some(rank) = self.rank_named().filter(|&named| named >= world_size) {
            return Err(Error::RankOutOfRange { op: self.name(), rank, world_size });
        }
        if self.reduce_op() == Some(ReduceOp::Mean) && !element.is_float() {
            return Err(Error::Unsupported { what: format!("{self} of {element}") });
        }
        let divides = match self {
            Self::ReduceScatter(_) | Self::AllToAll => true,
            Self::Scatter { root } => rank == root,
            _ => false,
        };
        if divides && !len.is_multiple_of(world_size) {
            return Err(Error::NotDivisible { op: self.name(), len, world_size });
        }
        if self == Self::AllToAllV && buffer.parts().is_none_or(|p| p.len() != world_size) {
            let parts = buffer.parts().map_or(0, <[usize]>::len);
            return Err(Error::Parts { op: self.name(), parts, world_size });
        }
        Ok(())
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce(_) => "all_reduce",
            Self::Broadcast { .. } => "broadcast",
            Self::Reduce { .. } => "reduce",
            Self::AllGather => "all_gather",
            Self::AllGatherV => "all_gather_v",
            Self::AllToAll => "all_to_all",
            Self::AllToAllV => "all_to_all_v",
            Self::ReduceScatter(_) => "reduce_scatter",
            Self::Gather { .. } => "gather",
            Self::Scatter { .. } => "scatter",
            Self::Barrier => "barrier",
            Self::Send { .. } => "send",
            Self::Recv { .. } => "recv",
            Self::RecvAny => "recv_any",
        }
    }

    fn code(self) -> (u8, u8, u32) {
        let op = ReduceOp::code;
        match self {
            Self::AllReduce(o) => (0, op(o), 0),
            Self::Broadcast { root } => (1, 0, root as u32),
            Self::AllGather => (2, 0, 0),
            Self::ReduceScatter(o) => (3, op(o), 0),
            Self::Gather { root } => (4, 0, root as u32),
            Self::Scatter { root } => (5, 0, root as u32),
            Self::Barrier => (6, 0, 0),
            Self::Send { to } => (7, 0, to as u32),
            Self::Recv { from } => (8, 0, from as u32),
            Self::Reduce { op: o, root } => (9, op(o), root as u32),
            Self::AllGatherV => (10, 0, 0),
            Self::AllToAll => (11, 0, 0),
            Self::AllToAllV => (12, 0, 0),
            Self::RecvAny => (13, 0, 0),
        }
    }

    fn from_code(kind: u8, op: u8, rank: u32) -> Option<Self> {
        let root = rank as usize;
        let op = ReduceOp::from_code(op)?;
        Some(match kind {
            0 => Self::AllReduce(op),
            1 => Self::Broadcast { root },
            2 => Self::AllGather,
            3 => Self::ReduceScatter(op),
            4 => Self::Gather { root },
            5 => Self::Scatter { root },
            6 => Self::Barrier,
            7 => Self::Send { to: root },
            8 => Self::Recv { from: root },
            9 => Self::Reduce { op, root },
            10 => Self::AllGatherV,
            11 => Self::AllToAll,
            12 => Self::AllToAllV,
            13 => Self::RecvAny,
            _ => return None,
        })
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::AllReduce(op) | Self::ReduceScatter(op) => write!(f, "({})", op.name()),
            Self::Broadcast { root } | Self::Gather { root } | Self::Scatter { root } => {
                write!(f, "(root {root})")
            }
            Self::Send { to } => write!(f, "(to {to})"),
            Self::Recv { from } => write!(f, "(from {from})"),
            Self::Reduce { op, root } => write!(f, "({}, root {root})", op.name()),
            Self::AllGather
            | Self::AllGatherV
            | Self::AllToAll
            | Self::AllToAllV
            | Self::Barrier
            | Self::RecvAny => Ok(()),
        }
    }
}

/// What one rank is about to do: exchanged before anything moves, so that ranks which disagree
/// say so instead of hanging or mixing numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Counts the operations of this communicator.
    pub(crate) sequence: u64,
    pub(crate) op: Collective,
    pub(crate) element: ElementType,
    pub(crate) len: usize,
    /// What the numbers are, see [`Payload::tag`].
    pub(crate) tag: u64,
}

impl Header {
    /// Words of its encoding.
    pub(crate) const WORDS: usize = 4;

    /// The header of the operation number `sequence` on `payload`.
    pub(crate) fn of(sequence: u64, op: Collective, payload: &Payload) -> Self {
        let (element, len, tag) = (payload.element_type(), payload.len(), payload.tag());
        Self { sequence, op, element, len, tag }
    }

    pub(crate) fn encode(self) -> [u64; Self::WORDS] {
        let (kind, op, rank) = self.op.code();
        let packed = u64::from(rank) << 32
            | u64::from(self.element.code()) << 16
            | u64::from(op) << 8
            | u64::from(kind);
        [self.sequence, packed, self.len as u64, self.tag]
    }

    pub(crate) fn decode([sequence, packed, len, tag]: [u64; Self::WORDS]) -> Option<Self> {
        let [kind, op, element, ..] = packed.to_le_bytes();
        let op = Collective::from_code(kind, op, (packed >> 32) as u32)?;
        let element = ElementType::from_code(element)?;
        Some(Self { sequence, op, element, len: len as usize, tag })
    }

    /// Whether ranks with these headers can go on together. Lengths may differ where each rank has
    /// its own, or only the root's counts.
    fn agrees(&self, other: &Self) -> bool {
        let len = match self.op {
            Collective::Scatter { .. } | Collective::AllGatherV | Collective::AllToAllV => true,
            _ => self.len == other.len,
        };
        len && self.sequence == other.sequence
            && self.op == other.op
            && self.element == other.element
            && self.tag == other.tag
    }

    /// The training step, as far as 32 bits tell; 0 outside of one.
    fn step(&self) -> u32 {
        self.tag as u32
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} number {} of {} × {}", self.op, self.sequence, self.len, self.element)?;
        match self.step() {
            0 => Ok(()),
            step => write!(f, " in step {step}"),
        }
    }
}

/// Compares the headers of all ranks of a group with the first's: every rank sees the same ones, so
/// every rank gives the same error. `ranks` are the ranks' names, their numbers in the world.
pub(crate) fn check_agreement(headers: &[[u64; Header::WORDS]], ranks: &[usize]) -> Result<()> {
    let unreadable =
        |rank: usize| Error::Protocol { what: format!("rank {rank} sent an unreadable header") };
    let mut reference = None;
    for (&words, &rank) in headers.iter().zip(ranks) {
        let other = Header::decode(words).ok_or_else(|| unreadable(rank))?;
        let &mut (first, first_rank) = reference.get_or_insert((other, rank));
        if !first.agrees(&other) {
            let (mut what, expected) = (other.to_string(), first.to_string());
            if what == expected {
                what.push_str(" with another label");
            }
            return Err(Error::Disagreement { rank, what, first: first_rank, expected });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(op: Collective, len: usize) -> Header {
        Header { sequence: 9, op, element: ElementType::Bf16, len, tag: 7 << 32 | 3 }
    }

    #[test]
    fn headers_survive_their_encoding() {
        let ops = [
            Collective::AllReduce(ReduceOp::Max),
            Collective::Broadcast { root: 3 },
            Collective::AllGather,
            Collective::ReduceScatter(ReduceOp::Mean),
            Collective::Gather { root: 1 },
            Collective::Scatter { root: 70_000 },
            Collective::Barrier,
            Collective::Send { to: 2 },
            Collective::Recv { from: 5 },
            Collective::Reduce { op: ReduceOp::Product, root: 2 },
            Collective::AllGatherV,
            Collective::AllToAll,
            Collective::AllToAllV,
            Collective::RecvAny,
        ];
        for op in ops {
            let header = header(op, usize::MAX >> 1);
            assert_eq!(Header::decode(header.encode()), Some(header));
        }
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
