//! Where the memory of a training step is: the first steps of a run are measured, and rank 0 shows the last one of them.

use candelabrum_dist::OptimizerMemory;
use candelabrum_memory::usage;
use candelabrum_nn::saved::{self, SavedMemory};
use candelabrum_runlog::{Amount, Memory, SAVED};
use candle_core::Device;

use super::task_view::TaskView;
use crate::Result;

/// The steps that are measured. The first ones allocate what the later ones use again.
const STEPS: usize = 3;

/// The measurement of the first steps. What is between them, such as an evaluation, does not count.
#[derive(Debug)]
pub(super) struct MemoryProfile {
    left: usize,
    /// The last step that was measured.
    last: Option<Memory>,
}

impl MemoryProfile {
    /// Before the first step.
    pub(super) fn new() -> Self {
        Self { left: STEPS, last: None }
    }

    /// Before a step.
    pub(super) fn on_step_start(&self, task: &TaskView<'_>) {
        if self.left > 0 {
            saved::start();
            usage::forget_peak(device_of(task));
            forget_process_peak();
        }
    }

    /// After a step. Returns the memory of the last step that is measured, when that is over.
    pub(super) fn on_step_end(&mut self, task: &mut TaskView<'_>) -> Result<Option<Memory>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        if let Some(saved) = saved::stop() {
            self.last = Some(memory_of(task, &saved)?);
        }
        if self.left > 0 { Ok(None) } else { self.report(task) }
    }

    /// The memory of the last step, if the run ends before all steps were measured.
    pub(super) fn finish(&mut self, task: &mut TaskView<'_>) -> Result<Option<Memory>> {
        match std::mem::take(&mut self.left) {
            0 | STEPS => Ok(None),
            _ => self.report(task),
        }
    }

    /// What was measured, with the memory of all ranks. All ranks call it together, after as many steps, also a rank that
    /// has measured nothing because it had no samples in these steps.
    fn report(&mut self, task: &TaskView<'_>) -> Result<Option<Memory>> {
        let mut last = self.last.take();
        if let Some((_, optimizer)) = task.optimizers.first().filter(|(_, opt)| opt.is_in_step()) {
            let own = last.as_ref().and_then(|memory| memory.process).unwrap_or_default();
            let ranks = optimizer.group().all_gather_text(&own.to_string())?;
            if let Some(memory) = &mut last {
                memory.ranks =
                    ranks.iter().map(|bytes| bytes.parse().unwrap_or_default()).collect();
            }
        }
        Ok(last)
    }
}

impl Drop for MemoryProfile {
    /// After a step that has failed, later passes of this thread are not measured.
    fn drop(&mut self) {
        saved::stop();
    }
}

/// The device of the first model.
fn device_of<'t>(task: &'t TaskView<'_>) -> &'t Device {
    task.optimizers.first().map_or(&Device::Cpu, |(_, optimizer)| optimizer.params().device())
}

/// The memory of a step that is just over. Its forward pass kept `saved`.
fn memory_of(task: &mut TaskView<'_>, saved: &SavedMemory) -> Result<Memory> {
    let device = device_of(task).clone();
    let peak = usage::peak(&device);
    let process = Process::now();
    let mut model = OptimizerMemory::default();
    for (_, optimizer) in &mut task.optimizers {
        model += optimizer.memory()?;
    }
    let mut parts = vec![
        Amount::new("parameters", model.parameters),
        Amount::new("gradients", model.gradients),
        Amount::new("state of the optimizer", model.state),
        Amount::new("exchange between ranks", model.exchange),
        Amount::new(SAVED, saved.bytes()),
    ];
    if device.is_cpu() {
        parts.push(Amount::new("recycled, waiting for the backward pass", saved.idle));
    }
    let known = parts.iter().map(|part| part.bytes).sum::<u64>() as usize;
    // The buckets may be in memory that ranks share, which no allocator counts.
    let [peak, in_use] = [peak, saved.in_use].map(|bytes| bytes.map(|bytes| bytes + model.shared));
    if let Some(in_use) = in_use {
        let others = if device.is_cpu() { "data and all else" } else { "all else" };
        parts.push(Amount::new(others, in_use.saturating_sub(known)));
        let later = peak.map_or(0, |peak| peak.saturating_sub(in_use.max(known)));
        parts.push(Amount::new("temporary, after the forward pass", later));
    }
    parts.retain(|part| part.bytes > 0);
    let mut layers: Vec<Amount> =
        saved.layers.iter().map(|(path, bytes)| Amount::new(path.clone(), *bytes)).collect();
    if saved.by_candle > 0 {
        layers.push(Amount::new("operations of candle", saved.by_candle));
    }
    // The process has more than its heap. With a GPU the two have nothing to do with each other.
    let on_heap = process.filter(|_| device.is_cpu());
    Ok(Memory {
        step: task.position.step,
        place: if device.is_cpu() { "heap" } else { "GPU" }.to_owned(),
        parts,
        layers,
        peak: peak.map(|bytes| bytes as u64),
        process: process.map(|process| process.peak),
        program: on_heap.map(|process| process.program),
        shared: on_heap.map(|process| process.shared.saturating_sub(model.shared as u64)),
        ranks: Vec::new(),
    })
}

/// The memory of this process, as the system counts it, in bytes.
#[derive(Clone, Copy)]
struct Process {
    /// The most that was in use at one time.
    peak: u64,
    /// Of what is in use now, that of files: the program and its libraries.
    program: u64,
    /// Of what is in use now, that which processes share.
    shared: u64,
}

impl Process {
    /// `None` where the system does not tell.
    fn now() -> Option<Self> {
        let of = usage::of_process;
        Some(Self { peak: of("VmHWM")?, program: of("RssFile")?, shared: of("RssShmem")? })
    }
}

/// Lets the system's peak begin again with what is in use now. Where the system refuses, the peak is that since the
/// start of the process.
fn forget_process_peak() {
    const PEAK: &str = "5";
    let _ = std::fs::write("/proc/self/clear_refs", PEAK);
}
