//! The options of all training examples.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use candelabrum_datasets::{
    Augmentation, DataRequest, DatasetKind, DistributedSampler, Environment, ImageDataset,
    ImageDatasets, ImageSet, Remainder, SamplerConfig,
};
use candelabrum_dist::launch::DeviceChoice;
use candelabrum_dist::{
    DistOpt, DistOptConfig, OnOverflow, Replicate, Shard, StrategyConfig, World, strategy,
};
use candelabrum_kvstore::{KvStore, StoreConfig, StoreKind};
use candelabrum_nn::{DistOption, Params, Recompute};
use candelabrum_optim::Clip;
use candelabrum_runlog::Number;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::interrupt::interrupt;
use super::read_marks::ReadMarks;
use super::{AverageArgs, CheckpointArgs, KvStoreKind, OptimizerArgs, Precision};
use crate::hooks::{BestModel, EarlyStopping, ExportBest, Hook, Monitor};
use crate::options::{parse_positive, parse_seconds, reject};
use crate::{DOWNLOAD_TIME, Error, Fit, FitConfig, LogFiles, Report, ReportFile, Result, Timeline};

/// Options of a training program, to be flattened into a clap parser.
#[derive(Args, Clone, Debug)]
pub struct TrainArgs {
    /// Start this many ranks on this machine
    #[arg(long, value_name = "N", value_parser = parse_workers)]
    pub workers: Option<usize>,

    /// This many further ranks are servers of the key-value store [default: the launcher's number,
    /// or 1 with --kvstore]
    #[arg(long, value_name = "S", value_parser = parse_positive)]
    pub servers: Option<usize>,

    /// Train by a key-value store on servers, as MXNet does. `--workers 4 --servers 2 --kvstore
    /// dist_sync` starts 6 ranks on this machine. Of N ranks under mpiexec or srun the last S are
    /// servers
    #[arg(long, value_name = "KIND", value_enum)]
    pub kvstore: Option<KvStoreKind>,

    /// In dist_async: a worker is at most this many rounds ahead of the slowest one
    #[arg(long, value_name = "ROUNDS")]
    pub staleness_bound: Option<u64>,

    /// Directory of the dataset's files
    #[arg(long, value_name = "DIR")]
    pub(super) data_dir: Option<PathBuf>,

    /// auto, mnist, fashion-mnist, cifar10, cifar100 or synthetic; auto uses the program's own set if it is available,
    /// which is MNIST unless the program says otherwise
    #[arg(long, default_value_t = DatasetKind::Auto)]
    pub(super) dataset: DatasetKind,

    /// The run itself. Its options are read as those of this struct, too: `args.seed`.
    #[command(flatten)]
    pub config: FitConfig,

    /// End the run after this many evaluations in a row whose loss was not better than the best one
    #[arg(long, value_name = "PATIENCE", value_parser = parse_positive)]
    pub early_stopping: Option<usize>,

    /// The optimizer, its learning rate and the clipping of gradients.
    #[command(flatten)]
    pub optimizer: OptimizerArgs,

    /// The blocks of the model that keep only their input for the backward pass, which computes them again: none, half
    /// or all. Less memory for more time
    #[arg(long, value_name = "BLOCKS", value_enum, default_value_t)]
    pub recompute: RecomputedBlocks,

    /// What is sharded over the ranks: none, optimizer (the state of the optimizer, ZeRO-1), gradients (also
    /// the averaged gradients, ZeRO-2) or parameters (also those of blocks, ZeRO-3). Less memory, the same training
    #[arg(long, value_name = "WHAT", default_value_t)]
    pub shard: Shard,

    /// How many copies of all shards the ranks keep: a number, each copy by neighbouring ranks, or hosts for a copy
    /// on each host. The ranks of a copy add their gradients first, also without --shard [default: 1]
    #[arg(long, value_name = "N|hosts")]
    pub replicate: Option<Replicate>,

    /// Random changes of training images: none, crop, crop-flip or singa
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub(super) augment: Augment,

    /// The averages of the weights.
    #[command(flatten)]
    pub averages: AverageArgs,

    /// The checkpoints.
    #[command(flatten)]
    pub checkpoints: CheckpointArgs,

    /// After SIGINT, SIGTERM or SIGHUP the ranks of --workers have this long to save their state and end, before they
    /// are killed [default: $CANDELABRUM_GRACE, or 30]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub grace: Option<Duration>,

    /// Error feedback: a sparse exchange keeps the elements that are not sent, and adds them to the next gradient
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub corr: bool,

    /// A parameter of the strategy, for instance of your own one; repeat the option for several
    #[arg(long, value_name = "KEY=VALUE")]
    pub strategy_option: Vec<String>,

    /// Buckets have about this many elements (SINGA's threshold) [default: buckets of
    /// 1 MiB, then 25 MiB]
    #[arg(long, value_name = "N", value_parser = parse_positive)]
    pub threshold: Option<usize>,

    /// Whether gradients leave while the backward pass still runs
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub overlap: bool,

    /// Reaction to an overflow of an average in fp16 or bf16: error or skip (leave the step out)
    #[arg(long, value_name = "WHAT", default_value_t = OnOverflow::Error)]
    pub on_overflow: OnOverflow,

    /// Compute threads per rank [default: this machine's cores divided by the ranks on it]
    #[arg(long, value_name = "T", value_parser = parse_positive)]
    pub threads: Option<usize>,

    /// auto (a GPU if there is one), cpu, cuda (the GPU with the rank's number on its host) or cuda:N
    /// [default: $CANDELABRUM_DEVICE, or auto]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,

    /// What the program has read of these options.
    #[arg(skip)]
    pub(super) reads: ReadMarks,

    /// The type of parameters and activations. On the CPU, bf16 is that of the factors of products, which is
    /// faster where the processor has AMX or AMD's AVX512-BF16. tf32 is that of the factors of products on a
    /// GPU; all else is f32. In f16 a CPU computes in f32 and rounds: an epoch of mnist_dist takes 1.8 times
    /// as long
    #[arg(long, value_name = "TYPE", value_enum, default_value_t)]
    pub precision: Precision,

    /// The network interface for communication between hosts [default: $CANDELABRUM_INTERFACE, or
    /// the libraries' choice]
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,

    /// Write settings and results to this JSON file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Write a log of the run into this directory, for `candelabrum watch`, `candelabrum report` and TensorBoard
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<PathBuf>,

    /// Write a trace of all ranks' work to this file, in Chrome's format; a rank that fails writes
    /// its part to FILE.rankN
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,
}

impl TrainArgs {
    /// Rejects values with which no run is possible.
    ///
    /// # Errors
    /// Those of the strategy and the optimizer, servers without a store, or a report or timeline
    /// that could not be written.
    pub fn check(&self) -> Result<()> {
        self.check_store()?;
        let config = self.dist_opt_config()?;
        config.check()?;
        strategy::check(self.dist_option, self.spars, &config.strategy)?;
        self.optimizer.check()?;
        self.averages.check()?;
        self.checkpoints.check()?;
        if let Some(path) = &self.report {
            Report::check_path(path)?;
        }
        if let Some(path) = &self.timeline {
            Timeline::check_path(path)?;
        }
        Ok(())
    }

    /// The optimizer of these options on the ranks of `world`: one that exchanges gradients between
    /// them, or, with `--kvstore`, one that trains through servers.
    ///
    /// # Errors
    /// Those of [`DistOpt::with_config`], [`KvStore::with_config`] and [`DistOpt::with_servers`].
    pub fn make_optimizer(&self, params: &Params, world: &World) -> Result<DistOpt> {
        params.set_recompute(self.recompute.into());
        let (recipe, config) = (self.optimizer.recipe(), self.dist_opt_config()?);
        let Some(kind) = self.kvstore else {
            let ranks =
                self.replicate.map_or(Ok(world.group()), |copies| world.replicated(copies))?;
            return Ok(DistOpt::with_config(recipe.build(), params, ranks, config)?);
        };
        let store = KvStore::with_config(&self.store_config(kind), world)?;
        Ok(DistOpt::with_servers(recipe, params, store.servers(), config)?)
    }

    /// The store of these options.
    pub fn store_config(&self, kind: KvStoreKind) -> StoreConfig {
        let staleness_bound = self.staleness_bound;
        StoreConfig { staleness_bound, ..StoreConfig::new(kind.into()) }
    }

    /// Rejects options that contradict each other because of the key-value store.
    fn check_store(&self) -> Result<()> {
        let Some(kind) = self.kvstore else { return self.check_no_store() };
        self.store_config(kind).check()?;
        if self.shard != Shard::None {
            let range = "none with --kvstore, whose servers have the state of the optimizer";
            return Err(Error::option("--shard", &self.shard, range));
        }
        if let Some(replicate) = self.replicate {
            let range = "left out with --kvstore, whose servers have all shards";
            return Err(Error::option("--replicate", &replicate, range));
        }
        if self.dist_option == DistOption::PartialUpdate {
            let range =
                "another one with --kvstore, whose servers alone have parameters to average";
            return Err(Error::option("--dist-option", &self.dist_option, range));
        }
        if let (StoreKind::DistAsync, Some(Clip::Norm(limit))) = (kind.into(), self.optimizer.clip)
        {
            let range = "left out with --kvstore dist_async: each gradient is an update, and there is no norm of all workers' gradients";
            return Err(Error::option("--clip", &format!("norm {limit}"), range));
        }
        Ok(())
    }

    /// Rejects options of a key-value store without one.
    fn check_no_store(&self) -> Result<()> {
        let &Self { servers, staleness_bound, .. } = self;
        let with = "used with --kvstore dist_sync or dist_async";
        reject(&[
            ("--servers", servers.is_some(), &servers.unwrap_or(0), with),
            ("--staleness-bound", staleness_bound.is_some(), &staleness_bound.unwrap_or(0), with),
        ])
    }

    /// The distributed optimizer of these options.
    ///
    /// # Errors
    /// A strategy option that is not `KEY=VALUE`.
    pub fn dist_opt_config(&self) -> Result<DistOptConfig> {
        let mut strategy = StrategyConfig::default();
        strategy.corr = self.corr;
        for option in &self.strategy_option {
            strategy.options.set(option)?;
        }
        let &Self { threshold, on_overflow, overlap, shard, .. } = self;
        Ok(DistOptConfig {
            threshold,
            overlap,
            uneven: self.uneven,
            on_overflow,
            clip_gradients: self.optimizer.clip,
            loss_scale: self.precision.loss_scale(),
            shard,
            strategy,
            ..Default::default()
        })
    }

    /// `--data-dir`, for a program that reads its data itself.
    pub fn data_dir(&self) -> Option<&Path> {
        self.reads.data.set();
        self.data_dir.as_deref()
    }

    /// `--dataset`, for a program that reads its data itself.
    pub fn dataset(&self) -> DatasetKind {
        self.reads.data.set();
        self.dataset
    }

    /// `--augment`, for a program that changes its training data itself.
    pub fn augment(&self) -> Augment {
        self.reads.augment.set();
        self.augment
    }

    /// The training images with the random changes of these options.
    pub fn augmented(&self, images: &ImageDataset) -> ImageDataset {
        self.reads.augment.set();
        match self.augment {
            Augment::None => images.clone(),
            Augment::Crop => images.clone().augmented(Augmentation::crop_only()),
            Augment::CropFlip => images.clone().augmented(Augmentation::crop_and_flip()),
            Augment::Singa => images.clone().augmented(Augmentation::singa()),
        }
    }

    /// The dataset of these options. For a program whose own set is another one than MNIST, change
    /// [`set`](DataRequest::set) and call [`load_data`](crate::load_data).
    pub fn data_request(&self) -> DataRequest {
        self.reads.data.set();
        DataRequest {
            kind: self.dataset,
            set: ImageSet::default(),
            data_dir: self.data_dir.clone(),
            environment: Environment::of_process(),
            seed: self.seed,
            download: Some(DOWNLOAD_TIME),
            quiet: false,
        }
    }

    /// The report of a run with these options on the digits, before its first epoch.
    pub fn report(&self, world: &World, data: &ImageDatasets, dropped_per_epoch: usize) -> Report {
        self.report_on(world, data.name, data.note.as_deref(), dropped_per_epoch)
    }

    /// The report of a run with these options on any data, before its first epoch. `note` says why the dataset is not the
    /// preferred one.
    fn report_on(&self, world: &World, data: &str, note: Option<&str>, dropped: usize) -> Report {
        let settings = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "world_size": world.world_size(),
            "backend": world.backend(),
            "device": world.device_name(),
            "precision": self.precision.describe(world.device()),
            "threads": self.threads.unwrap_or_else(|| world.default_threads()),
            "dataset": data,
            "dataset_note": note,
            "kvstore": self.kvstore.map(|kind| StoreKind::from(kind).to_string()),
            "servers": world.servers(),
            "dist_option": self.dist_option.to_string(),
            // The number that the user wrote: 0.05, and not 0.05000000074505806.
            "spars": Number(self.spars.to_string().parse().unwrap_or(f64::from(self.spars))),
            "corr": self.corr,
            "threshold": self.threshold,
            "on_overflow": self.on_overflow.to_string(),
            "optimizer": self.optimizer.recipe().build().describe(),
            "lr": Number(self.optimizer.lr),
            "momentum": Number(self.optimizer.momentum),
            "weight_decay": Number(self.optimizer.decay()),
            "seed": self.seed,
            "batch_size": self.batch_size,
            "accumulate": self.accumulate,
            "dropped_per_epoch": dropped,
        });
        let settings = settings.as_object().cloned().unwrap_or_default().into_iter();
        let settings = settings.filter(|(_, value)| !value.is_null()).collect();
        Report { settings, ..Report::default() }
    }

    /// This rank's batches of so many training samples.
    ///
    /// # Errors
    /// A batch larger than a rank's share of an epoch.
    pub fn sampler(&self, world: &World, samples: usize) -> Result<DistributedSampler> {
        self.ordered(DistributedSampler::new(SamplerConfig {
            global_rank: world.rank(),
            world_size: world.world_size(),
            seed: self.seed,
            remainder: if self.uneven { Remainder::Keep } else { Remainder::Drop },
            ..SamplerConfig::new(samples, self.batch_size * self.accumulate)
        })?)
    }

    /// The run of these options on so many training samples of data with this name. It writes a report and a log
    /// if the options ask for them.
    ///
    /// # Errors
    /// A batch larger than a rank's share.
    pub fn fit_on<'a>(&self, world: &World, data: &str, samples: usize) -> Result<Fit<'a>> {
        let dropped = self.sampler(world, samples)?.dropped_per_epoch();
        Ok(self.fit(self.report_on(world, data, None, dropped)))
    }

    /// The run of these options, which writes `report` and a log if they ask for them.
    pub fn fit<'a>(&self, report: Report) -> Fit<'a> {
        let args = self.clone();
        let mut fit =
            Fit::new(self.fit_config()).check_params(move |params| args.check_read(params));
        let average = self.averages.hook();
        if let Some(path) = &self.checkpoints.export_best {
            let of_average = average.as_ref().filter(|_| self.averages.is_used());
            let export = ExportBest::new(path);
            fit = fit.hook(match of_average {
                Some(average) => export.average(average.name()),
                None => export,
            });
        }
        if let Some(average) = average {
            fit = fit.hook(average);
        }
        if let Some(most) = self.checkpoints.best() {
            fit = fit.hook(BestModel::new(Monitor::loss()).keep(most));
        }
        if let Some(patience) = self.early_stopping {
            fit = fit.hook(EarlyStopping::new(Monitor::loss(), patience));
        }
        if let Some(dir) = &self.log_dir {
            let may_continue = self.checkpoints.checkpoint_dir.is_some();
            fit = fit.hook(LogFiles::new(dir, report.settings.clone()).may_continue(may_continue));
        }
        if let Some(path) = &self.report {
            fit = fit.hook(ReportFile::new(path, report));
        }
        fit
    }

    /// The run of these options.
    pub fn fit_config(&self) -> FitConfig {
        let checkpoints = self.checkpoints.config();
        let interrupt = checkpoints.as_ref().map(|_| interrupt()).unwrap_or_default();
        FitConfig { checkpoints, interrupt, ..self.config.clone() }
    }
}

impl Deref for TrainArgs {
    type Target = FitConfig;

    fn deref(&self) -> &FitConfig {
        &self.config
    }
}

impl DerefMut for TrainArgs {
    fn deref_mut(&mut self) -> &mut FitConfig {
        &mut self.config
    }
}

/// Random changes of training images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Augment {
    /// No changes
    #[default]
    None,
    /// A random window of the image with 4 rows and columns of zeros around it
    Crop,
    /// The same, and half of the images mirrored
    CropFlip,
    /// SINGA's: a random window of the image that continues as its mirror image, and half of the images mirrored
    Singa,
}

/// The blocks of a model that are computed again in the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RecomputedBlocks {
    /// No block
    #[default]
    None,
    /// Every second block
    Half,
    /// All blocks
    All,
}

impl From<RecomputedBlocks> for Recompute {
    fn from(blocks: RecomputedBlocks) -> Self {
        match blocks {
            RecomputedBlocks::None => Self::None,
            RecomputedBlocks::Half => Self::Half,
            RecomputedBlocks::All => Self::All,
        }
    }
}

fn parse_workers(text: &str) -> std::result::Result<usize, String> {
    let most = candelabrum_dist::launch::MAX_WORKERS;
    match text.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(format!("one machine runs from 1 to {most} workers")),
    }
}
