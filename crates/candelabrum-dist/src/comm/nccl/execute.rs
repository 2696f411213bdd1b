//! The execution of one operation: the ranks agree on it, plan its calls and give them to the
//! device.

use std::sync::Arc;

use candelabrum_memory::reduce;
use candle_core::Device;
use cudarc::driver::CudaSlice;

use super::NcclTransport;
use super::control::in_operation;
use super::flight::{Flight, NcclWork, OperationMemory, ResultMemory, lost};
use super::memory::{allocate, download, take, to_device, upload};
use super::plan::{OperationPlan, Participant, PlanResult};
use crate::Result;
use crate::comm::collective::CollectiveHeader;
use crate::comm::group_info::OpContext;
use crate::comm::ready::StreamPoint;
use crate::comm::work::BackendWork;
use crate::comm::{Collective, Payload, ReduceOp};

/// Operations on fewer bytes of the host use the control.
const SHORT: usize = 64 * 1024;

impl NcclTransport {
    /// Begins the operation. `context` is for a failure after this function has returned; without it
    /// the caller waits.
    pub(super) fn collective(
        &mut self,
        header: CollectiveHeader,
        payload: Payload,
        context: Option<&Arc<OpContext>>,
    ) -> Result<Box<dyn BackendWork>> {
        self.job.failures.check_device()?;
        let (headers, all_on_host) = self.agree(header, payload.is_on_device())?;
        let longest = headers.iter().map(|header| header.len * header.element.size()).max();
        if header.op != Collective::Barrier && all_on_host && longest < Some(SHORT) {
            let result = self.control.run(&header, |group| group.run(header.op, payload));
            return result.map(complete);
        }
        let size = header.element.size();
        let mut table = Vec::new();
        let mut parts = None;
        match header.op {
            Collective::Barrier => return Ok(complete(payload)),
            Collective::AllGatherV => {
                parts = Some(headers.iter().map(|header| header.len).collect::<Vec<usize>>());
            }
            Collective::AllToAllV => {
                table = self.exchange_parts(header, &payload)?;
                parts = Some(table.iter().map(|row| row[self.rank] / size).collect());
            }
            _ => {}
        }
        let ranges = if header.op.has_common_parts() { payload.part_ranges() } else { Vec::new() };
        let (rank, headers) = (self.rank, &headers[..]);
        let plan = Participant { rank, headers, table: &table, parts: &ranges }.plan()?;
        if payload.is_on_device() {
            self.on_device(header, &plan, payload, parts, context)
        } else {
            self.on_host(header, &plan, payload, parts).map(complete)
        }
    }

    /// The number of bytes that each rank sends to each rank.
    fn exchange_parts(
        &self,
        header: CollectiveHeader,
        payload: &Payload,
    ) -> Result<Vec<Vec<usize>>> {
        let size = header.element.size();
        let own = payload.parts().unwrap_or_default();
        let own: Vec<i64> = own.iter().map(|&len| (len * size) as i64).collect();
        let all = self.control.run(&header, |group| group.all_gather(&own))?;
        let row = |row: &[i64]| row.iter().map(|&bytes| bytes as usize).collect();
        Ok(all.chunks(self.ranks.len()).map(row).collect())
    }

    /// Numbers in the device's memory.
    fn on_device(
        &self,
        header: CollectiveHeader,
        plan: &OperationPlan,
        mut payload: Payload,
        parts: Option<Vec<usize>>,
        context: Option<&Arc<OpContext>>,
    ) -> Result<Box<dyn BackendWork>> {
        let CollectiveHeader { element, .. } = header;
        let ready = payload.ready.take();
        let output = match plan.output {
            0 if matches!(plan.result, PlanResult::Input | PlanResult::Nothing) => None,
            // In the stream of the numbers, where the program uses the result.
            bytes => Some(allocate(&self.job.device.cuda_stream(), bytes)?),
        };
        let gives = match plan.result {
            PlanResult::Nothing => ResultMemory::Nothing,
            PlanResult::Input => ResultMemory::Input,
            PlanResult::Output | PlanResult::Reduced { .. } => {
                ResultMemory::Output { len: plan.output / element.size(), parts }
            }
        };
        let mut held = OperationMemory { payload: Some(payload), input: None, output };
        if moves_nothing(header, plan) {
            return gives.take(&mut held, element).map(complete);
        }
        let flight = self.launch(header, plan, held, ready.as_ref(), context)?;
        if let PlanResult::Reduced { op, start, end } = plan.result {
            flight.wait().map_err(|error| in_operation(error, &header))?;
            let all = flight.output()?;
            let result = self.reduced(header, &all, op, start..end)?;
            let device = Device::Cuda(self.job.device.clone());
            return to_device(&device, &result).map(complete);
        }
        Ok(Box::new(NcclWork { flight, gives }))
    }

    /// Numbers of the host, which are copied through memory on the device.
    fn on_host(
        &mut self,
        header: CollectiveHeader,
        plan: &OperationPlan,
        mut payload: Payload,
        parts: Option<Vec<usize>>,
    ) -> Result<Payload> {
        let CollectiveHeader { element, len, .. } = header;
        let stream = Arc::clone(&self.job.stream);
        let mut input = take(&stream, &mut self.input, len * element.size())?;
        let mut output = take(&stream, &mut self.output, plan.output)?;
        if !moves_nothing(header, plan) {
            if plan.uploads {
                upload(&stream, payload.bytes(), &mut input)?;
            }
            let held = OperationMemory { payload: None, input: Some(input), output: Some(output) };
            let flight = self.launch(header, plan, held, None, None)?;
            flight.wait().map_err(|error| in_operation(error, &header))?;
            (input, output) = flight.staging()?;
        }
        let result = match plan.result {
            PlanResult::Nothing => Payload::zeros(element, 0),
            PlanResult::Input => {
                download(&stream, &input, payload.bytes_mut())?;
                payload
            }
            PlanResult::Output => {
                let mut result = Payload::zeros(element, plan.output / element.size());
                download(&stream, &output, result.bytes_mut())?;
                result
            }
            PlanResult::Reduced { op, start, end } => {
                self.reduced(header, &output, op, start..end)?
            }
        };
        (self.input, self.output) = (Some(input), Some(output));
        match parts {
            Some(parts) => result.with_parts(parts),
            None => Ok(result),
        }
    }

    /// Gives the calls to the device. After an error NCCL is aborted and the device has stopped.
    fn launch(
        &self,
        header: CollectiveHeader,
        plan: &OperationPlan,
        mut held: OperationMemory,
        ready: Option<&StreamPoint>,
        context: Option<&Arc<OpContext>>,
    ) -> Result<Arc<Flight>> {
        let comm = Arc::clone(self.comm()?);
        let failures = self.job.failures.clone();
        let guard = || failures.check();
        let (input, output) = held.operands().ok_or_else(lost)?;
        let input = (input, ready.map(|StreamPoint(event)| event));
        let launched = comm.launch(header.element, &plan.calls, input, output, &guard);
        let points = match launched {
            Ok(points) => points,
            Err(error) => {
                let error = in_operation(error, &header);
                self.job.watch.abort(&error);
                comm.abort();
                comm.rest(ready.map(|StreamPoint(event)| event));
                return Err(error);
            }
        };
        let (context, held) = (context.map(Arc::clone), held.into());
        let flight = Arc::new(Flight { comm, failures, header, context, points, held });
        self.job.watch.add(Arc::clone(&flight));
        Ok(flight)
    }

    /// Some bytes of the reduction of all ranks' numbers, which are in `all`.
    fn reduced(
        &self,
        header: CollectiveHeader,
        all: &CudaSlice<u8>,
        op: ReduceOp,
        bytes: std::ops::Range<usize>,
    ) -> Result<Payload> {
        let CollectiveHeader { element, len, .. } = header;
        let whole = len * element.size();
        let mut numbers = Payload::zeros(element, len * self.ranks.len());
        download(all.stream(), all, numbers.bytes_mut())?;
        let mut result = Payload::zeros(element, bytes.len() / element.size());
        if whole > 0 {
            let mut parts: Vec<&mut [u8]> = numbers.bytes_mut().chunks_mut(whole).collect();
            reduce::reduce_into_all(element, op, &mut parts);
            result.bytes_mut().copy_from_slice(&parts[0][bytes]);
        }
        Ok(result)
    }
}

fn complete(result: Payload) -> Box<dyn BackendWork> {
    Box::new(Ok(result))
}

/// Whether no number moves. If this is true, it is true on all ranks, because they agree on the
/// lengths that it depends on.
fn moves_nothing(header: CollectiveHeader, plan: &OperationPlan) -> bool {
    plan.calls.is_empty() || (header.len == 0 && plan.output == 0)
}
