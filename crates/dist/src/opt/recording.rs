//! The forward and backward pass of a step as CUDA graphs.
//!
//! A recorded pass is divided where a bucket is complete, so that buckets leave in the middle of a
//! replay as they do in the middle of a backward pass. The exchange and the update are not recorded:
//! a replay is followed by the same code as a backward pass, for every strategy.

use candelabrum_memory::cuda::{Capture, Graph};
use candelabrum_nn::{Noise, NoiseRecorder, Params, PassState};
use candle_core::{Device, Tensor};

use super::layout::{Layout, Layouts};
use super::loss_scale::{LossScaler, RecordedScale};
use super::step::{self, Batch};
use super::{DistOpt, DistOptConfig, Request};
use crate::{Error, Result};

/// A capture of a forward pass, which a backward pass will continue.
#[derive(Debug)]
pub(super) struct Recorder {
    device: Device,
    noise: NoiseRecorder,
    scale: Option<RecordedScale>,
    capture: Option<Capture>,
    pieces: Vec<Piece>,
}

/// How far the recording of a step is.
#[derive(Debug)]
pub(super) enum Stage {
    Forward(Recorder),
    /// The passes are recorded, and the step has been taken.
    Whole(Box<Recording>),
}

/// A recorded forward and backward pass.
#[derive(Debug)]
pub(super) struct Recording {
    /// The loss, in the memory of the graphs, so it is dropped before them.
    pub(super) loss: Tensor,
    pub(super) pieces: Vec<Piece>,
    pub(super) noise: Noise,
    scale: Option<RecordedScale>,
    /// The state of the gradients after the pass.
    pub(super) after: PassState,
    pub(super) request: Request,
    config: DistOptConfig,
    /// The addresses of parameters and buckets, which the graphs use.
    addresses: Vec<u64>,
}

/// A part of a recorded pass.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) graph: Graph,
    /// The unit whose gradients are complete afterwards.
    pub(super) unit: Option<usize>,
}

impl Recorder {
    /// Begins to record this thread's work on the device of `params`.
    pub(super) fn begin(params: &Params, scaler: &LossScaler) -> Result<Self> {
        // Whatever allocates memory comes before the capture.
        let noise = NoiseRecorder::begin(params)?;
        let device = params.device().clone();
        let scale = scaler.recorded(&device)?;
        let capture = Some(Capture::begin(&device)?);
        Ok(Self { device, noise, scale, capture, pieces: Vec::new() })
    }

    /// Ends a piece, after which the gradients of `unit` are complete.
    fn cut(&mut self, unit: Option<usize>) -> Result<()> {
        let Some(capture) = self.capture.take() else { return Ok(()) };
        match capture.end() {
            Ok(graph) => self.pieces.push(Piece { graph, unit }),
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
    fn cut_at(&mut self, unit: usize) -> Result<()> {
        self.cut(Some(unit))?;
        self.capture = Some(Capture::begin(&self.device)?);
        Ok(())
    }
}

/// The addresses of parameters and buckets on the GPU.
fn addresses(layout: &mut Layout) -> Result<Vec<u64>> {
    let mut all = Vec::new();
    for param in &**layout.gradients.params() {
        param.with_values(|values| values.cuda().map(|values| all.push(values.address())))?;
    }
    for (_, bucket) in layout.gradients.buckets() {
        all.push(bucket.span()?.cuda()?.address());
    }
    Ok(all)
}

impl DistOpt {
    /// Continues the recording by the backward pass from `loss`, and takes the step. A pass that
    /// cannot be recorded is an error before anything is sent.
    pub(super) fn record(
        &mut self,
        recorder: Recorder,
        loss: &Tensor,
        request: &Request,
    ) -> Result<()> {
        let (recorder, result) = self.record_backward(recorder, loss, request);
        match result {
            Ok((after, addresses)) => {
                let (pieces, noise) = (recorder.pieces, recorder.noise.end()?);
                let (loss, request, config) = (loss.detach(), request.clone(), self.config.clone());
                let scale = recorder.scale;
                let mut recording =
                    Recording { pieces, noise, scale, loss, after, request, config, addresses };
                let result = self.play(&mut recording);
                self.stage = Some(Stage::Whole(Box::new(recording)));
                result
            }
            Err(error) => {
                self.stage = Some(Stage::Forward(recorder));
                Err(error)
            }
        }
    }

    /// Records the backward pass. Returns the state of the gradients after it, and the addresses
    /// that the graphs use.
    fn record_backward(
        &mut self,
        recorder: Recorder,
        loss: &Tensor,
        request: &Request,
    ) -> (Recorder, Result<(PassState, Vec<u64>)>) {
        let unready = || {
            let what = "a recording with other settings than those of the step before".to_owned();
            Error::Unsupported { what }
        };
        let is_ready = self.agreed.as_ref() == Some(request) && self.accumulated.is_none();
        let layout = self.layouts.as_mut().and_then(Layouts::last_used);
        let layout = layout.filter(|layout| is_ready && layout.sizing == request.sizing);
        let Some(layout) = layout else { return (recorder, Err(unready())) };
        let scaled = match &recorder.scale {
            Some(scale) => scale.scaled(loss),
            None => Ok(loss.clone()),
        };
        let scaled = match scaled {
            Ok(scaled) => scaled,
            Err(error) => return (recorder, Err(error)),
        };
        layout.gradients.clear();
        let (mut recorder, complete, result) = if self.config.overlap {
            let state = (recorder, Vec::new());
            let ((recorder, complete), result) =
                layout.observed_backward(&scaled, state, |(recorder, complete), unit, bucket| {
                    complete.push((unit, bucket));
                    recorder.cut_at(unit)
                });
            (recorder, complete, result)
        } else {
            (recorder, Vec::new(), layout.gradients.backward(&scaled).map_err(Error::from))
        };
        // It belongs to the capture, so it goes before the capture ends.
        drop(scaled);
        for (unit, bucket) in complete {
            layout.gradients.put(unit, bucket);
        }
        let result = result.and_then(|()| {
            step::complete(layout, self.config.allow_unused)?;
            recorder.cut(None)?;
            Ok((layout.gradients.pass_state(), addresses(layout)?))
        });
        (recorder, result)
    }

    /// Whether a replay would use the memory of today's parameters and buckets, today's settings, and
    /// the request on which the ranks have agreed.
    pub(super) fn can_replay(&mut self, recording: &Recording) -> bool {
        let is_ready = self.agreed.as_ref() == Some(&recording.request)
            && self.config == recording.config
            && self.accumulated.is_none()
            && self.fault.is_none();
        let layout = self.layouts.as_mut().and_then(Layouts::last_used);
        let Some(layout) = layout.filter(|_| is_ready) else { return false };
        addresses(layout).is_ok_and(|now| now == recording.addresses)
    }

    /// Takes the step of a recorded pass again, with new noise.
    pub(super) fn replay(&mut self, recording: &mut Recording) -> Result<()> {
        recording.noise.draw();
        self.play(recording)
    }

    fn play(&mut self, recording: &mut Recording) -> Result<()> {
        let noise = recording.noise.write().map_err(Error::from);
        let scale = recording.scale.as_mut().map_or(Ok(()), |scale| scale.write(&self.scaler));
        if let Err(error) = noise.and(scale) {
            self.fault.get_or_insert(error);
        }
        self.step_on(Batch::Recorded(recording), &recording.request)
    }
}
