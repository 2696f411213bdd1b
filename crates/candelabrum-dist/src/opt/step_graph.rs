//! Training steps that are recorded once and replayed as CUDA graphs: SINGA's `use_graph`.

use std::fmt::Display;

use candelabrum_nn::{DistOption, LossWeight};
use candle_core::{DType, Shape, Tensor};

use super::DistOpt;
use super::recording::{ForwardRecorder, PassRecording, RecordingStage};
use crate::{Error, Result};

/// Steps of a kind that are computed operation by operation before one is recorded. The first of them
/// compile kernels, choose convolutions and settle the buckets.
const WARM_UP: usize = 3;

/// The kinds of steps that are recorded. Steps of further kinds are computed operation by operation.
const MOST: usize = 8;

/// Replays the forward and backward pass of training steps as CUDA graphs, so that the host starts a
/// few graphs in a step instead of hundreds of kernels. The numbers are the same, bit for bit.
///
/// `I` is the number of the step's inputs, `O` that of its outputs. Steps differ in kind if they
/// differ in the shapes or types of the inputs, in the settings or in the mode of the layers. The
/// first three steps of a kind are computed as usual, the next one is recorded, and later ones replay
/// it. Buckets of gradients leave between the graphs, so the exchange overlaps with the rest of the
/// pass. The exchange and the update are as in every step.
///
/// A step that cannot be recorded is computed operation by operation from then on, and a
/// [note](DistOpt::take_notes) says why. Such steps have parameters on the CPU, operations that
/// ask for a number on the host, and candle's own reductions and operations on tensors that are not
/// contiguous, which copy shapes from the host.
///
/// A replay repeats the work of the GPU only, so the step must do nothing else that matters: it makes
/// the forward pass and calls the optimizer once. Numbers that it takes from the host, and candle's
/// own random numbers, are the same in each replay. [`Dropout`](candelabrum_nn::layers::Dropout)
/// draws new masks.
///
/// ```
/// use candelabrum_dist::{DistOpt, StepGraph, World};
/// use candelabrum_nn::{BackwardAndUpdate, DistOption, Init, Params};
/// use candle_core::{DType, Tensor};
///
/// let world = World::single();
/// let params = Params::on(0, DType::F32, world.device());
/// let weight = params.root().param("weight", 8, Init::Const(1.0))?;
/// let mut opt = DistOpt::new(candelabrum_optim::Sgd::new(0.1), &params, &world)?;
/// let mut graph = StepGraph::default();
/// let settings = (DistOption::Fp32, 0.0);
/// for batch in 0..10 {
///     let xs = (Tensor::ones(8, DType::F32, world.device())? * f64::from(batch))?;
///     let [loss] = graph.run(&mut opt, [&xs], settings, |opt, [xs]| {
///         let loss = (weight.tensor() * xs)?.sqr()?.sum_all()?;
///         opt.backward_and_update_with(&loss, settings.0, settings.1)?;
///         Ok::<_, candelabrum_dist::Error>([loss.detach()])
///     })?;
///     assert!(loss.to_scalar::<f32>()? >= 0.0);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct StepGraph<const I: usize, const O: usize> {
    kinds: Vec<(StepKind, KindState<I, O>)>,
    /// Whether the user knows that some steps are not recorded.
    said: bool,
}

/// What steps of one recording have in common.
#[derive(Clone, Debug, PartialEq)]
struct StepKind {
    inputs: Vec<(Shape, DType)>,
    option: DistOption,
    spars: f32,
    is_training: bool,
}

#[derive(Debug)]
enum KindState<const I: usize, const O: usize> {
    /// This many steps were computed.
    WarmUp(usize),
    Recorded(Box<StepRecording<I, O>>),
    /// It cannot be recorded.
    Refused,
}

/// A recorded step.
#[derive(Debug)]
struct StepRecording<const I: usize, const O: usize> {
    /// The results, in the memory of the graphs.
    outputs: [Tensor; O],
    /// The weights that they carry.
    weights: [Option<LossWeight>; O],
    /// The memory from which the graphs read the inputs.
    inputs: [Tensor; I],
    recording: PassRecording,
}

impl<const I: usize, const O: usize> StepGraph<I, O> {
    /// Takes one step of `opt` on these inputs, which are on the parameters' device. `step` computes
    /// the loss of its inputs, calls the optimizer once and returns the outputs, detached from the
    /// graph. `settings` are those that it gives to the optimizer. Ranks that train together may
    /// differ in what they record.
    ///
    /// # Errors
    /// Those of `step`.
    pub fn run<E: From<Error> + Display>(
        &mut self,
        opt: &mut DistOpt,
        inputs: [&Tensor; I],
        settings: (DistOption, f32),
        mut step: impl FnMut(&mut DistOpt, &[Tensor; I]) -> std::result::Result<[Tensor; O], E>,
    ) -> std::result::Result<[Tensor; O], E> {
        let own = inputs.map(Tensor::clone);
        let Some(index) = self.index_of(opt, &own, settings) else { return step(opt, &own) };
        match &mut self.kinds[index].1 {
            KindState::Refused => step(opt, &own),
            KindState::Recorded(recorded) if opt.can_replay(&recorded.recording) => {
                Ok(recorded.replay(opt, &own)?)
            }
            state @ KindState::Recorded(_) => {
                *state = KindState::WarmUp(1);
                step(opt, &own)
            }
            KindState::WarmUp(steps) if *steps < WARM_UP => {
                *steps += 1;
                step(opt, &own)
            }
            KindState::WarmUp(_) => self.record(index, opt, &own, step),
        }
    }

    /// The place of the step's kind. `None` if it is not recorded.
    fn index_of(
        &mut self,
        opt: &mut DistOpt,
        inputs: &[Tensor; I],
        (option, spars): (DistOption, f32),
    ) -> Option<usize> {
        let params = opt.params();
        let inputs = inputs.iter().map(|input| (input.shape().clone(), input.dtype())).collect();
        let (is_training, on_gpu) = (params.is_training(), params.device().is_cuda());
        let kind = StepKind { inputs, option, spars, is_training };
        if let Some(known) = self.kinds.iter().position(|(other, _)| *other == kind) {
            return Some(known);
        }
        let lends = opt.config.shard.lends() && opt.has_shards();
        if !on_gpu || lends || self.kinds.len() == MOST {
            let why = match (on_gpu, lends) {
                (false, _) => "there is no GPU",
                (true, true) => {
                    "its gradients are shared out, so buckets have no memory of their own"
                }
                (true, false) => "there are too many kinds of steps",
            };
            self.say(opt, why);
            return None;
        }
        self.kinds.push((kind, KindState::WarmUp(0)));
        Some(self.kinds.len() - 1)
    }

    /// Records a step and takes it. If it cannot be recorded, it is only taken.
    fn record<E: From<Error> + Display>(
        &mut self,
        index: usize,
        opt: &mut DistOpt,
        inputs: &[Tensor; I],
        mut step: impl FnMut(&mut DistOpt, &[Tensor; I]) -> std::result::Result<[Tensor; O], E>,
    ) -> std::result::Result<[Tensor; O], E> {
        let why = match begin(opt, inputs) {
            Ok(own) => {
                let result = step(opt, &own);
                match opt.stage.take() {
                    Some(RecordingStage::Whole(recording)) => {
                        let outputs = result?;
                        let weights = std::array::from_fn(|of| LossWeight::from_loss(&outputs[of]));
                        let recording = *recording;
                        let recorded = StepRecording { outputs, weights, inputs: own, recording };
                        let outputs = recorded.results()?;
                        self.kinds[index].1 = KindState::Recorded(Box::new(recorded));
                        return Ok(outputs);
                    }
                    // Nothing was sent and nothing has run, so the step can be taken again.
                    stage => {
                        // The tensors belong to the capture, so they go before it.
                        let error = result.map(drop).err();
                        drop(stage);
                        let unused = || "it does not call the optimizer".to_owned();
                        error.map_or_else(unused, |error| error.to_string())
                    }
                }
            }
            Err(error) => error.to_string(),
        };
        self.kinds[index].1 = KindState::Refused;
        self.say(opt, &why);
        step(opt, inputs)
    }

    /// Tells the user once why a step is not recorded.
    fn say(&mut self, opt: &mut DistOpt, why: &str) {
        if !std::mem::replace(&mut self.said, true) {
            // candle appends a backtrace.
            let why = why.lines().next().unwrap_or_default();
            opt.notes.push(format!("the step is not recorded as CUDA graphs: {why}"));
        }
    }
}

impl<const I: usize, const O: usize> StepRecording<I, O> {
    fn replay(&mut self, opt: &mut DistOpt, inputs: &[Tensor; I]) -> Result<[Tensor; O]> {
        for (to, from) in self.inputs.iter().zip(inputs) {
            fill(to, from)?;
        }
        opt.params().remember_buffers()?;
        opt.replay(&mut self.recording)?;
        self.results()
    }

    /// Copies of the outputs, which the next replay does not change. A loss carries what it has counted.
    fn results(&self) -> Result<[Tensor; O]> {
        let weights = &mut self.weights.iter();
        each(&self.outputs, |output| {
            let copy = output.detach().copy()?;
            if let Some(Some(weight)) = weights.next() {
                weight.counted()?.give_to(&copy);
            }
            Ok(copy)
        })
    }
}

/// Begins to record a step. Returns the memory from which the step takes its inputs.
fn begin<const I: usize>(opt: &mut DistOpt, inputs: &[Tensor; I]) -> Result<[Tensor; I]> {
    opt.params().remember_buffers()?;
    let own = copies_of(inputs)?;
    opt.stage = Some(RecordingStage::Forward(ForwardRecorder::begin(opt.params(), &own)?));
    Ok(own)
}

/// Copies in memory of their own.
fn copies_of<const I: usize>(inputs: &[Tensor; I]) -> Result<[Tensor; I]> {
    each(inputs, |input| {
        let copy = Tensor::zeros(input.shape(), input.dtype(), input.device())?;
        fill(&copy, input)?;
        Ok(copy)
    })
}

fn fill(to: &Tensor, from: &Tensor) -> Result<()> {
    Ok(to.slice_set(&from.detach().contiguous()?, 0, 0)?)
}

fn each<const N: usize>(
    tensors: &[Tensor; N],
    mut f: impl FnMut(&Tensor) -> Result<Tensor>,
) -> Result<[Tensor; N]> {
    let mut all = tensors.clone();
    for tensor in &mut all {
        *tensor = f(tensor)?;
    }
    Ok(all)
}
