//! A whole run: epochs of training and evaluation, printed as SINGA prints them.

use std::io::Write;
use std::time::Instant;

use candelabrum_datasets::{
    Augmentation, BatchOptions, DistributedSampler, ImageDataset, Remainder,
};
use candelabrum_dist::{Result as DistResult, check_consistency, check_dist_option};
use candelabrum_nn::{DistOption, Model};

use crate::progress::Progress;
use crate::{EpochReport, Metrics, Result, Trainer};

/// What [`Trainer::fit`] does; the same on every rank.
#[derive(Clone, Debug)]
pub struct FitConfig {
    /// Passes over the training data.
    pub epochs: usize,
    /// Samples per step and rank.
    pub batch_size: usize,
    /// The exchange of gradients.
    pub dist_option: DistOption,
    /// The parameter of a sparse exchange.
    pub spars: f32,
    /// The seed of shuffling and augmentation.
    pub seed: u64,
    /// Random crops and flips of the training images.
    pub augment: Option<Augmentation>,
}

impl Default for FitConfig {
    /// Ten epochs of batch 64 in fp32, seed 0, nothing augmented.
    fn default() -> Self {
        Self {
            epochs: 10,
            batch_size: 64,
            dist_option: DistOption::Fp32,
            spars: 0.05,
            seed: 0,
            augment: None,
        }
    }
}

impl<M: Model> Trainer<M> {
    /// Trains on `train` and evaluates on `test`, both whole, after every epoch.
    ///
    /// Every rank gets its share of them here; all data is reshuffled every epoch such that `N` ranks with batch `B` see the same global
    /// batches as one rank with batch `N·B`. Rank 0 writes SINGA's lines to `out` and shows
    /// progress on standard error.
    ///
    /// # Errors
    /// Ranks with different settings, a strategy that is not there, a dataset that was partitioned
    /// already, a batch larger than a rank's share, and whatever ends a step.
    pub fn fit(
        &mut self,
        train: &ImageDataset,
        test: &ImageDataset,
        config: &FitConfig,
        out: &mut dyn Write,
    ) -> Result<Vec<EpochReport>> {
        check_dist_option(config.dist_option)?;
        let sampler = self.sampler(train, config)?;
        self.check_same(train, test, config)?;
        let mut reports = Vec::with_capacity(config.epochs);
        for epoch in 0..config.epochs {
            self.say(out, format_args!("Starting Epoch {epoch}:"));
            let start = Instant::now();
            let before = self.world().comm().stats();
            let trained = self.train_one_epoch(train, &sampler, epoch, config)?;
            let traffic = self.world().comm().stats() - before;
            let train_seconds = start.elapsed().as_secs_f64();
            self.say(
                out,
                format_args!(
                    "Training loss = {:.6}, training accuracy = {:.6}",
                    trained.loss,
                    trained.accuracy()
                ),
            );
            let evaluated = self.evaluate(test, config.batch_size)?;
            let seconds = start.elapsed().as_secs_f64();
            self.say(
                out,
                format_args!(
                    "Evaluation accuracy = {:.6}, Elapsed Time = {seconds:.6}s",
                    evaluated.accuracy()
                ),
            );
            reports.push(EpochReport {
                train_loss: trained.loss,
                train_accuracy: trained.accuracy(),
                eval_accuracy: evaluated.accuracy(),
                seconds,
                train_seconds,
                images_per_second: trained.samples / train_seconds,
                bytes_sent: traffic.bytes_sent,
                bytes_received: traffic.bytes_received,
                comm_seconds: traffic.busy.as_secs_f64(),
                exposed_comm_seconds: traffic.exposed.as_secs_f64(),
                parameters_sha256: self.parameters_sha256()?,
            });
        }
        Ok(reports)
    }

    /// The sampler of this rank's training batches.
    ///
    /// # Errors
    /// A batch size of 0 or larger than a rank's share.
    pub fn sampler(&self, train: &ImageDataset, config: &FitConfig) -> Result<DistributedSampler> {
        self.divide(train, config.batch_size, config.seed, Remainder::Drop)
    }

    fn train_one_epoch(
        &mut self,
        train: &ImageDataset,
        sampler: &DistributedSampler,
        epoch: usize,
        config: &FitConfig,
    ) -> Result<Metrics> {
        let options =
            BatchOptions { augment: config.augment, seed: config.seed, ..BatchOptions::default() };
        let mut progress = Progress::new(epoch, sampler.steps(), self.world().is_root());
        let mut metrics = Metrics::default();
        self.train();
        for batch in train.epoch_batches(sampler, epoch, &options)? {
            let batch = batch?;
            let (output, loss) =
                self.train_one_batch(&batch.xs, &batch.ys, config.dist_option, config.spars)?;
            let loss = loss.to_scalar::<f32>()?;
            metrics.add(&output, &batch.ys, loss)?;
            progress.step(sampler.global_batch_size(), loss);
        }
        progress.finish();
        Ok(metrics.over_ranks(self.world().comm())?)
    }

    /// Refuses ranks that would not train the same run.
    fn check_same(
        &self,
        train: &ImageDataset,
        test: &ImageDataset,
        config: &FitConfig,
    ) -> DistResult<()> {
        let FitConfig { epochs, batch_size, dist_option, spars, seed, augment } = config;
        let facts = [
            ("the dist option", dist_option.to_string()),
            ("spars", spars.to_string()),
            ("the number of epochs", epochs.to_string()),
            ("the batch size", batch_size.to_string()),
            ("the seed", seed.to_string()),
            ("the augmentation", format!("{augment:?}")),
            ("the number of training images", train.len().to_string()),
            ("the number of test images", test.len().to_string()),
            ("the shape of an image", format!("{:?}", train.image_shape())),
        ];
        let facts = facts.map(|(name, value)| (name.to_owned(), value));
        check_consistency(self.world().comm(), &facts)
    }

    /// A line of the root's output. A reader that has gone away is no reason to stop training.
    fn say(&self, out: &mut dyn Write, line: std::fmt::Arguments<'_>) {
        if self.world().is_root() {
            drop(writeln!(out, "{line}").and_then(|()| out.flush()));
        }
    }
}
