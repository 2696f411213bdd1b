//! A model and its distributed optimizer.

use candelabrum_datasets::{
    BatchOptions, DistributedSampler, ImageDataset, Remainder, SamplerConfig,
};
use candelabrum_dist::{DistOpt, Group, StepGraph, parameters_sha256};
use candelabrum_nn::{DistOption, Model, Summary};
use candle_core::{DType, Shape, Tensor};

use crate::{Error, Metrics, Result, TrainerOpt};

/// Trains a model batch by batch. [`fit`](Self::fit) runs a whole training.
///
/// The optimizer `O` is a [`DistOpt`], which exchanges gradients between the ranks, a
/// [`StoreOpt`](candelabrum_kvstore::StoreOpt), which trains through the servers of a key-value store,
/// or [`AnyOpt`](crate::AnyOpt).
#[derive(Debug)]
pub struct Trainer<M, O = DistOpt> {
    model: M,
    opt: O,
    batches: BatchOptions,
    epochs: usize,
    /// The recorded step, if steps are recorded.
    graph: Option<StepGraph<2, 2>>,
}

impl<M: Model, O: TrainerOpt> Trainer<M, O> {
    /// A trainer of `model`, whose parameters are those of `opt`.
    pub fn new(model: M, opt: O) -> Self {
        Self { model, opt, batches: BatchOptions::default(), epochs: 0, graph: None }
            .with_batches(BatchOptions::default())
    }

    /// Sets the options of the batches of [`fit`](Self::fit) and [`evaluate`](Self::evaluate). Both
    /// scale images in the same way. Only training images are augmented. Batches always have the
    /// device and the type of the parameters.
    #[must_use]
    pub fn with_batches(mut self, batches: BatchOptions) -> Self {
        let params = self.opt.params();
        let (device, dtype) = (params.device().clone(), params.dtype());
        self.batches = BatchOptions { device, dtype, ..batches };
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

    /// The options of batches.
    pub fn batch_options(&self) -> &BatchOptions {
        &self.batches
    }

    /// The number of epochs that [`fit`](Self::fit) has trained, which is also the number of the
    /// next epoch.
    pub fn epochs(&self) -> usize {
        self.epochs
    }

    /// Lets the next [`fit`](Self::fit) continue as after `epochs` epochs: the order of the images,
    /// their augmentation and the printed numbers depend on this count. All ranks must set the same
    /// count.
    pub fn set_epochs(&mut self, epochs: usize) {
        self.epochs = epochs;
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
        let summary = self.model.compile(self.opt.params(), input)?;
        self.opt.synchronize()?;
        Ok(summary)
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

    /// Switches layers to training mode.
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

    /// Loss and accuracy on all of `data`: one of the ranks evaluates each sample, once. Afterwards
    /// layers are in their previous mode again.
    ///
    /// If the strategy lets the ranks' parameters differ (partialUpdate), the parameters are
    /// averaged first, so that all ranks evaluate one model.
    ///
    /// # Errors
    /// A dataset that is already partitioned. Those of the data, the forward pass and the exchange
    /// of the counts.
    pub fn evaluate(&mut self, data: &ImageDataset, batch_size: usize) -> Result<Metrics> {
        let _span = tracing::debug_span!(target: "candelabrum::run", "evaluate").entered();
        let sampler = self.divide(data, batch_size, 0, Remainder::Keep)?;
        self.opt.average_parameters()?;
        let metrics = self.opt.params().in_mode(false, || self.measure(data, &sampler))?;
        Ok(metrics.over_ranks(&**self.group())?)
    }

    fn measure(&self, data: &ImageDataset, sampler: &DistributedSampler) -> Result<Metrics> {
        let mut metrics = Metrics::default();
        let options = BatchOptions { augment: None, ..self.batches.clone() };
        for batch in data.epoch_batches(sampler, 0, &options)? {
            let batch = batch?;
            if batch.is_empty() {
                continue;
            }
            let output = self.model.forward(&batch.xs)?.detach();
            let loss = self.model.loss(&output, &batch.ys)?;
            let loss = loss.to_dtype(DType::F32)?.to_scalar::<f32>()?;
            metrics.add(&output, &batch.ys, loss)?;
        }
        Ok(metrics)
    }

    /// This rank's batches of the whole `data`: shuffled and without a remainder for training, in
    /// order and with the remainder for evaluation.
    pub(crate) fn divide(
        &self,
        data: &ImageDataset,
        batch_size: usize,
        seed: u64,
        remainder: Remainder,
    ) -> Result<DistributedSampler> {
        let shared_by = data.shared_by();
        if shared_by > 1 {
            return Err(Error::AlreadyPartitioned { shared_by });
        }
        Ok(DistributedSampler::new(SamplerConfig {
            len: data.len(),
            global_rank: self.group().rank(),
            world_size: self.group().world_size(),
            batch_size,
            seed,
            shuffle: remainder == Remainder::Drop,
            remainder,
        })?)
    }

    /// The digest of each rank's parameters, in rank order.
    ///
    /// # Errors
    /// Those of an all-gather.
    pub fn parameters_sha256(&self) -> Result<Vec<String>> {
        let own = parameters_sha256(self.opt.params())?;
        Ok(self.group().all_gather_text(&own)?)
    }
}
