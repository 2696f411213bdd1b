//! A run that is disturbed and continued is the run that nobody disturbed: the same global batches, each trained once,
//! the same parameters, the same reports. Nothing that was saved is gone, and what is refused is refused before the
//! first step.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use candelabrum::candle;
use candelabrum::nn::Recompute;
use candelabrum::prelude::*;
use candelabrum::train::checkpoint::{Manifest, Position};
use candelabrum::train::hooks::{Action, Run};
use candelabrum::train::{Error, Interrupt, Report, ReportFile, Result};
use candelabrum_testkit::uniform;

use crate::adapters::{SumOfLayers, Trained};
use crate::draw::{Draw, for_each_seed};
use crate::listing::Listing;
use crate::ranks::on_ranks;

/// Seeds that have found something.
const KEPT: &[u64] = &[101, 151];
/// Those of them that are older than draws that came later: a kept seed is the case that it was.
const OLD: &[u64] = &[101];

/// Layers beside the one that is drawn.
const MORE: usize = 12;
const CLASSES: usize = 3;
const FEATURES: usize = 4;
const IGNORED: i64 = -100;
const TERM: i32 = 15;
/// The directory of checkpoints within that of a run.
const CHECKPOINTS: &str = "checkpoints";

/// The settings of a run.
#[derive(Clone, Debug)]
struct Case {
    ranks: usize,
    /// The servers of a key-value store; without them the ranks exchange gradients by all-reduce.
    servers: usize,
    /// By rank, or by micro-batch and rank.
    batch: usize,
    accumulate: usize,
    uneven: bool,
    samples: usize,
    sampling: Sampling,
    epochs: usize,
    limits: Limits,
    /// The share of rows that the loss ignores, in hundredths.
    ignored: u64,
    evaluate_every: Option<u64>,
    option: DistOption,
    trained: Trained,
    /// The dropout of an adapter.
    dropout: f32,
    recompute: Recompute,
    /// Whether rank 0 says where the memory of a step is. The run that nobody disturbs does not.
    profiles_memory: bool,
    /// What each rank keeps only its shard of, until the first disturbance. The run that nobody disturbs shares
    /// nothing.
    shard: Shard,
    optimizer: usize,
    schedule: usize,
    clip: bool,
    hooks: Vec<Watcher>,
    every: Option<u64>,
    keep: usize,
    data_seed: u64,
    /// The disturbances, and how the run continues after each.
    parts: Vec<Part>,
}

/// The limits of a run beside its epochs.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    max_steps: Option<u64>,
    train_batches: Option<usize>,
}

/// A hook.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Watcher {
    Stops {
        patience: usize,
    },
    Plateau,
    /// So many checkpoints by the loss stay.
    BestLoss {
        most: usize,
    },
    BestAccuracy,
    /// An average of the weights, which is evaluated, and which the model has at the end.
    Ema {
        every: u64,
    },
    /// An average that is only saved.
    Swa {
        every: u64,
    },
    /// Makes the model whole after some steps.
    Gathers {
        every: u64,
    },
}

/// A disturbance, and the number of ranks and the batch with which the run continues.
#[derive(Clone, Copy, Debug)]
struct Part {
    way: Way,
    /// The step after which, or in whose evaluation, it happens.
    step: u64,
    /// The rank on which it happens; all ranks if it is none of them.
    rank: usize,
    ranks: usize,
    servers: usize,
    batch: usize,
    /// Goes back to an older checkpoint instead of continuing the newest one.
    back: bool,
    /// A byte of the newest checkpoint has changed, so the one before it is continued.
    damage: bool,
    /// The files that note the best checkpoints are gone, as after a kill before the first of them was written.
    forgets_best: bool,
    /// What each rank keeps only its shard of.
    shard: Shard,
}

/// A way in which a run ends before its end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// A signal in a step.
    Signal,
    /// A signal in an evaluation.
    SignalInEvaluation,
    /// A signal when a checkpoint has been copied and is being written.
    SignalInCheckpoint,
    /// An error of one rank.
    Failure,
    /// An error of one rank in an evaluation.
    FailureInEvaluation,
    /// A hook ends the call.
    Pause,
    /// The time of the call is over after its first step.
    Time,
}

const WAYS: [Way; 5] =
    [Way::Signal, Way::SignalInEvaluation, Way::SignalInCheckpoint, Way::Failure, Way::Pause];

impl Case {
    fn new(seed: u64) -> Self {
        let draw = &mut Draw::new(seed ^ 0x5EED);
        let ranks = draw.number(1, 4);
        let (batch, accumulate) = (draw.number(1, 4), draw.one_of(&[1, 1, 2, 3]));
        let global = ranks * batch * accumulate;
        let servers = if draw.chance(20) { draw.number(1, 2) } else { 0 };
        let uneven = draw.chance(40);
        let steps = draw.number(1, 6);
        let rest = if global > 1 { draw.number(0, global - 1) } else { 0 };
        let samples = steps * global + rest;
        let epochs = draw.number(1, 3);
        let all = (epochs * (steps + usize::from(uneven && rest > 0))) as u64;
        let same_world = draw.chance(60);
        let count = draw.number(1, 3);
        let mut parts: Vec<Part> = (0..count)
            .map(|_| {
                let (ranks, batch) = if same_world {
                    (ranks, batch)
                } else {
                    // Mostly numbers by which the global batch can be divided.
                    let ranks = draw.number(1, 4);
                    (ranks, draw.number(1, 4))
                };
                Part {
                    way: draw.one_of(&WAYS),
                    step: draw.number(1, all as usize) as u64,
                    rank: draw.number(0, 4),
                    ranks,
                    servers,
                    batch,
                    back: draw.chance(30),
                    damage: draw.chance(20),
                    forgets_best: false,
                    shard: Shard::None,
                }
            })
            .collect();
        let watchers = [
            Watcher::Stops { patience: draw.number(1, 3) },
            Watcher::Plateau,
            Watcher::BestLoss { most: draw.number(1, 3) },
            Watcher::BestAccuracy,
        ];
        // What a hook decides at another number of ranks may depend on rounding.
        let may_decide = |hook: &Watcher| {
            let is_best = matches!(hook, Watcher::BestLoss { .. } | Watcher::BestAccuracy);
            is_best || same_world
        };
        let mut hooks: Vec<Watcher> =
            watchers.into_iter().filter(may_decide).filter(|_| draw.chance(40)).collect();
        let strategies = [
            DistOption::Fp32,
            DistOption::Fp32,
            DistOption::SparseTopK,
            DistOption::PartialUpdate,
            DistOption::Fp16,
        ];
        let mut option = if same_world { draw.one_of(&strategies) } else { DistOption::Fp32 };
        if servers > 0 && option == DistOption::PartialUpdate {
            option = DistOption::SparseTopK;
        }
        // A sparse strategy has other buckets with servers, and another rounding with another number of them.
        let draw_servers = &mut Draw::new(seed ^ 0x5E4E);
        if option == DistOption::Fp16 && draw_servers.chance(40) && !OLD.contains(&seed) {
            option = DistOption::TwoBit;
        }
        let is_dense = matches!(option, DistOption::Fp32 | DistOption::Fp16);
        for part in &mut parts {
            if is_dense && draw_servers.chance(25) {
                part.servers = draw_servers.number(0, 2);
            }
        }
        let shuffle =
            if draw.chance(25) { Shuffle::Window(draw.number(1, 9)) } else { Shuffle::Full };
        // Drawn apart, so that the kept seeds are the cases that they were.
        let draw_adapter = &mut Draw::new(seed ^ 0xADA);
        let trained = Trained::drawn(draw_adapter);
        // The noise depends on the number of ranks.
        let dropout = if same_world { draw_adapter.one_of(&[0.0, 0.3]) } else { 0.0 };
        // The buckets of a sparse strategy depend on it, and an average of parameters refuses it.
        let mut shard = |servers| match servers == 0 && is_dense && draw_adapter.chance(50) {
            true => draw_adapter.one_of(&[Shard::Optimizer, Shard::Gradients]),
            false => Shard::None,
        };
        parts.iter_mut().for_each(|part| part.shard = shard(part.servers));
        let mut shard = shard(servers);
        let draw_blocks = &mut Draw::new(seed ^ 0xB10C);
        let others = [Recompute::None, Recompute::None, Recompute::Half];
        let (recompute, draw_shards, percent) = match draw_adapter.chance(30) {
            true => (Recompute::All, &mut *draw_adapter, 60),
            false if KEPT.contains(&seed) => (Recompute::None, draw_blocks, 0),
            false => (draw_blocks.one_of(&others), draw_blocks, 40),
        };
        let shards = parts.iter_mut().map(|part| &mut part.shard).chain([&mut shard]);
        let drawn = shards.filter(|shard| **shard != Shard::None);
        drawn.filter(|_| draw_shards.chance(percent)).for_each(|shard| *shard = Shard::Parameters);
        // So are those that came later.
        let draw_later = &mut Draw::new(seed ^ 0xA7E);
        let is_old = OLD.contains(&seed);
        if draw_later.chance(40) && !is_old {
            let every = draw_later.number(1, 3) as u64;
            hooks.push(draw_later.one_of(&[Watcher::Ema { every }, Watcher::Swa { every }]));
        }
        // A state of few bits rounds otherwise where a gradient does, and cannot be averaged.
        let most = if option == DistOption::PartialUpdate { 4 } else { 6 };
        let is_new = draw_later.chance(40) && same_world && !is_old;
        let new_optimizer = is_new.then(|| draw_later.number(3, most));
        let epoch_size = draw.chance(30).then(|| draw.number(global, 2 * samples));
        let ignored = draw.one_of(&[0, 0, 30, 80]);
        let evaluate_every = draw.chance(50).then(|| draw.number(1, 5) as u64);
        let draw_limits = &mut Draw::new(seed ^ 0x11417);
        let limits = match draw_limits.chance(50) && !is_old {
            true => Limits {
                max_steps: draw_limits
                    .chance(70)
                    .then(|| draw_limits.number(1, all as usize) as u64),
                train_batches: draw_limits.chance(50).then(|| draw_limits.number(1, steps)),
            },
            false => Limits::default(),
        };
        for part in &mut parts {
            if draw_limits.chance(15) && !is_old {
                part.way = Way::Time;
            }
        }
        let draw_starts = &mut Draw::new(seed ^ 0x57A7);
        for part in parts.iter_mut().filter(|_| !KEPT.contains(&seed)) {
            part.forgets_best = draw_starts.chance(20);
            if same_world {
                continue;
            }
            part.batch = match draw_starts.number(0, 9) {
                // The command of the first start, and one that gives these ranks the same global batch.
                0..=5 => batch,
                6..=8 => (ranks * batch / part.ranks).max(1),
                _ => part.batch,
            };
        }
        let draw_faults = &mut Draw::new(seed ^ 0xFA17);
        for part in &mut parts {
            if draw_faults.chance(15) && !is_old {
                part.way = Way::FailureInEvaluation;
            }
        }
        if draw_faults.chance(20) && !is_old {
            let every = draw_faults.number(1, 3) as u64;
            // Before an average, or behind it.
            let place = draw_faults.number(0, hooks.len());
            hooks.insert(place, Watcher::Gathers { every });
        }
        let old_optimizer = draw.number(0, 2);
        Self {
            ranks,
            servers,
            batch,
            accumulate,
            uneven,
            samples,
            sampling: Sampling { shuffle, epoch_size },
            epochs,
            limits,
            ignored,
            evaluate_every,
            option,
            trained,
            dropout,
            recompute,
            profiles_memory: draw_adapter.chance(20),
            shard,
            optimizer: new_optimizer.unwrap_or(old_optimizer),
            schedule: draw.number(0, 2),
            clip: draw.chance(25),
            hooks,
            every: draw.chance(80).then(|| draw.number(1, 5) as u64),
            keep: draw.number(1, 4),
            data_seed: draw.number(0, 1000) as u64,
            parts,
        }
    }

    fn global(&self) -> usize {
        self.ranks * self.batch * self.accumulate
    }

    fn optimizer(&self) -> candelabrum::optim::Recipe {
        let lr = |lr: f64| match self.schedule {
            0 => Schedule::Constant(lr),
            1 => Schedule::Step { lr, every: 3, factor: 0.7 },
            _ => Schedule::Cosine { lr, steps: 20, min: 0.01 }.warm_up(4, 0.1),
        };
        match self.optimizer {
            0 => Sgd::new(lr(0.1)).momentum(0.9).into(),
            1 => Sgd::new(lr(0.2)).into(),
            2 => Adam::new(lr(0.02)).into(),
            3 => Muon::new(lr(0.02)).into(),
            4 => Adafactor::new(lr(0.05)).into(),
            5 => AdamW8bit::new(lr(0.02)).min_8bit_size(0).into(),
            _ => Adam::new(lr(0.02)).bf16_state().into(),
        }
    }

    /// Rows whose first feature is their number.
    fn data(&self, count: usize, seed: u64) -> TensorDataset<(Tensor, Tensor)> {
        let draw = &mut Draw::new(self.data_seed + seed);
        let label = |draw: &mut Draw| match draw.chance(self.ignored) {
            true => IGNORED,
            false => draw.number(0, CLASSES - 1) as i64,
        };
        let labels: Vec<i64> = (0..count).map(|_| label(draw)).collect();
        let features =
            uniform((count, FEATURES), self.data_seed + seed, -1.0, 1.0, DType::F32).unwrap();
        let numbers = Tensor::arange(0_f32, count as f32, &Device::Cpu).unwrap();
        let xs = Tensor::cat(&[&numbers.unsqueeze(1).unwrap(), &features], 1).unwrap();
        TensorDataset::pair(xs, Tensor::new(labels, &Device::Cpu).unwrap()).unwrap()
    }
}

/// A linear classifier that notes the numbers of the rows on which it trains.
struct Net {
    layers: SumOfLayers,
    params: Params,
    seen: Rc<RefCell<Vec<u32>>>,
}

impl Model for Net {
    fn forward(&self, xs: &Tensor) -> candle::Result<Tensor> {
        if self.params.is_training() {
            let numbers = xs.narrow(1, 0, 1)?.flatten_all()?.to_vec1::<f32>()?;
            self.seen.borrow_mut().extend(numbers.into_iter().map(|number| number as u32));
        }
        let xs = xs.narrow(1, 1, FEATURES)?.contiguous()?;
        self.layers.forward(&xs)
    }

    fn loss(&self, output: &Tensor, targets: &Tensor) -> candle::Result<Tensor> {
        SoftMaxCrossEntropy::new().ignore_index(IGNORED).forward(output, targets)
    }
}

/// The rows of each step, and the evaluations, of all ranks of one call.
#[derive(Debug, Default)]
struct Seen {
    rows: BTreeMap<u64, Vec<u32>>,
    evaluations: Vec<u64>,
}

/// Notes what a rank has seen.
struct Witness<'a> {
    own: Rc<RefCell<Vec<u32>>>,
    all: &'a Mutex<Seen>,
}

impl Hook for Witness<'_> {
    fn name(&self) -> &str {
        "witness"
    }

    fn on_step_end(&mut self, run: &mut Run<'_, '_>) -> Result<Action> {
        let rows = std::mem::take(&mut *self.own.borrow_mut());
        self.all.lock().unwrap().rows.entry(run.position.step - 1).or_default().extend(rows);
        Ok(Action::NOTHING)
    }

    fn on_evaluate(&mut self, run: &mut Run<'_, '_>, _: &Metrics) -> Result<Action> {
        if run.is_root() {
            self.all.lock().unwrap().evaluations.push(run.position.step);
        }
        Ok(Action::NOTHING)
    }
}

/// Ends the run in one of the ways.
struct Disturber {
    part: Option<Part>,
    is_chosen: bool,
    interrupt: Interrupt,
}

impl Disturber {
    fn is_time(&self, way: Way, step: u64) -> bool {
        self.is_chosen && self.part.is_some_and(|part| part.way == way && step >= part.step)
    }
}

impl Hook for Disturber {
    fn name(&self) -> &str {
        "disturber"
    }

    fn on_step_end(&mut self, run: &mut Run<'_, '_>) -> Result<Action> {
        let step = run.position.step;
        if self.is_time(Way::Signal, step) {
            self.interrupt.request(TERM);
        }
        if self.is_time(Way::Failure, step) {
            return Err(Error::Log { what: "this rank fails".to_owned() });
        }
        let pause = self.is_time(Way::Pause, step).then(|| "it pauses".to_owned());
        Ok(Action { pause, ..Action::NOTHING })
    }

    fn acts_on_step_end(&self) -> bool {
        true
    }

    fn on_checkpoint(
        &mut self,
        run: &mut Run<'_, '_>,
        _: &candelabrum::train::checkpoint::SaveOutcome,
    ) -> Result<()> {
        if self.is_time(Way::SignalInCheckpoint, run.position.step) {
            self.interrupt.request(TERM);
        }
        Ok(())
    }
}

/// Makes the model whole.
struct Gathers {
    every: u64,
}

impl Hook for Gathers {
    fn name(&self) -> &str {
        "gathers"
    }

    fn on_step_end(&mut self, run: &mut Run<'_, '_>) -> Result<Action> {
        if run.position.step.is_multiple_of(self.every) {
            run.optimizers.iter_mut().try_for_each(|(_, opt)| opt.gather_parameters())?;
        }
        Ok(Action::NOTHING)
    }
}

/// Why an evaluation fails.
const UNREADABLE: &str = "a sample that cannot be read";

/// Measures the accuracy, and asks for the end of the run in each batch of an evaluation, or fails there.
struct InEvaluation {
    is_chosen: bool,
    fails: bool,
    /// The batches in which it has asked.
    asked: Arc<AtomicUsize>,
    params: Params,
    interrupt: Interrupt,
}

impl Score for InEvaluation {
    fn add(&self, output: &Tensor, targets: &Tensor, metrics: &mut Metrics) -> Result<()> {
        self.add_counted(output, targets, None, metrics)
    }

    fn add_counted(
        &self,
        output: &Tensor,
        targets: &Tensor,
        ignored: Option<i64>,
        metrics: &mut Metrics,
    ) -> Result<()> {
        if self.fails && !self.params.is_training() {
            return Err(Error::Log { what: UNREADABLE.to_owned() });
        }
        if self.is_chosen && !self.params.is_training() {
            self.interrupt.request(TERM);
            self.asked.fetch_add(1, Ordering::Relaxed);
        }
        Accuracy.add_counted(output, targets, ignored, metrics)
    }
}

/// The end of a call on one rank.
#[derive(Clone, Debug)]
struct End {
    parameters: Vec<f32>,
    position: Position,
    /// The batches of evaluations in which this rank has asked for the end of the run.
    asked: usize,
}

/// One call of `fit` in a directory.
struct Call<'a> {
    case: &'a Case,
    ranks: usize,
    servers: usize,
    batch: usize,
    resume: Resume,
    shard: Shard,
    part: Option<Part>,
    dir: &'a Path,
}

impl Call<'_> {
    fn run(&self) -> (Vec<std::result::Result<End, String>>, Seen) {
        let seen = Mutex::new(Seen::default());
        let ends = on_ranks(self.ranks, self.servers, |world| {
            self.on_rank(world, &seen).map_err(|error| {
                world.abort(&error.to_string());
                error.to_string()
            })
        });
        let mut seen = seen.into_inner().unwrap();
        seen.rows.values_mut().for_each(|rows| rows.sort_unstable());
        (ends, seen)
    }

    fn on_rank(&self, world: &World, seen: &Mutex<Seen>) -> Result<End> {
        let Self { case, part, .. } = *self;
        let params = Params::new(5);
        let own = Rc::new(RefCell::new(Vec::new()));
        let (trained, sizes) = ((case.trained, case.dropout), [CLASSES, FEATURES]);
        let model = Net {
            layers: SumOfLayers::new(&params, trained, "out", MORE, sizes, case.recompute),
            params: params.clone(),
            seen: Rc::clone(&own),
        };
        let config = DistOptConfig {
            uneven: case.uneven,
            clip_gradients: case.clip.then_some(Clip::Norm(0.5)),
            shard: self.shard,
            first_bucket_bytes: 16,
            bucket_bytes: 64,
            ..DistOptConfig::default()
        };
        let opt = if self.servers == 0 {
            DistOpt::with_config(case.optimizer().build(), &params, world, config)?
        } else {
            let store = KvStore::create("dist_sync", world)?;
            DistOpt::with_servers(case.optimizer(), &params, store.servers(), config)?
        };
        let interrupt = Interrupt::watched();
        let is_chosen =
            part.is_some_and(|part| part.rank >= world.world_size() || part.rank == world.rank());
        // In an evaluation after the step of the disturbance.
        let in_evaluation = part.is_some_and(|part| part.way == Way::SignalInEvaluation);
        let asked = Arc::<AtomicUsize>::default();
        let score = InEvaluation {
            is_chosen: is_chosen && in_evaluation,
            fails: is_chosen && part.is_some_and(|part| part.way == Way::FailureInEvaluation),
            asked: Arc::clone(&asked),
            params: params.clone(),
            interrupt: interrupt.clone(),
        };
        let mut trainer = Trainer::new(model, opt).with_score(score);
        trainer.compile((1, FEATURES + 1))?;
        own.borrow_mut().clear();
        let checkpoints =
            CheckpointConfig { every: case.every, keep: case.keep, resume: self.resume.clone() };
        let config = FitConfig {
            epochs: case.epochs,
            max_steps: case.limits.max_steps,
            limit_train_batches: case.limits.train_batches,
            profile_memory: case.profiles_memory,
            max_time: part.filter(|part| part.way == Way::Time).map(|_| Duration::ZERO),
            batch_size: self.batch,
            accumulate: case.accumulate,
            uneven: case.uneven,
            dist_option: case.option,
            spars: 0.4,
            seed: case.data_seed,
            sampling: case.sampling,
            evaluate_every: case.evaluate_every,
            checkpoints: Some((self.dir.join(CHECKPOINTS), checkpoints)),
            interrupt: interrupt.clone(),
            ..FitConfig::default()
        };
        let mut fit = Fit::new(config)
            .hook(Witness { own, all: seen })
            .hook(Disturber { part, is_chosen, interrupt })
            .hook(ReportFile::new(self.dir.join("report.json"), report()));
        for hook in &case.hooks {
            fit = match *hook {
                Watcher::Stops { patience } => {
                    fit.hook(EarlyStopping::new(Monitor::loss(), patience))
                }
                Watcher::Plateau => {
                    fit.hook(ReduceOnPlateau::new(Monitor::loss()).factor(0.5).patience(1))
                }
                Watcher::BestLoss { most } => fit.hook(BestModel::new(Monitor::loss()).keep(most)),
                Watcher::BestAccuracy => fit.hook(BestModel::new(Monitor::accuracy())),
                Watcher::Ema { every } => {
                    fit.hook(WeightAverage::ema(0.7).every(every).stays_at_end(true))
                }
                Watcher::Swa { every } => fit.hook(WeightAverage::swa(2, every).evaluates(false)),
                Watcher::Gathers { every } => fit.hook(Gathers { every }),
            };
        }
        let (train, test) = (case.data(case.samples, 1), case.data(7, 2));
        trainer.fit_with(fit, &train, Some(&test))?;
        let values = |param: &candelabrum::nn::Param| {
            param.var().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        let parameters = params.list().iter().flat_map(values).collect();
        Ok(End { parameters, position: trainer.position(), asked: asked.load(Ordering::Relaxed) })
    }
}

fn checkpoint(dir: &Path, step: u64) -> PathBuf {
    dir.join(CHECKPOINTS).join(format!("step-{step:08}"))
}

/// Changes a byte of a checkpoint's numbers.
fn change_a_byte(checkpoint: &Path) {
    let mut files = fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path());
    let path = files.find(|path| path.extension().is_some_and(|it| it == "safetensors")).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

/// The averages of the weights in the checkpoint of a step, by the names of the parameters, whoever has written them.
fn averages(dir: &Path, step: u64) -> BTreeMap<String, Vec<u32>> {
    let mut averages: BTreeMap<String, BTreeMap<usize, Vec<u32>>> = BTreeMap::new();
    for file in fs::read_dir(checkpoint(dir, step)).unwrap().map(|file| file.unwrap().path()) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("hook-") || !name.ends_with(".safetensors") {
            continue;
        }
        let hook = &name[..8];
        let tensors = candle::safetensors::load(&file, &Device::Cpu).unwrap();
        for (key, values) in tensors.into_iter().collect::<BTreeMap<_, _>>() {
            // A shard has the name of the vector, the place of its first value, and the dimensions.
            let (vector, place) = key.rsplit_once('@').unwrap_or((&key, "0"));
            let start = place.split(',').next().unwrap().parse().unwrap();
            let values = values.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let bits = values.into_iter().map(f32::to_bits).collect();
            averages.entry(format!("{hook}/{vector}")).or_default().insert(start, bits);
        }
    }
    averages
        .into_iter()
        .map(|(name, shards)| (name, shards.into_values().flatten().collect()))
        .collect()
}

/// The losses and accuracies of the epochs in the report.
fn reported(dir: &Path) -> Vec<[f64; 4]> {
    let text = fs::read_to_string(dir.join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or(f64::NAN);
    let epoch = |epoch: &serde_json::Value| {
        ["train_loss", "train_accuracy", "eval_loss", "eval_accuracy"]
            .map(|name| number(&epoch[name]))
    };
    report["epochs"].as_array().unwrap().iter().map(epoch).collect()
}

fn check(seed: u64) {
    let case = Case::new(seed);
    let say = |what: &str| format!("seed {seed}: {what}: {case:#?}");
    let whole_dir = tempfile::tempdir().unwrap();
    let call = |dir, ranks, servers, batch, resume, shard, part| Call {
        case: &case,
        ranks,
        servers,
        batch,
        resume,
        shard,
        part,
        dir,
    };
    // Nothing is computed again in the run that nobody disturbs, and the bits are the same.
    let undisturbed = Case { recompute: Recompute::None, profiles_memory: false, ..case.clone() };
    let (auto, nothing) = (Resume::Auto, Shard::None);
    let (dir, ranks) = (whole_dir.path(), case.ranks);
    let whole = call(dir, ranks, case.servers, case.batch, auto, nothing, None);
    let (ends, whole) = Call { case: &undisturbed, ..whole }.run();
    let learns_nothing = |end: &std::result::Result<End, String>| {
        end.as_ref().is_err_and(|why| why.contains("has counted no target"))
    };
    if ends.iter().all(learns_nothing) {
        // All rows of an epoch are ignored, which all ranks must say.
        return;
    }
    let whole_ends: Vec<End> =
        ends.into_iter().map(|end| end.unwrap_or_else(|why| panic!("{}", say(&why)))).collect();

    let dir = tempfile::tempdir().unwrap();
    let (mut ranks, mut servers, mut batch) = (case.ranks, case.servers, case.batch);
    let (mut is_same_world, mut shard) = (true, case.shard);
    let mut before = Listing::default();
    // The step of an older checkpoint to which the next call goes back, and for each checkpoint the step to which the
    // run had gone back for it.
    let (mut back, mut sources) = (None, BTreeMap::new());
    let mut damaged = BTreeSet::new();
    let (mut rows, mut evaluations) = (BTreeMap::new(), Vec::new());
    let mut last = None;
    let mut parts: VecDeque<Option<Part>> = case.parts.iter().copied().map(Some).collect();
    parts.push_back(None);
    while let Some(part) = parts.pop_front() {
        let continued = back.or(before.newest(&damaged));
        let resume = back.map_or(Resume::Auto, |step| Resume::From(checkpoint(dir.path(), step)));
        if continued.is_none() {
            // Nothing was saved, so other options would begin another run.
            (ranks, servers, batch) = (case.ranks, case.servers, case.batch);
        }
        let saved_world = continued.map_or(ranks, |step| {
            Manifest::read(&checkpoint(dir.path(), step)).unwrap().world_size
        });
        // Servers have the state, also where a call continues that another one was drawn for.
        let own_shard = if servers == 0 { shard } else { Shard::None };
        let (ends, seen) = call(dir.path(), ranks, servers, batch, resume, own_shard, part).run();
        // A global batch that these ranks cannot divide is refused, and one that nobody has asked for. The command of the first start asks for its global batch at any number of ranks.
        let divides = case.global().is_multiple_of(ranks)
            && (batch == case.batch || ranks * batch * case.accumulate == case.global());
        let mut after = Listing::read(&dir.path().join(CHECKPOINTS));
        if continued.is_some() && !divides {
            assert!(ends.iter().all(std::result::Result::is_err), "{}", say("it was not refused"));
            assert!(seen.rows.is_empty(), "{}", say("a step was taken before it was refused"));
            assert_eq!(after, before, "{}", say("a refused run changed the directory"));
            (ranks, servers, batch) = (case.ranks, case.servers, case.batch);
            back = None;
            if part.is_none() {
                parts.push_back(None);
            }
            continue;
        }
        is_same_world &= ranks == saved_world;
        let from = continued.unwrap_or(0);
        if let Some((first, _)) = seen.rows.first_key_value() {
            assert_eq!(*first, from, "{}", say(&format!("{part:?} began at another step")));
        }
        merge(&mut rows, &mut evaluations, seen, &say);
        let source = back.or(sources.get(&from).copied().flatten());
        let source = source.filter(|source| before.named.contains_key(source));
        if let Err(why) = after.check(&before, back, source, case.keep) {
            panic!("{}", say(&format!("{part:?}: {why}: {before:?} became {after:?}")));
        }
        let written = after.written_since(&before);
        damaged.retain(|step| after.named.contains_key(step) && !written.contains(step));
        sources.extend(written.into_iter().map(|step| (step, source)));
        let heard_late = |end: &&End| end.asked > 1;
        if let Some(End { asked, .. }) = ends.iter().flatten().find(heard_late) {
            panic!("{}", say(&format!("{asked} batches were evaluated before a signal was heard")));
        }
        let failed =
            part.is_some_and(|part| matches!(part.way, Way::Failure | Way::FailureInEvaluation));
        if part.is_some_and(|part| part.way == Way::FailureInEvaluation) {
            let told = |end: &std::result::Result<End, String>| {
                end.as_ref().map_or_else(|why| why.contains(UNREADABLE), |_| true)
            };
            assert!(ends.iter().all(told), "{}", say(&format!("another error: {ends:?}")));
        }
        if ends.iter().all(std::result::Result::is_ok) {
            let step = ends[0].as_ref().unwrap().position.step;
            assert!(
                after.named.contains_key(&step),
                "{}",
                say(&format!("step {step} was not saved: {after:?}"))
            );
        } else {
            let why = format!(
                "{part:?} failed: {:?}",
                ends.iter().filter_map(|end| end.as_ref().err()).collect::<Vec<_>>()
            );
            assert!(failed, "{}", say(&why));
        }
        last = Some(ends);
        back = None;
        if let Some(part) = part {
            (ranks, servers, batch) = (part.ranks, part.servers, part.batch);
            shard = part.shard;
            let mut whole: Vec<u64> = after.named.keys().copied().collect();
            whole.retain(|step| !damaged.contains(step));
            if part.forgets_best {
                let files = after.best.keys().map(|name| dir.path().join(CHECKPOINTS).join(name));
                files.for_each(|path| fs::remove_file(path).unwrap());
                after.best.clear();
            }
            if part.back && whole.len() > 1 {
                // One that is not the newest.
                back = Some(whole[(whole.len() - 1) / 2]);
            } else if part.damage && whole.len() > 1 {
                let newest = after.newest(&damaged).unwrap();
                change_a_byte(&checkpoint(dir.path(), newest));
                damaged.insert(newest);
            }
        }
        before = after;
    }
    let ends = last.unwrap();
    let ends: Vec<End> =
        ends.into_iter().map(|end| end.unwrap_or_else(|why| panic!("{}", say(&why)))).collect();
    assert_eq!(ends[0].position, whole_ends[0].position, "{}", say("another position"));
    for (step, seen) in &whole.rows {
        assert_eq!(rows.get(step), Some(seen), "{}", say(&format!("other rows in step {step}")));
    }
    evaluations.sort_unstable();
    evaluations.dedup();
    assert_eq!(evaluations, whole.evaluations, "{}", say("other evaluations"));
    assert_eq!(rows.len(), whole.rows.len(), "{}", say("other steps"));
    let (reports, expected) = (reported(dir.path()), reported(whole_dir.path()));
    assert_eq!(reports.len(), expected.len(), "{}", say("other epochs"));
    if case.option == DistOption::PartialUpdate {
        // A checkpoint makes one model of the ranks' models, so a run with more of them is another run.
        return;
    }
    if is_same_world {
        assert_eq!(ends[0].parameters, whole_ends[0].parameters, "{}", say("other bits"));
        assert_eq!(format!("{reports:?}"), format!("{expected:?}"), "{}", say("other reports"));
        let mut best =
            [&dir, &whole_dir].map(|dir| Listing::read(&dir.path().join(CHECKPOINTS)).best);
        if case.parts.iter().any(|part| part.back || part.damage) {
            // A checkpoint that was the second best at an earlier step may have been removed at a later one.
            best.iter_mut().flat_map(BTreeMap::values_mut).for_each(|best| best.next.clear());
        }
        assert_eq!(best[0], best[1], "{}", say("other best checkpoints"));
        let averages = [&dir, &whole_dir].map(|dir| averages(dir.path(), ends[0].position.step));
        assert!(averages[0] == averages[1], "{}", say("other averages"));
    } else {
        let pairs = ends[0].parameters.iter().zip(&whole_ends[0].parameters);
        let worst = pairs.fold(0.0, |worst: f32, (a, b)| worst.max((a - b).abs()));
        assert!(worst < 1e-3, "{}", say(&format!("the parameters differ by {worst}")));
        for (found, expected) in reports.iter().zip(&expected) {
            let apart = (found[2] - expected[2]).abs();
            assert!(
                apart < 1e-3 || found[2].is_nan() && expected[2].is_nan(),
                "{}",
                say(&format!("{found:?} {expected:?}"))
            );
        }
    }
}

/// Adds what a call has seen. A step that is trained again has the rows that it had.
fn merge(
    rows: &mut BTreeMap<u64, Vec<u32>>,
    evaluations: &mut Vec<u64>,
    seen: Seen,
    say: &dyn Fn(&str) -> String,
) {
    for (step, now) in seen.rows {
        let before = rows.entry(step).or_insert_with(|| now.clone());
        // A step in which a rank failed may not have been noted by all.
        if before.len() < now.len() {
            before.clone_from(&now);
        }
        assert!(
            now.len() < before.len() || *before == now,
            "{}",
            say(&format!("other rows in step {step}"))
        );
    }
    let mut once = seen.evaluations.clone();
    once.dedup();
    assert_eq!(once, seen.evaluations, "{}", say("a model was evaluated twice"));
    evaluations.extend(seen.evaluations);
}

fn report() -> Report {
    let settings = [("world_size".to_owned(), 1.into())].into_iter().collect();
    Report { settings, ..Report::default() }
}

#[test]
fn a_disturbed_run_is_the_run_that_nobody_disturbed() {
    for_each_seed("LAW_RUNS", 60, KEPT, check);
}
