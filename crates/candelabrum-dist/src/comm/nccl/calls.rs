//! The calls of NCCL that an operation consists of, and the check of their memory.

use std::ops::Range;

use crate::comm::{ElementType, ReduceOp};
use crate::{Error, Result};

/// A range of bytes of one of the two memories of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operand {
    pub(super) side: Side,
    pub(super) bytes: Range<usize>,
}

/// One of the two memories of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Input,
    Output,
}

/// One call. Several calls at a time form one NCCL group, in which none waits for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// In place.
    AllReduce {
        values: Operand,
        op: ReduceOp,
    },
    /// In place on the root. The other ranks' values are only read.
    Reduce {
        values: Operand,
        op: ReduceOp,
        root: usize,
    },
    /// In place.
    Broadcast {
        values: Operand,
        root: usize,
    },
    AllGather {
        from: Operand,
        to: Operand,
    },
    ReduceScatter {
        from: Operand,
        to: Operand,
        op: ReduceOp,
    },
    Send {
        from: Operand,
        peer: usize,
    },
    Receive {
        to: Operand,
        peer: usize,
    },
}

/// Refuses calls whose operands are not within memories of `input` and `output` bytes, or have not as
/// many whole elements as NCCL reads and writes for this call and `n` ranks.
pub(super) fn check(
    element: ElementType,
    calls: &[Call],
    n: usize,
    input: usize,
    output: usize,
) -> Result<()> {
    let fits = |operand: &Operand| {
        let room = match operand.side {
            Side::Input => input,
            Side::Output => output,
        };
        let Range { start, end } = operand.bytes;
        start <= end
            && end <= room
            && start.is_multiple_of(element.size())
            && end.is_multiple_of(element.size())
    };
    let times = |small: &Operand, large: &Operand| small.bytes.len() * n == large.bytes.len();
    let apart = |a: &Operand, b: &Operand| a.side != b.side;
    for call in calls {
        let right = match call {
            Call::AllReduce { values, .. } => fits(values),
            Call::Reduce { values, root, .. } | Call::Broadcast { values, root } => {
                fits(values) && *root < n
            }
            Call::AllGather { from, to } => {
                fits(from) && fits(to) && times(from, to) && apart(from, to)
            }
            Call::ReduceScatter { from, to, .. } => {
                fits(from) && fits(to) && times(to, from) && apart(from, to)
            }
            Call::Send { from, peer } => fits(from) && *peer < n,
            Call::Receive { to, peer } => fits(to) && *peer < n,
        };
        if !right {
            let what = format!("{call:?} in {input} and {output} bytes by {n} ranks");
            return Err(Error::Unsupported { what });
        }
    }
    Ok(())
}
