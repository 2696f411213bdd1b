//! A model and its distributed optimizer.

use std::fmt;

use candelabrum_datasets::{Collated, Dataset, LoaderOptions};
use candelabrum_dist::{DistOpt, Group, StepGraph, parameters_sha256};
use candelabrum_nn::{DistOption, Model, Summary};
use candle_core::{DType, Shape, Tensor};

use crate::checkpoint::Position;
use crate::task::{Supervised, Task};
use crate::{Accuracy, Metrics, RanksOpt, Result, Score, TrainerOpt, evaluation};

/// Trains a model batch by batch. [`fit`](Self::fit) runs a whole training.
///
/// The optimizer `O` is a [`DistOpt`], which exchanges gradients between the ranks, a
/// [`StoreOpt`](candelabrum_kvstore::StoreOpt), which trains through the servers of a key-value store,
/// or [`AnyOpt`](crate::AnyOpt).
pub struct Trainer<M, O = DistOpt> {
    model: M,
    opt: O,
    score: Box<dyn Score>,
    loading: LoaderOptions,
    position: Position,
    /// The exchange of gradients in [`Task::train`], and its parameter.
    strategy: (DistOption, f32),
    /// The micro-batches of a step in [`Task::train`].
    accumulate: usize,
    /// The recorded step, if steps are recorded.
    graph: Option<StepGraph<2, 2>>,
}

impl<M: Model, O: TrainerOpt> Trainer<M, O> {
    /// A trainer of `model`, whose parameters are those of `opt`. It measures the [`Accuracy`].
    pub fn new(model: M, opt: O) -> Self {
        Self {
            model,
            opt,
            score: Box::new(Accuracy),
            loading: LoaderOptions::default(),
            position: Position::default(),
            strategy: (DistOption::Fp32, 0.05),
            accumulate: 1,
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
    /// option, and a notice says why. Steps through a key-value store are never recorded.
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
    pub fn opt(&self) -> &O {
        &self.opt
    }

    /// The distributed optimizer, mutable.
    pub fn opt_mut(&mut self) -> &mut O {
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
    /// See [`candelabrum_dist::Error`]. With [`DistOpt`] the model is then unchanged, unless the error
    /// occurred after the update, in the average of parameters of partialUpdate. With
    /// [`StoreOpt`](candelabrum_kvstore::StoreOpt) servers may have a part of the step.
    pub fn train_one_batch(
        &mut self,
        xs: &Tensor,
        ys: &Tensor,
        dist_option: DistOption,
        spars: f32,
    ) -> Result<(Tensor, Tensor)> {
        let _span = tracing::debug_span!(target: "candelabrum::step", "step").entered();
        let Self { model, opt, graph, .. } = self;
        let (Some(graph), Some(recorded)) = (graph, opt.as_dist_opt()) else {
            return model.train_one_batch(opt, xs, ys, dist_option, spars).map_err(Into::into);
        };
        let settings = (dist_option, spars);
        let [output, loss] = graph.run(recorded, [xs, ys], settings, |opt, [xs, ys]| {
            model
                .train_one_batch(opt, xs, ys, dist_option, spars)
                .map(|(output, loss)| [output, loss])
        })?;
        Ok((output, loss))
    }

    /// Loss and measures on all of `data`: one of the ranks evaluates each sample, once. Afterwards
    /// layers are in their previous mode again.
    ///
    /// If the strategy lets the ranks' parameters differ (partialUpdate), the parameters are
    /// averaged first, so that all ranks evaluate one model.
    ///
    /// # Errors
    /// A dataset that is already partitioned. Those of the data, the forward pass and the exchange
    /// of the counts.
    pub fn evaluate<D>(&mut self, data: &D, batch_size: usize) -> Result<Metrics>
    where
        D: Dataset<Batch: Supervised> + Clone,
    {
        let loading = self.loading.clone();
        let metrics = evaluation::run(self, data, batch_size, &loading, || Ok(true))?;
        Ok(metrics.unwrap_or_default())
    }

    /// The digest of each rank's parameters, in rank order.
    ///
    /// # Errors
    /// Those of an all-gather.
    pub fn parameters_sha256(&self) -> Result<Vec<String>> {
        let own = parameters_sha256(self.opt.params())?;
        Ok(self.group().all_gather_text(&own)?)
    }

    /// Sets the strategy and the micro-batches of the steps of [`Task::train`].
    pub(crate) fn set_steps(&mut self, strategy: (DistOption, f32), accumulate: usize) {
        (self.strategy, self.accumulate) = (strategy, accumulate);
    }

    /// A step on a batch that is divided into micro-batches, whose gradients are added. Returns the mean loss.
    fn train_micro_batches(
        &mut self,
        xs: &Tensor,
        ys: &Tensor,
        metrics: &mut Metrics,
    ) -> Result<f32> {
        let _span = tracing::debug_span!(target: "candelabrum::step", "step").entered();
        let (count, (option, spars)) = (self.accumulate, self.strategy);
        let size = xs.dim(0)? / count;
        let mut sum = 0.0;
        for number in 0..count {
            let part = |tensor: &Tensor| tensor.narrow(0, number * size, size);
            let (xs, ys) = (part(xs)?, part(ys)?);
            let (output, loss) = {
                let _span = tracing::debug_span!(target: "candelabrum::step", "forward").entered();
                self.model.output_and_loss(&xs, &ys)?
            };
            sum += scalar(&loss)?;
            let share = (loss / count as f64)?;
            if number + 1 < count {
                self.opt.accumulate(&share)?;
            } else {
                self.opt.backward_and_update_with(&share, option, spars).map_err(Into::into)?;
            }
            self.score.add(&output.detach(), &ys, metrics)?;
        }
        Ok(sum / count as f32)
    }
}

/// The value of a loss.
fn scalar(loss: &Tensor) -> Result<f32> {
    Ok(loss.detach().to_dtype(DType::F32)?.to_scalar::<f32>()?)
}

impl<M: Model, O: TrainerOpt, B: Supervised + Collated> Task<B> for Trainer<M, O> {
    fn train(&mut self, batch: &B, metrics: &mut Metrics) -> Result<f32> {
        let (xs, ys) = (batch.xs(), batch.ys());
        let (option, spars) = self.strategy;
        let loss = if self.accumulate > 1 {
            self.train_micro_batches(xs, ys, metrics)?
        } else {
            let (output, loss) = self.train_one_batch(xs, ys, option, spars)?;
            self.score.add(&output, ys, metrics)?;
            scalar(&loss)?
        };
        metrics.add_batch(batch.len(), loss);
        Ok(loss)
    }

    fn evaluate(&mut self, batch: &B, metrics: &mut Metrics) -> Result<()> {
        let (output, loss) = self.model.output_and_loss(batch.xs(), batch.ys())?;
        self.score.add(&output.detach(), batch.ys(), metrics)?;
        metrics.add_batch(batch.len(), scalar(&loss)?);
        Ok(())
    }

    fn join(&mut self) -> Result<()> {
        let (option, spars) = self.strategy;
        self.opt.join(option, spars)
    }

    fn parts(&mut self) -> Vec<(&str, &mut dyn RanksOpt)> {
        vec![("", &mut self.opt)]
    }

    fn position(&mut self) -> &mut Position {
        &mut self.position
    }

    fn group(&self) -> &Group {
        self.opt.group()
    }

    fn strategy(&self) -> (DistOption, f32) {
        self.strategy
    }
}

impl<M: fmt::Debug, O: fmt::Debug> fmt::Debug for Trainer<M, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trainer")
            .field("model", &self.model)
            .field("opt", &self.opt)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}
