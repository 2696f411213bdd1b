//! A small training program with the options of all examples.

use std::cell::RefCell;
use std::fmt::Arguments;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use candelabrum::prelude::*;
use candelabrum::train::cli::{TrainArgs, run as run_ranks};
use candelabrum::train::hooks::{Action, Run};
use candelabrum_testkit::uniform;
use clap::Parser;

use super::phases::{Phases, Place};

/// The variable with the options, as JSON.
pub(crate) const ARGS: &str = "CHECKPOINT_TEST_ARGS";

pub(crate) const SAMPLES: usize = 240;
const SHAPE: [usize; 3] = [3, 2, 2];
const CLASSES: u32 = 4;

/// The options of the program.
#[derive(Parser, Clone, Debug)]
#[command(args_override_self = true)]
pub(crate) struct Args {
    #[command(flatten)]
    train: TrainArgs,

    /// The directory for what the test reads: the phases, the samples that were seen, the result
    #[arg(long)]
    notes: PathBuf,

    /// Without layers whose noise or statistics depend on the number of ranks
    #[arg(long)]
    plain: bool,

    #[arg(long, default_value_t = 24)]
    width: usize,

    /// The seed of the data
    #[arg(long, default_value_t = 3)]
    data: u64,

    /// Milliseconds to sleep after each step
    #[arg(long, default_value_t = 0)]
    slow: u64,

    /// Milliseconds to sleep in each batch of an evaluation
    #[arg(long, default_value_t = 0)]
    slow_evaluation: u64,

    /// Milliseconds to sleep before the files of a checkpoint are written
    #[arg(long, default_value_t = 0)]
    slow_write: u64,

    /// The rank that kills itself, the phase, and how often the rank has entered it then
    #[arg(long, num_args = 3, value_names = ["RANK", "PHASE", "COUNT"])]
    die: Vec<String>,
}

/// The options, if a test has started this process for the program.
pub(crate) fn args_of_process() -> Option<Args> {
    let text = std::env::var(ARGS).ok()?;
    Some(Args::parse_from(std::iter::once("program").chain(text.split_whitespace())))
}

/// Runs the launcher or a rank.
pub(crate) fn run(args: &Args) -> ! {
    let exit = run_ranks(&args.train, |world| train(args, world));
    // libtest would exit with a success if this test returned.
    let codes = [0, 129, 130, 143];
    let code = codes.into_iter().find(|code| exit == ExitCode::from(*code)).unwrap_or(1);
    std::process::exit(code.into());
}

struct Net {
    norm: Option<BatchNorm2d>,
    dropout: Option<Dropout>,
    hidden: Linear,
    out: Linear,
    params: Params,
    /// The samples of the last training batch.
    seen: Rc<RefCell<Vec<u32>>>,
    slow_evaluation: Duration,
}

impl Model for Net {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        let pixels = xs.flatten_from(1)?;
        if self.params.is_training() {
            let numbers = pixels.narrow(1, 0, 1)?.flatten_all()?.to_dtype(DType::F32)?;
            let numbers = numbers.to_vec1::<f32>()?;
            let mut seen = self.seen.borrow_mut();
            seen.extend(numbers.into_iter().map(|number| number as u32));
        } else {
            std::thread::sleep(self.slow_evaluation);
        }
        // The first pixel is the number of the sample.
        let xs = pixels.narrow(1, 1, 11)?.contiguous()?.pad_with_zeros(1, 0, 1)?;
        let xs = match &self.norm {
            Some(norm) => norm.forward(&xs.reshape(((), 3, 2, 2))?)?.flatten_from(1)?,
            None => xs,
        };
        let ys = self.hidden.forward(&xs)?;
        let ys = match &self.dropout {
            Some(dropout) => dropout.forward(&ys)?,
            None => ys,
        };
        self.out.forward(&ys)
    }
}

/// Writes down the samples of each step, and the result of each evaluation.
struct Witness {
    rank: usize,
    notes: PathBuf,
    seen: Rc<RefCell<Vec<u32>>>,
    slow: Duration,
}

impl Hook for Witness {
    fn name(&self) -> &str {
        "witness"
    }

    fn on_step_end(&mut self, run: &mut Run<'_, '_>) -> candelabrum::train::Result<Action> {
        let step = run.position.step - 1;
        let samples = std::mem::take(&mut *self.seen.borrow_mut());
        let samples = serde_json::to_string(&samples).unwrap();
        self.write("seen", format_args!("{step} {samples}"));
        std::thread::sleep(self.slow);
        Ok(Action::NOTHING)
    }

    fn on_evaluate(
        &mut self,
        run: &mut Run<'_, '_>,
        metrics: &Metrics,
    ) -> candelabrum::train::Result<Action> {
        let (position, loss) = (run.position, metrics.mean_loss());
        self.write("evaluations", format_args!("{position:?} {loss:?} {}", metrics.samples));
        Ok(Action::NOTHING)
    }
}

impl Witness {
    fn write(&self, what: &str, line: Arguments<'_>) {
        let path = self.notes.join(format!("{what}-{}", self.rank));
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(file, "{line}").unwrap();
    }
}

fn train(args: &Args, world: &World) -> anyhow::Result<()> {
    let death = match args.die.as_slice() {
        [rank, phase, count] if *rank == world.rank().to_string() => {
            Some(Place { phase: phase.clone(), count: count.parse()? })
        }
        _ => None,
    };
    let slow_write = Duration::from_millis(args.slow_write);
    Phases::start(&args.notes, world.rank(), death, slow_write);
    let data = samples(args.data)?;
    let params = args.train.precision.params(args.train.seed, world.device());
    let (scope, seen) = (params.root(), Rc::default());
    let model = Net {
        norm: (!args.plain).then(|| BatchNorm2d::new(&scope.pp("norm"))),
        dropout: (!args.plain).then(|| Dropout::new(&scope.pp("dropout"), 0.2)),
        hidden: Linear::new(&scope.pp("hidden"), args.width).activation(Activation::Tanh),
        out: Linear::new(&scope.pp("out"), CLASSES as usize),
        params: params.clone(),
        seen: Rc::clone(&seen),
        slow_evaluation: Duration::from_millis(args.slow_evaluation),
    };
    let opt = args.train.make_optimizer(&params, world)?;
    let mut trainer = Trainer::new(model, opt);
    let [channels, height, width] = SHAPE;
    trainer.compile((1, channels, height, width))?;
    seen.borrow_mut().clear();
    let (rank, notes, slow) = (world.rank(), args.notes.clone(), Duration::from_millis(args.slow));
    let witness = Witness { rank, notes, seen, slow };
    let fit = args.train.fit_on(world, "numbered samples", SAMPLES)?.hook(witness);
    trainer.fit_with(fit, &data, Some(&data))?;
    let digests = trainer.parameters_sha256()?;
    if world.is_root() {
        // The report has the epochs before the checkpoint, too.
        let report: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(args.notes.join("report"))?)?;
        let losses: Vec<_> =
            report["epochs"].as_array().unwrap().iter().map(|epoch| &epoch["train_loss"]).collect();
        let result = serde_json::json!({ "digests": digests, "losses": losses });
        fs::write(args.notes.join("result"), result.to_string())?;
    }
    Ok(())
}

/// Samples whose first pixel is their number.
fn samples(seed: u64) -> anyhow::Result<TensorDataset<(Tensor, Tensor)>> {
    let [channels, height, width] = SHAPE;
    let pixels = uniform((SAMPLES, channels * height * width - 1), seed, -1.0, 1.0, DType::F32)?;
    let numbers = Tensor::arange(0_f32, SAMPLES as f32, &Device::Cpu)?.reshape((SAMPLES, 1))?;
    let xs = Tensor::cat(&[&numbers, &pixels], 1)?.reshape((SAMPLES, channels, height, width))?;
    let labels: Vec<u32> = (0..SAMPLES as u32).map(|number| number * 7 % CLASSES).collect();
    Ok(TensorDataset::pair(xs, Tensor::new(labels, &Device::Cpu)?)?)
}
