//! The plan of an operation over NCCL: the calls, their bytes, and the place of the result. This
//! file is plain arithmetic and touches no device.
//!
//! NCCL has all-reduce, reduce, broadcast, all-gather and reduce-scatter. Every other operation is
//! a group of sends and receives. All ranks take part in it, so none waits for a later call of
//! another rank.

use std::ops::Range;

use super::calls::{ByteRange, CallMemory, NcclCall};
use crate::comm::ReduceOp;
use crate::comm::collective::{Collective, CollectiveHeader};
use crate::{Error, Result};

/// The execution of one operation on this rank.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OperationPlan {
    pub(super) calls: Vec<NcclCall>,
    /// Whether the operation needs this rank's numbers on the device.
    pub(super) uploads: bool,
    /// The size of the output memory in bytes.
    pub(super) output: usize,
    pub(super) result: PlanResult,
}

/// The place of this rank's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanResult {
    /// The input memory.
    Input,
    /// The output memory.
    Output,
    /// These bytes of the reduction of all ranks' numbers. The numbers are in the output memory and
    /// are reduced on the host.
    Reduced { op: ReduceOp, start: usize, end: usize },
    /// This rank gets no result.
    Nothing,
}

/// A rank that takes part in an operation.
pub(super) struct Participant<'a> {
    pub(super) rank: usize,
    /// All ranks' headers.
    pub(super) headers: &'a [CollectiveHeader],
    /// All ranks' parts in bytes, by sender and receiver, if the lengths differ.
    pub(super) table: &'a [Vec<usize>],
    /// The bytes of the parts into which all ranks cut their payloads.
    pub(super) parts: &'a [Range<usize>],
}

impl Participant<'_> {
    /// The plan for the operation of this rank's header.
    pub(super) fn plan(&self) -> Result<OperationPlan> {
        let header = self.headers[self.rank];
        let (rank, n) = (self.rank, self.headers.len());
        let whole = header.len * header.element.size();
        let share = rank * whole / n..(rank + 1) * whole / n;
        match header.op {
            Collective::AllReduce(op) if loses_nan(op, header) => {
                Ok(gathered(whole, n, op, 0..whole))
            }
            Collective::AllReduce(op) => {
                Ok(in_place(NcclCall::AllReduce { values: input(0..whole), op }, PlanResult::Input))
            }
            Collective::Reduce { op, root } if loses_nan(op, header) => {
                let plan = gathered(whole, n, op, 0..whole);
                let result = if rank == root { plan.result } else { PlanResult::Nothing };
                Ok(OperationPlan { result, ..plan })
            }
            Collective::Reduce { op, root } => {
                let result = if rank == root { PlanResult::Input } else { PlanResult::Nothing };
                Ok(in_place(NcclCall::Reduce { values: input(0..whole), op, root }, result))
            }
            Collective::Broadcast { root } => {
                let call = NcclCall::Broadcast { values: input(0..whole), root };
                Ok(OperationPlan { uploads: rank == root, ..in_place(call, PlanResult::Input) })
            }
            Collective::AllGather => {
                let call = NcclCall::AllGather { from: input(0..whole), to: output(0..whole * n) };
                Ok(moved(vec![call], whole * n, PlanResult::Output))
            }
            Collective::ReduceScatter(op) if loses_nan(op, header) => {
                Ok(gathered(whole, n, op, share))
            }
            Collective::ReduceScatter(op) => {
                let to = output(0..share.len());
                let call = NcclCall::ReduceScatter { from: input(0..whole), to, op };
                Ok(moved(vec![call], share.len(), PlanResult::Output))
            }
            Collective::ReduceScatterV(op) if loses_nan(op, header) => {
                Ok(gathered(whole, n, op, 0..whole))
            }
            Collective::ReduceScatterV(op) => {
                let call = |(root, values)| NcclCall::Reduce { values, op, root };
                Ok(by_parts(self.parts, call))
            }
            Collective::AllGatherInPlace => {
                let call = |(root, values)| NcclCall::Broadcast { values, root };
                Ok(by_parts(self.parts, call))
            }
            Collective::Gather { root } => {
                let incoming = if rank == root { vec![whole; n] } else { vec![0; n] };
                let outgoing = |to: usize| if to == root { 0..whole } else { 0..0 };
                let plan = self.exchange(outgoing, &incoming);
                let result = if rank == root { PlanResult::Output } else { PlanResult::Nothing };
                Ok(OperationPlan { result, ..plan })
            }
            Collective::Scatter { root } => {
                let all = self.headers[root].len * header.element.size();
                let part = all / n;
                let outgoing =
                    |to: usize| if rank == root { to * part..(to + 1) * part } else { 0..0 };
                let incoming: Vec<usize> =
                    (0..n).map(|from| if from == root { part } else { 0 }).collect();
                Ok(OperationPlan { uploads: rank == root, ..self.exchange(outgoing, &incoming) })
            }
            Collective::AllToAll => {
                let part = whole / n;
                Ok(self.exchange(|to| to * part..(to + 1) * part, &vec![part; n]))
            }
            Collective::AllGatherV => {
                let incoming: Vec<usize> =
                    self.headers.iter().map(|header| header.len * header.element.size()).collect();
                Ok(self.exchange(|_| 0..whole, &incoming))
            }
            Collective::AllToAllV => {
                let own = &self.table[rank];
                let start = |to: usize| own[..to].iter().sum::<usize>();
                let incoming: Vec<usize> = self.table.iter().map(|parts| parts[rank]).collect();
                Ok(self.exchange(|to| start(to)..start(to) + own[to], &incoming))
            }
            Collective::Barrier => Ok(OperationPlan {
                calls: Vec::new(),
                uploads: false,
                output: 0,
                result: PlanResult::Nothing,
            }),
            Collective::Send { .. } | Collective::Recv { .. } | Collective::RecvAny => {
                Err(Error::Unsupported { what: format!("{} as a collective of NCCL", header.op) })
            }
        }
    }

    /// Sends bytes to every rank, and receives bytes from every rank into the output memory in rank
    /// order. Both ranks of a pair know the length of their message, so empty messages are left
    /// out.
    fn exchange(
        &self,
        outgoing: impl Fn(usize) -> Range<usize>,
        incoming: &[usize],
    ) -> OperationPlan {
        let mut calls = Vec::new();
        let mut at = 0;
        for (peer, &bytes) in incoming.iter().enumerate() {
            let from = outgoing(peer);
            if !from.is_empty() {
                calls.push(NcclCall::Send { from: input(from), peer });
            }
            if bytes > 0 {
                calls.push(NcclCall::Receive { to: output(at..at + bytes), peer });
            }
            at += bytes;
        }
        moved(calls, at, PlanResult::Output)
    }
}

/// NCCL's minimum and maximum ignore a NaN, ours keep it. Such reductions are therefore done on the
/// host.
fn loses_nan(op: ReduceOp, header: CollectiveHeader) -> bool {
    matches!(op, ReduceOp::Min | ReduceOp::Max) && header.element.is_float()
}

fn input(bytes: Range<usize>) -> ByteRange {
    ByteRange { side: CallMemory::Input, bytes }
}

fn output(bytes: Range<usize>) -> ByteRange {
    ByteRange { side: CallMemory::Output, bytes }
}

fn in_place(call: NcclCall, result: PlanResult) -> OperationPlan {
    OperationPlan { calls: vec![call], uploads: true, output: 0, result }
}

/// A call for each part that is not empty, in the input memory. NCCL has no operation with parts of different lengths.
fn by_parts(
    parts: &[Range<usize>],
    call: impl Fn((usize, ByteRange)) -> NcclCall,
) -> OperationPlan {
    let operands = parts.iter().cloned().map(input).enumerate();
    let calls = operands.filter(|(_, part)| !part.bytes.is_empty()).map(call).collect();
    OperationPlan { calls, uploads: true, output: 0, result: PlanResult::Input }
}

fn moved(calls: Vec<NcclCall>, output: usize, result: PlanResult) -> OperationPlan {
    OperationPlan { calls, uploads: true, output, result }
}

fn gathered(whole: usize, n: usize, op: ReduceOp, kept: Range<usize>) -> OperationPlan {
    let call = NcclCall::AllGather { from: input(0..whole), to: output(0..whole * n) };
    let result = PlanResult::Reduced { op, start: kept.start, end: kept.end };
    moved(vec![call], whole * n, result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::{ElementType, Payload};

    fn headers(op: Collective, element: ElementType, lens: &[usize]) -> Vec<CollectiveHeader> {
        lens.iter()
            .map(|&len| CollectiveHeader::new(1, op, &Payload::zeros(element, len)))
            .collect()
    }

    fn plans(headers: &[CollectiveHeader], table: &[Vec<usize>]) -> Vec<OperationPlan> {
        let plan = |rank| Participant { rank, headers, table, parts: &[] }.plan().expect("a plan");
        (0..headers.len()).map(plan).collect()
    }

    /// Every send has a receive of the same length, and vice versa.
    fn is_matched(plans: &[OperationPlan]) {
        for (from, sender) in plans.iter().enumerate() {
            for (to, receiver) in plans.iter().enumerate() {
                let sent: Vec<usize> = (sender.calls.iter())
                    .filter_map(|call| match call {
                        NcclCall::Send { from, peer } if *peer == to => Some(from.bytes.len()),
                        _ => None,
                    })
                    .collect();
                let received: Vec<usize> = (receiver.calls.iter())
                    .filter_map(|call| match call {
                        NcclCall::Receive { to, peer } if *peer == from => Some(to.bytes.len()),
                        _ => None,
                    })
                    .collect();
                assert_eq!(sent, received, "from {from} to {to}");
            }
        }
    }

    #[test]
    fn sends_and_receives_match() {
        let f32 = ElementType::F32;
        for op in [Collective::Gather { root: 1 }, Collective::AllToAll] {
            is_matched(&plans(&headers(op, f32, &[6, 6, 6]), &[]));
        }
        // Only the root's length is used.
        let scatter = plans(&headers(Collective::Scatter { root: 2 }, f32, &[0, 99, 6]), &[]);
        is_matched(&scatter);
        assert!(scatter.iter().all(|plan| plan.output == 8));
        assert!(scatter[2].uploads && !scatter[1].uploads);
        let different = plans(&headers(Collective::AllGatherV, f32, &[3, 0, 5]), &[]);
        is_matched(&different);
        assert!(different.iter().all(|plan| plan.output == 32));
        let table = [vec![4, 0, 8], vec![0, 0, 0], vec![12, 4, 4]];
        let v = plans(&headers(Collective::AllToAllV, f32, &[3, 0, 5]), &table);
        is_matched(&v);
        let outputs: Vec<usize> = v.iter().map(|plan| plan.output).collect();
        assert_eq!(outputs, [16, 4, 12]);
    }

    #[test]
    fn a_part_has_a_call_of_its_own_unless_it_is_empty() {
        let parts = [0..8, 8..8, 8..24];
        for op in [Collective::ReduceScatterV(ReduceOp::Mean), Collective::AllGatherInPlace] {
            let headers = headers(op, ElementType::F32, &[6, 6, 6]);
            let of = |rank| Participant { rank, headers: &headers, table: &[], parts: &parts };
            let plans: Vec<OperationPlan> =
                (0..3).map(|rank| of(rank).plan().expect("a plan")).collect();
            // All ranks make the same calls.
            assert!(plans.iter().all(|plan| *plan == plans[0] && plan.result == PlanResult::Input));
            let roots = plans[0].calls.iter().map(|call| match call {
                NcclCall::Reduce { values, root, .. } | NcclCall::Broadcast { values, root } => {
                    (*root, values.bytes.clone())
                }
                other => panic!("{other:?}"),
            });
            assert_eq!(roots.collect::<Vec<_>>(), [(0, 0..8), (2, 8..24)]);
        }
    }

    #[test]
    fn a_nan_is_not_left_to_nccl() {
        let max = Collective::ReduceScatter(ReduceOp::Max);
        let plan = &plans(&headers(max, ElementType::F16, &[6, 6]), &[])[1];
        assert_eq!(plan.result, PlanResult::Reduced { op: ReduceOp::Max, start: 6, end: 12 });
        assert_eq!(plan.output, 24);
        let whole = plans(&headers(max, ElementType::I64, &[6, 6]), &[]);
        assert!(matches!(whole[1].calls[..], [NcclCall::ReduceScatter { .. }]));
    }
}
