//! A whole run: epochs of training and evaluation, with SINGA's output.

use std::io::Write;
use std::time::{Duration, Instant};

use candelabrum_datasets::{BatchOptions, DistributedSampler, ImageDataset, Remainder};
use candelabrum_dist::{Result as DistResult, StepFigures, check_consistency};
use candelabrum_nn::{DistOption, Model};
use candle_core::DType;

use crate::progress::Progress;
use crate::{EpochReport, Error, Metrics, Result, StrategyReport, Trainer, TrainerOpt};

/// The maximum number of notes that an epoch prints.
const MOST_NOTES: usize = 3;

/// The settings of [`Trainer::fit`], the same on every rank.
#[derive(Clone, Debug)]
pub struct FitConfig {
    /// Passes of this call over the training data.
    pub epochs: usize,
    /// Samples per step and rank.
    pub batch_size: usize,
    /// The exchange of gradients.
    pub dist_option: DistOption,
    /// The parameter of a sparse exchange.
    pub spars: f32,
    /// The seed of shuffling and augmentation.
    pub seed: u64,
}

impl Default for FitConfig {
    /// Ten epochs of batch 64 in fp32, seed 0.
    fn default() -> Self {
        Self { epochs: 10, batch_size: 64, dist_option: DistOption::Fp32, spars: 0.05, seed: 0 }
    }
}

impl<M: Model, O: TrainerOpt> Trainer<M, O> {
    /// Trains on all of `train` and evaluates on all of `test` after every epoch.
    ///
    /// The call divides the data among the ranks. It reshuffles all data every epoch such that `N`
    /// ranks with batch `B` see the same global batches as one rank with batch `N·B`. Rank 0 writes
    /// SINGA's lines to `out` and shows progress on standard error.
    ///
    /// A second call continues where the first ended: `n` calls of one epoch each see the same
    /// batches and result in the same parameters as one call of `n` epochs. The epochs in SINGA's
    /// lines are counted from the trainer's first one ([`epochs`](Self::epochs)). Layers are in
    /// training mode during the call, and in their previous mode afterwards.
    ///
    /// # Errors
    /// Ranks with different settings or data, a `spars` out of range, a dataset that is already
    /// partitioned, a batch larger than a rank's share, and every error of a step.
    pub fn fit(
        &mut self,
        train: &ImageDataset,
        test: &ImageDataset,
        config: &FitConfig,
        out: &mut dyn Write,
    ) -> Result<Vec<EpochReport>> {
        let params = self.opt().params().clone();
        params.in_mode(true, || self.fit_epochs(train, test, config, out))
    }

    fn fit_epochs(
        &mut self,
        train: &ImageDataset,
        test: &ImageDataset,
        config: &FitConfig,
        out: &mut dyn Write,
    ) -> Result<Vec<EpochReport>> {
        self.opt().check(config.dist_option, config.spars)?;
        let sampler = self.sampler(train, config)?;
        self.check_same(train, test, config)?;
        let mut reports = Vec::with_capacity(config.epochs);
        for epoch in self.epochs()..self.epochs() + config.epochs {
            self.say(out, format_args!("Starting Epoch {epoch}:"));
            let _span = tracing::debug_span!(target: "candelabrum::run", "epoch", epoch).entered();
            let start = Instant::now();
            let before = self.opt().traffic();
            let (trained, steps, notes) = self.train_one_epoch(train, &sampler, epoch, config)?;
            self.set_epochs(epoch + 1);
            let traffic = self.opt().traffic() - before;
            let residual_norm = self.opt_mut().residual_norm();
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
                strategy: StrategyReport::new(config.dist_option, &steps, residual_norm),
                notes,
                parameters_sha256: self.equal_parameters()?,
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

    /// Returns metrics over all ranks, the cost of the steps on this rank, and the strategy's
    /// notes.
    fn train_one_epoch(
        &mut self,
        train: &ImageDataset,
        sampler: &DistributedSampler,
        epoch: usize,
        config: &FitConfig,
    ) -> Result<(Metrics, StepFigures, Vec<String>)> {
        let mut progress = Progress::new(epoch, sampler.steps(), self.group().is_world_root());
        let mut metrics = Metrics::default();
        let mut notes = Vec::new();
        let before = self.opt().figures(config.dist_option);
        let mut batches = train.epoch_batches(sampler, epoch, self.batch_options())?;
        while let Some(batch) = wait_for_batch(&mut batches) {
            let batch = batch?;
            let (output, loss) =
                self.train_one_batch(&batch.xs, &batch.ys, config.dist_option, config.spars)?;
            let loss = loss.to_dtype(DType::F32)?.to_scalar::<f32>()?;
            metrics.add(&output, &batch.ys, loss)?;
            let opt = self.opt_mut();
            for note in opt.take_notices() {
                // Steps often repeat a note, so only the first few are printed and kept.
                if notes.len() == MOST_NOTES {
                    continue;
                }
                if opt.group().is_world_root() {
                    progress.note(&note);
                }
                notes.push(note);
            }
            progress.step(sampler.global_batch_size(), loss, || {
                cost(&(opt.figures(config.dist_option) - before), opt.residual_norm())
            });
        }
        progress.finish();
        let figures = self.opt().figures(config.dist_option) - before;
        if figures.skipped > 1 {
            let note = format!("{} of {} steps were left out", figures.skipped, figures.steps);
            if self.group().is_world_root() {
                progress.note(&note);
            }
            notes.push(note);
        }
        Ok((metrics.over_ranks(&**self.group())?, figures, notes))
    }

    /// Refuses ranks whose runs would differ.
    fn check_same(
        &self,
        train: &ImageDataset,
        test: &ImageDataset,
        config: &FitConfig,
    ) -> DistResult<()> {
        if self.group().world_size() == 1 {
            return Ok(());
        }
        let FitConfig { epochs, batch_size, dist_option, spars, seed } = config;
        let BatchOptions { scaling, augment, .. } = self.batch_options();
        let facts = [
            ("the dist option", dist_option.to_string()),
            ("spars", spars.to_string()),
            ("the number of epochs", epochs.to_string()),
            ("the number of epochs trained before", self.epochs().to_string()),
            ("the batch size", batch_size.to_string()),
            ("the seed", seed.to_string()),
            ("the scaling of images", format!("{scaling:?}")),
            ("the augmentation", format!("{augment:?}")),
            ("the number of training images", train.len().to_string()),
            ("the number of test images", test.len().to_string()),
            ("the shape of an image", format!("{:?}", train.image_shape())),
            ("the SHA-256 of the training images", train.sha256().to_owned()),
            ("the SHA-256 of the test images", test.sha256().to_owned()),
        ];
        let facts = facts.map(|(name, value)| (name.to_owned(), value));
        check_consistency(&**self.group(), &facts)
    }

    /// The digest of each rank's parameters, which must be the same.
    fn equal_parameters(&self) -> Result<Vec<String>> {
        let digests = self.parameters_sha256()?;
        let differs = |digest: &String| *digest != digests[0];
        match digests.iter().position(differs) {
            Some(rank) => Err(Error::ReplicasDiffer { rank }),
            None => Ok(digests),
        }
    }

    /// Writes a line of the root's output. Training continues if the reader has closed the output.
    fn say(&self, out: &mut dyn Write, line: std::fmt::Arguments<'_>) {
        if self.group().is_world_root() {
            drop(writeln!(out, "{line}").and_then(|()| out.flush()));
        }
    }
}

/// Waits for the next batch. The loader prepares batches ahead, so the wait is short if it is fast
/// enough.
fn wait_for_batch<B>(batches: &mut impl Iterator<Item = B>) -> Option<B> {
    let _span = tracing::debug_span!(target: "candelabrum::run", "load").entered();
    batches.next()
}

/// The average cost of a step, for the progress line. Empty if nothing was sent.
fn cost(figures: &StepFigures, residual_norm: f64) -> String {
    if figures.steps == 0 || figures.bytes_sent == 0 {
        return String::new();
    }
    let milliseconds = |total: Duration| 1e3 * total.as_secs_f64() / figures.steps as f64;
    let kilobytes = |total: u64| total as f64 / figures.steps as f64 / 1e3;
    let mut line = format!(
        "; per step {:.0} kB sent, {:.0} kB received, compress {:.2} ms, communicate \
         {:.2} ms, decompress {:.2} ms",
        kilobytes(figures.bytes_sent),
        kilobytes(figures.bytes_received),
        milliseconds(figures.compress),
        milliseconds(figures.communication),
        milliseconds(figures.decompress),
    );
    if residual_norm > 0.0 {
        line += &format!("; residual {residual_norm:.2}");
    }
    if figures.skipped > 0 {
        line += &format!("; {} skipped", figures.skipped);
    }
    line
}
