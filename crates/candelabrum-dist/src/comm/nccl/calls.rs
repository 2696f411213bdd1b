//! The calls of NCCL that an operation consists of, and the check of their memory.

use std::ops::Range;

use crate::comm::{ElementType, ReduceOp};
use crate::{Error, Result};

/// A range of bytes of one of the two memories of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ByteRange {
    pub(super) side: CallMemory,
    pub(super) bytes: Range<usize>,
}

/// One of the two memories of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallMemory {
    Input,
    Output,
}

/// One call. Several calls at a time form one NCCL group, in which none waits for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NcclCall {
    /// In place.
    AllReduce {
        values: ByteRange,
        op: ReduceOp,
    },
    /// In place on the root. The other ranks' values are only read.
    Reduce {
        values: ByteRange,
        op: ReduceOp,
        root: usize,
    },
    /// In place.
    Broadcast {
        values: ByteRange,
        root: usize,
    },
    AllGather {
        from: ByteRange,
        to: ByteRange,
    },
    ReduceScatter {
        from: ByteRange,
        to: ByteRange,
        op: ReduceOp,
    },
    Send {
        from: ByteRange,
        peer: usize,
    },
    Receive {
        to: ByteRange,
        peer: usize,
    },
}

/// Refuses calls whose operands are not within memories of `input` and `output` bytes, or have not as
/// many whole elements as NCCL reads and writes for this call and `n` ranks.
pub(super) fn check(
    element: ElementType,
    calls: &[NcclCall],
    n: usize,
    input: usize,
    output: usize,
) -> Result<()> {
    let fits = |operand: &ByteRange| {
        let room = match operand.side {
            CallMemory::Input => input,
            CallMemory::Output => output,
        };
        let Range { start, end } = operand.bytes;
        start <= end
            && end <= room
            && start.is_multiple_of(element.size())
            && end.is_multiple_of(element.size())
    };
    let times = |small: &ByteRange, large: &ByteRange| small.bytes.len() * n == large.bytes.len();
    let apart = |a: &ByteRange, b: &ByteRange| a.side != b.side;
    for call in calls {
        let right = match call {
            NcclCall::AllReduce { values, .. } => fits(values),
            NcclCall::Reduce { values, root, .. } | NcclCall::Broadcast { values, root } => {
                fits(values) && *root < n
            }
            NcclCall::AllGather { from, to } => {
                fits(from) && fits(to) && times(from, to) && apart(from, to)
            }
            NcclCall::ReduceScatter { from, to, .. } => {
                fits(from) && fits(to) && times(to, from) && apart(from, to)
            }
            NcclCall::Send { from, peer } => fits(from) && *peer < n,
            NcclCall::Receive { to, peer } => fits(to) && *peer < n,
        };
        if !right {
            let what = format!("{call:?} in {input} and {output} bytes by {n} ranks");
            return Err(Error::Unsupported { what });
        }
    }
    Ok(())
}
