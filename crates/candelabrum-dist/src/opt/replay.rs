//! A step whose passes are recorded, and the same step again.
//!
//! The exchange and the update are not recorded: a replay is followed by the same code as a backward
//! pass, for every strategy.

use candelabrum_memory::cuda;
use candelabrum_nn::{LossWeight, Observer, PassState};
use candle_core::{Storage, Tensor};

use super::DistOpt;
use super::bucket_sets::{BucketSet, BucketSets};
use super::recording::{ForwardRecorder, PassRecording, RecordingStage};
use super::step::MicroBatch;
use super::step_request::StepRequest;
use crate::{Error, Result};

/// The addresses of parameters and buckets on the GPU.
fn addresses(layout: &mut BucketSet) -> Result<Vec<u64>> {
    let mut all = Vec::new();
    for param in &**layout.gradients.params() {
        let (storage, layout) = param.var().storage_and_layout();
        if let Storage::Cuda(storage) = &*storage {
            all.push(cuda::numbers(storage, layout)?.address());
        }
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
        stage: RecordingStage,
        loss: &Tensor,
        request: &StepRequest,
    ) -> Result<()> {
        let mut recorder = match stage {
            RecordingStage::Forward(recorder) => recorder,
            whole => {
                self.stage = Some(whole);
                let what = "a recorded step that calls the optimizer twice".to_owned();
                return Err(Error::Unsupported { what });
            }
        };
        let weight = LossWeight::from_loss(loss);
        if let Err(error) = recorder.check(weight.as_ref()) {
            // The tensors of the capture go before it.
            self.stage = Some(RecordingStage::Forward(recorder));
            return Err(error);
        }
        // Without one the share of the loss is 1 in every step.
        let varies = weight.as_ref().is_some_and(LossWeight::varies) || self.config.uneven;
        let is_scaled = self.scaler.is_on() || varies && self.ranks.count > 1;
        match self.record_backward(&mut recorder, loss, is_scaled, request) {
            Ok((after, addresses)) => {
                let (pieces, noise) = (recorder.pieces, recorder.noise.end()?);
                let (loss, request, config) = (loss.detach(), request.clone(), self.config.clone());
                let scale = is_scaled.then_some(recorder.scale);
                let mut recording = PassRecording {
                    loss,
                    weight,
                    pieces,
                    noise,
                    scale,
                    after,
                    request,
                    config,
                    addresses,
                };
                let result = self.play(&mut recording);
                self.stage = Some(RecordingStage::Whole(Box::new(recording)));
                result
            }
            Err(error) => {
                self.stage = Some(RecordingStage::Forward(recorder));
                Err(error)
            }
        }
    }

    /// Records the backward pass. Returns the state of the gradients after it, and the addresses
    /// that the graphs use.
    fn record_backward(
        &mut self,
        recorder: &mut ForwardRecorder,
        loss: &Tensor,
        is_scaled: bool,
        request: &StepRequest,
    ) -> Result<(PassState, Vec<u64>)> {
        let is_ready = self.agreed.as_ref() == Some(request) && self.accumulated.is_none();
        let layout = self.layouts.as_mut().and_then(BucketSets::last_used);
        let layout = layout.filter(|layout| is_ready && layout.sizing == request.sizing);
        let Some(layout) = layout else {
            let what = "a recording with other settings than those of the step before".to_owned();
            return Err(Error::Unsupported { what });
        };
        let scaled = if is_scaled { recorder.scale.scaled(loss)? } else { loss.clone() };
        layout.gradients.clear();
        let mut complete = Vec::new();
        let mut cut = |index, bucket| {
            complete.push((index, bucket));
            recorder.cut_at(index).map_err(candle_core::Error::from)
        };
        let observer: Observer<'_> = &mut cut;
        let observer = self.config.overlap.then_some(observer);
        let passed = layout.gradients.observed_backward(&scaled, observer);
        // It belongs to the capture, so it goes before the capture ends.
        drop(scaled);
        for (index, bucket) in complete {
            layout.gradients.put(index, bucket);
        }
        passed?;
        layout.complete(loss, self.config.allow_unused)?;
        recorder.cut(None)?;
        Ok((layout.gradients.pass_state(), addresses(layout)?))
    }

    /// Whether a replay would use the memory of today's parameters and buckets, today's settings, and
    /// the request on which the ranks have agreed.
    pub(super) fn can_replay(&mut self, recording: &PassRecording) -> bool {
        let is_ready = self.agreed.as_ref() == Some(&recording.request)
            && recording.request.frozen == self.frozen()
            && self.config == recording.config
            && self.accumulated.is_none()
            && self.failure.is_none();
        let layout = self.layouts.as_mut().and_then(BucketSets::last_used);
        let Some(layout) = layout.filter(|_| is_ready) else { return false };
        addresses(layout).is_ok_and(|now| now == recording.addresses)
    }

    /// Takes the step of a recorded pass again, with new noise.
    pub(super) fn replay(&mut self, recording: &mut PassRecording) -> Result<()> {
        recording.noise.draw();
        self.play(recording)
    }

    fn play(&mut self, recording: &mut PassRecording) -> Result<()> {
        if let Err(error) = recording.noise.write() {
            let error = Error::from(error);
            self.failure.get_or_insert(error);
        }
        self.step(MicroBatch::Recorded(recording), &recording.request)
    }
}
