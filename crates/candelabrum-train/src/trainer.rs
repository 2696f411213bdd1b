//! A model and its distributed optimizer.

use std::fmt;

use candelabrum_datasets::{Collated, Dataset, LoaderOptions};
use candelabrum_dist::{DistOpt, Group, StepGraph, parameters_sha256};
use candelabrum_nn::{BackwardAndUpdate, DistOption, LossWeight, Model, Summary};
use candle_core::{DType, Shape, Tensor};

use crate::checkpoint::Position;
use crate::task::{Inputs, Supervised, Task};
use crate::{Accuracy, Metrics, Result, Score, evaluation, prediction};

/// Trains a model batch by batch. [`fit`](Self::fit) runs a whole training.
///
/// The optimizer exchanges gradients between the ranks, which update the parameters, or has servers that update them.
pub struct Trainer<M> {
    model: M,
    opt: DistOpt,
    score: Box<dyn Score>,
    loading: LoaderOptions,
    position: Position,
    /// The exchange of gradients in [`Task::train`], and its parameter.
    strategy: (DistOption, f32),
    /// The most samples of a micro-batch in [`Task::train`]. `None`: a step has one.
    micro_batch: Option<usize>,
    /// The recorded step, if steps are recorded.
    graph: Option<StepGraph<2, 2>>,
}

impl<M: Model> Trainer<M> {
    /// A trainer of `model`, whose parameters are those of `opt`. It measures the [`Accuracy`].
    pub fn new(model: M, opt: DistOpt) -> Self {
        Self {
            model,
            opt,
            score: Box::new(Accuracy),
            loading: LoaderOptions::default(),
            position: Position::default(),
            strategy: (DistOption::Fp32, 0.05),
            micro_batch: None,
            graph: None,
        }
        .with_loading(LoaderOptions::default())
    }

    /// Sets what is measured of batches beside the loss, instead of the accuracy.
    #[must_use]
    pub fn with_score(mut self, score: impl Score + 'static) -> Self {
        self.score = Box::new(score);
        self
    }

    /// Sets how [`fit`](Self::fit) and [`evaluate`](Self::evaluate) read batches: the number of threads, and of
    /// batches that are read ahead. Batches always have the device and the type of the parameters.
    #[must_use]
    pub fn with_loading(mut self, mut loading: LoaderOptions) -> Self {
        let params = self.opt.params();
        loading.device = params.device().clone();
        loading.dtype = params.dtype();
        self.loading = loading;
        self
    }

    /// Whether [`train_one_batch`](Self::train_one_batch) and [`fit`](Self::fit) record the step as
    /// CUDA graphs and replay them (SINGA's `use_graph`). See [`StepGraph`] for what a step must not
    /// do then. A step that cannot be recorded, for instance on the CPU, is computed as without this
    /// option, and a note says why.
    #[must_use]
    pub fn use_graph(mut self, use_graph: bool) -> Self {
        self.graph = use_graph.then(StepGraph::default);
        self
    }

    /// How batches are read.
    pub fn loading(&self) -> &LoaderOptions {
        &self.loading
    }

    /// The number of epochs that [`fit`](Self::fit) has trained, which is also the number of the
    /// next epoch.
    pub fn epochs(&self) -> usize {
        self.position.epoch
    }

    /// How far [`fit`](Self::fit) has trained.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Lets the next [`fit`](Self::fit) continue as after `epochs` epochs: the order of the samples,
    /// their augmentation and the printed numbers depend on this count. All ranks must set the same
    /// count.
    pub fn set_epochs(&mut self, epochs: usize) {
        self.position = Position { epoch: epochs, ..self.position };
    }

    /// The model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The optimizer.
    pub fn opt(&self) -> &DistOpt {
        &self.opt
    }

    /// The distributed optimizer, mutable.
    pub fn opt_mut(&mut self) -> &mut DistOpt {
        &mut self.opt
    }

    /// The ranks that train together.
    pub fn group(&self) -> &Group {
        self.opt.group()
    }

    /// Creates the parameters of every layer by a dry run on zeros of shape `input` (the batch
    /// first), makes them equal to rank 0's and returns the table of layers.
    ///
    /// # Errors
    /// Those of the forward pass, and ranks that differ.
    pub fn compile(&mut self, input: impl Into<Shape>) -> Result<Summary> {
        let params = self.opt.params();
        let input = Tensor::zeros(input, params.dtype(), params.device())?;
        self.compile_with(&input)
    }

    /// [`compile`](Self::compile) by a dry run on the tensor `input`, for models whose inputs are
    /// not floats but, for instance, token indices.
    ///
    /// # Errors
    /// Those of [`compile`](Self::compile).
    pub fn compile_with(&mut self, input: &Tensor) -> Result<Summary> {
        let summary = self.model.compile_with(self.opt.params(), input)?;
        self.opt.synchronize()?;
        Ok(summary)
    }

    /// Switches layers to training mode, the initial mode.
    pub fn train(&self) {
        self.opt.params().train();
    }

    /// Switches layers to evaluation mode.
    pub fn eval(&self) {
        self.opt.params().eval();
    }

    /// One step on this rank's batch. All ranks must take part. Returns the output and the loss.
    ///
    /// # Errors
    /// See [`candelabrum_dist::Error`]. The model is then unchanged, unless the error occurred after the update, in the
    /// average of parameters of partialUpdate, or servers that update at once have a part of the step.
    pub fn train_one_batch(
        &mut self,
        xs: &Tensor,
        ys: &Tensor,
        dist_option: DistOption,
        spars: f32,
    ) -> Result<(Tensor, Tensor)> {
        let _span = tracing::debug_span!(target: "candelabrum::step", "step").entered();
        let Self { model, opt, graph, .. } = self;
        if let Some(weight) = model.loss_weight(ys)? {
            opt.begin_step(weight);
        }
        let step = |opt: &mut DistOpt, [xs, ys]: [&Tensor; 2]| -> Result<[Tensor; 2]> {
            let (output, loss) = model.train_one_batch(opt, xs, ys, dist_option, spars)?;
            Ok([output, loss])
        };
        let [output, loss] = match graph {
            Some(graph) => {
                let step = |opt: &mut DistOpt, inputs: &[Tensor; 2]| step(opt, inputs.each_ref());
                graph.run(opt, [xs, ys], (dist_option, spars), step)?
            }
            None => step(opt, [xs, ys])?,
        };
        Ok((output, loss))
    }

    /// Loss and measures on all of `data`: one of the ranks evaluates each sample, once. Afterwards
    /// layers are in their previous mode again.
    ///
    /// If the strategy lets the ranks' parameters differ (partialUpdate), the parameters are
    /// averaged first, so that all ranks evaluate one model.
    ///
    /// # Errors
    /// A dataset that is a share of another number of ranks. Those of the data, the forward pass and the exchange
    /// of the counts.
    pub fn evaluate<D>(&mut self, data: &D, batch_size: usize) -> Result<Metrics>
    where
        D: Dataset<Batch: Supervised> + Clone,
    {
        let loading = self.loading.clone();
        let sets = std::slice::from_ref(data);
        let metrics =
            evaluation::run(self, sets, batch_size, &loading, |_| Ok(()), |failed| Ok(!failed))?;
        Ok(metrics.into_iter().flatten().next().unwrap_or_default())
    }

    /// The model's outputs for all of `data`, in the order of the data, on every rank: the first dimension counts the
    /// samples. One of the ranks computes each output, once, with layers in evaluation mode. Afterwards layers are in
    /// their previous mode again.
    ///
    /// `batch_size` is the batch of one rank. `N` ranks make the batches that one rank would make, so the outputs have
    /// the same bits on any number of ranks. Where each rank has a part of the data
    /// ([`Subset::new`](candelabrum_datasets::Subset::new)), the parts follow each other in the order of the ranks. If
    /// the strategy lets the ranks' parameters differ (partialUpdate), the parameters are averaged first.
    ///
    /// The result has the type of the model's outputs and is in the memory of the host, which needs twice its size for
    /// each rank. For outputs that do not fit, predict parts of the data one after another.
    ///
    /// ```
    /// # use candelabrum_datasets::TensorDataset;
    /// # use candelabrum_dist::{DistOpt, World};
    /// # use candelabrum_nn::{FromModule, Params, layers::Linear};
    /// # use candelabrum_optim::Sgd;
    /// # use candelabrum_train::Trainer;
    /// # use candle_core::{Device, Tensor};
    /// # let params = Params::new(0);
    /// # let model = FromModule(Linear::new(&params.root(), 2));
    /// # let opt = DistOpt::new(Sgd::new(0.1), &params, &World::single())?;
    /// # let mut trainer = Trainer::new(model, opt);
    /// # trainer.compile((1, 3))?;
    /// let xs = Tensor::arange(0_f32, 15.0, &Device::Cpu)?.reshape((5, 3))?;
    /// let outputs = trainer.predict(&TensorDataset::single(xs)?, 2)?;
    /// assert_eq!(outputs.dims(), [5, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Outputs`](crate::Error::Outputs) if the outputs of samples differ in shape or type. Ranks with another
    /// batch size or number of samples, a dataset that is a share of another number of ranks, and the errors of the data
    /// and the forward pass, on all ranks.
    pub fn predict<D>(&mut self, data: &D, batch_size: usize) -> Result<Tensor>
    where
        D: Dataset<Batch: Inputs> + Clone,
    {
        self.opt.average_parameters()?;
        let params = [self.opt.params().clone()];
        let forward = |batch: &D::Batch| Ok(self.model.forward(batch.inputs())?);
        evaluation::in_mode(&params, false, || {
            prediction::run(self.group(), data, batch_size, &self.loading, forward)
        })
    }

    /// The digest of each rank's parameters, in rank order.
    ///
    /// # Errors
    /// Those of an all-gather.
    pub fn parameters_sha256(&self) -> Result<Vec<String>> {
        let own = parameters_sha256(self.opt.params())?;
        Ok(self.group().all_gather_text(&own)?)
    }

    /// [`use_graph`](Self::use_graph), unless it is on already.
    pub(crate) fn record_steps(&mut self) {
        self.graph.get_or_insert_default();
    }

    /// Sets the strategy of the steps of [`Task::train`], and the most samples of a micro-batch. `None`: a step has
    /// one.
    pub(crate) fn set_steps(&mut self, strategy: (DistOption, f32), micro_batch: Option<usize>) {
        (self.strategy, self.micro_batch) = (strategy, micro_batch);
    }

    /// A step on a batch that is divided into micro-batches of these sizes, whose gradients are added. Returns the
    /// mean loss, and its weight.
    fn train_micro_batches(
        &mut self,
        (xs, ys): (&Tensor, &Tensor),
        sizes: &[usize],
        metrics: &mut Metrics,
    ) -> Result<(f32, f64)> {
        let _span = tracing::debug_span!(target: "candelabrum::step", "step").entered();
        let (option, spars) = self.strategy;
        let mut start = 0;
        let mut parts = Vec::new();
        for &size in sizes {
            parts.push((xs.narrow(0, start, size)?, ys.narrow(0, start, size)?));
            start += size;
        }
        let weights = parts.iter().map(|(_, ys)| self.model.loss_weight(ys));
        let weights: Option<Vec<f64>> = weights.collect::<candle_core::Result<_>>()?;
        if let Some(weights) = weights {
            self.opt.begin_step(weights.into_iter().sum());
        }
        let (mut sum, mut all) = (0.0, 0.0);
        for (number, (xs, ys)) in parts.iter().enumerate() {
            let (output, loss) = {
                let _span = tracing::debug_span!(target: "candelabrum::step", "forward").entered();
                self.model.output_and_weighted_loss(xs, ys)?
            };
            let weight = weight_of(&self.model, &loss, ys)?;
            let counted = weight.value()?;
            if counted != 0.0 {
                sum += f64::from(scalar(&loss)?) * counted;
                all += counted;
            }
            let share = (&loss / sizes.len() as f64)?;
            let ignored = weight.ignored();
            weight.give_to(&share);
            if number + 1 < sizes.len() {
                self.opt.accumulate(&share)?;
            } else {
                self.opt.backward_and_update_with(&share, option, spars)?;
            }
            self.score.add_counted(&output.detach(), ys, ignored, metrics)?;
        }
        Ok((if all == 0.0 { 0.0 } else { (sum / all) as f32 }, all))
    }
}

/// The sizes of the micro-batches of a batch of `samples`: as equal as possible, and none above `most`.
fn micro_batches(samples: usize, most: Option<usize>) -> Vec<usize> {
    let count = most.map_or(1, |most| samples.div_ceil(most.max(1))).max(1);
    (0..count).map(|number| samples / count + usize::from(number < samples % count)).collect()
}

/// What a loss of a batch with these targets counted. A model with a step of its own may return a loss that does
/// not carry it.
fn weight_of(model: &impl Model, loss: &Tensor, ys: &Tensor) -> Result<LossWeight> {
    if let Some(weight) = LossWeight::from_loss(loss) {
        return Ok(weight);
    }
    Ok(match model.loss_weight(ys)? {
        Some(weight) => LossWeight::new(weight)?,
        None => LossWeight::fixed(ys.dims().first().copied().unwrap_or(1)),
    })
}

/// The value of a loss.
fn scalar(loss: &Tensor) -> Result<f32> {
    Ok(loss.detach().to_dtype(DType::F32)?.to_scalar::<f32>()?)
}

impl<M: Model, B: Supervised + Collated> Task<B> for Trainer<M> {
    fn train(&mut self, batch: &B, metrics: &mut Metrics) -> Result<f32> {
        let (xs, ys) = (batch.xs(), batch.ys());
        let sizes = micro_batches(batch.len(), self.micro_batch);
        let (loss, weight) = if sizes.len() > 1 {
            self.train_micro_batches((xs, ys), &sizes, metrics)?
        } else {
            let (option, spars) = self.strategy;
            let (output, loss) = self.train_one_batch(xs, ys, option, spars)?;
            let weight = weight_of(&self.model, &loss, ys)?;
            self.score.add_counted(&output, ys, weight.ignored(), metrics)?;
            (scalar(&loss)?, weight.value()?)
        };
        metrics.add_weighted_batch(batch.len(), loss, weight);
        Ok(loss)
    }

    fn evaluate(&mut self, batch: &B, metrics: &mut Metrics) -> Result<()> {
        let (output, loss) = self.model.output_and_weighted_loss(batch.xs(), batch.ys())?;
        let weight = weight_of(&self.model, &loss, batch.ys())?;
        self.score.add_counted(&output.detach(), batch.ys(), weight.ignored(), metrics)?;
        metrics.add_weighted_batch(batch.len(), scalar(&loss)?, weight.value()?);
        Ok(())
    }

    fn join(&mut self) -> Result<()> {
        let (option, spars) = self.strategy;
        self.opt.join(option, spars)?;
        Ok(())
    }

    fn optimizer(&mut self) -> &mut DistOpt {
        &mut self.opt
    }

    fn position(&mut self) -> &mut Position {
        &mut self.position
    }

    fn strategy(&self) -> (DistOption, f32) {
        self.strategy
    }

    fn obeys_step_settings(&self) -> bool {
        true
    }
}

impl<M: fmt::Debug> fmt::Debug for Trainer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trainer")
            .field("model", &self.model)
            .field("opt", &self.opt)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::micro_batches;

    #[test]
    fn micro_batches_have_all_samples_and_are_as_equal_as_possible() {
        assert_eq!(micro_batches(8, Some(4)), [4, 4]);
        assert_eq!(micro_batches(7, Some(3)), [3, 2, 2]);
        assert_eq!(micro_batches(3, Some(8)), [3]);
        assert_eq!(micro_batches(16, None), [16]);
        for (samples, most) in (1..40).flat_map(|samples| (1..9).map(move |most| (samples, most))) {
            let sizes = micro_batches(samples, Some(most));
            assert_eq!(sizes.iter().sum::<usize>(), samples);
            assert!(sizes.iter().all(|size| (1..=most).contains(size)), "{sizes:?}");
            assert_eq!(sizes.len(), samples.div_ceil(most));
        }
    }
}
