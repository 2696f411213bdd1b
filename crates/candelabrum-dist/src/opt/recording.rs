//! A forward and backward pass as CUDA graphs.
//!
//! A recorded pass is divided where a bucket is complete, so that buckets leave in the middle of a
//! replay as they do in the middle of a backward pass.

use candelabrum_memory::cuda::{self, Capture, Graph};
use candelabrum_nn::{LossWeight, NoiseRecorder, Params, PassState, RecordedNoise};
use candle_core::{Device, Tensor};

use super::config::DistOptConfig;
use super::loss_scale::RecordedScale;
use super::step_request::StepRequest;
use crate::{Error, Result};

/// A capture of a forward pass, which a backward pass will continue.
#[derive(Debug)]
pub(super) struct ForwardRecorder {
    device: Device,
    pub(super) noise: NoiseRecorder,
    pub(super) scale: RecordedScale,
    capture: Option<Capture>,
    /// The memory from which the pass takes its inputs.
    inputs: Vec<Tensor>,
    pub(super) pieces: Vec<RecordedGraph>,
}

/// How far the recording of a step is.
#[derive(Debug)]
pub(super) enum RecordingStage {
    Forward(ForwardRecorder),
    /// The passes are recorded, and the step has been taken.
    Whole(Box<PassRecording>),
}

/// A recorded forward and backward pass.
#[derive(Debug)]
pub(super) struct PassRecording {
    /// The loss, in the memory of the graphs, so it is dropped before them.
    pub(super) loss: Tensor,
    /// What the loss counts. It may have labels in the same memory.
    pub(super) weight: Option<LossWeight>,
    pub(super) pieces: Vec<RecordedGraph>,
    pub(super) noise: RecordedNoise,
    /// The factor of the loss, if the passes multiply by one.
    pub(super) scale: Option<RecordedScale>,
    /// The state of the gradients after the pass.
    pub(super) after: PassState,
    pub(super) request: StepRequest,
    pub(super) config: DistOptConfig,
    /// The addresses of parameters and buckets, which the graphs use.
    pub(super) addresses: Vec<u64>,
}

/// A part of a recorded pass.
#[derive(Debug)]
pub(super) struct RecordedGraph {
    pub(super) graph: Graph,
    /// The bucket whose gradients are complete afterwards.
    pub(super) bucket: Option<usize>,
}

impl ForwardRecorder {
    /// Begins to record this thread's work on the device of `params`, which takes its inputs from this memory.
    pub(super) fn begin(params: &Params, inputs: &[Tensor]) -> Result<Self> {
        cuda::trim(params.device())?;
        // Whatever allocates memory comes before the capture.
        let noise = NoiseRecorder::begin(params)?;
        let device = params.device().clone();
        let scale = RecordedScale::new(&device)?;
        let capture = Some(Capture::begin(&device)?);
        let inputs = inputs.to_vec();
        Ok(Self { device, noise, scale, capture, inputs, pieces: Vec::new() })
    }

    /// Returns an error if what a loss counts can be counted only after a replay has begun. It is needed before.
    pub(super) fn check(&self, weight: Option<&LossWeight>) -> Result<()> {
        let Some(labels) = weight.and_then(LossWeight::labels) else { return Ok(()) };
        if self.inputs.iter().any(|input| shares_memory(input, labels)) {
            return Ok(());
        }
        let what =
            "a recording of labels that the step computes and of which the loss ignores some"
                .to_owned();
        Err(Error::Unsupported { what })
    }

    /// Ends a piece, after which the gradients of `bucket` are complete.
    pub(super) fn cut(&mut self, bucket: Option<usize>) -> Result<()> {
        let Some(capture) = self.capture.take() else { return Ok(()) };
        match capture.end() {
            Ok(graph) => self.pieces.push(RecordedGraph { graph, bucket }),
            Err(error) => {
                // Tensors of the recorded work are dropped later. Only a capture can free their
                // memory, since no graph will ever allocate it.
                self.capture = Capture::begin(&self.device).ok();
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// [`Self::cut`], and begins the next piece.
    pub(super) fn cut_at(&mut self, bucket: usize) -> Result<()> {
        self.cut(Some(bucket))?;
        self.capture = Some(Capture::begin(&self.device)?);
        Ok(())
    }
}

fn shares_memory(a: &Tensor, b: &Tensor) -> bool {
    let ((a, _), (b, _)) = (a.storage_and_layout(), b.storage_and_layout());
    std::ptr::eq(&*a, &*b)
}
