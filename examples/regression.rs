//! A regression on a table of text (CSV): any table of yours, or a small one whose relation is known.
//!
//! ```text
//! cargo run --release --example regression
//! cargo run --release --example regression -- --table houses.csv --target price --workers 2
//! cargo run --release --example regression -- --workers 2 --checkpoint-dir runs/table --epochs 10
//! cargo run --release --example regression -- --workers 2 --checkpoint-dir runs/table --epochs 30
//! ```
//!
//! The last command continues where the one before it ended, and trains 20 more epochs. The same
//! command again continues a run that was interrupted.
//!
//! Inputs and targets have mean 0 and deviation 1 in the training rows. So an `mse` of 0.02 means that the
//! model leaves 2% of the target's variance unexplained.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use candelabrum::candle;
use candelabrum::prelude::*;
use candelabrum::train::cli::{TrainArgs, parse, run};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Train a perceptron on a table of numbers
#[derive(Parser)]
#[command(mut_arg("lr", |lr| lr.default_value("0.02")))]
struct Args {
    /// A file of text whose first line has the names of the columns [default: a table that is made up]
    #[arg(long, value_name = "FILE", requires = "target")]
    table: Option<PathBuf>,

    /// The column to predict. All others are inputs [default: y, of the table that is made up]
    #[arg(long, value_name = "COLUMN", requires = "table")]
    target: Option<String>,

    /// The share of the rows that are for tests
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    test_share: f64,

    /// Units in each of two hidden layers
    #[arg(long, value_name = "N", default_value_t = 32)]
    hidden: usize,

    #[command(flatten)]
    train: TrainArgs,
}

struct Mlp {
    layers: [Linear; 3],
}

impl Model for Mlp {
    fn forward(&self, xs: &Tensor) -> candle::Result<Tensor> {
        self.layers.iter().try_fold(xs.clone(), |xs, layer| layer.forward(&xs))
    }

    /// The mean squared error.
    fn loss(&self, output: &Tensor, targets: &Tensor) -> candle::Result<Tensor> {
        (output - targets)?.to_dtype(DType::F32)?.sqr()?.mean_all()
    }
}

fn main() -> ExitCode {
    let args = parse::<Args>();
    run(&args.train, |world| train(&args, world))
}

/// y = 2a - b + 3ab, at 1,000 points that fill the square evenly.
fn made_up() -> String {
    let row = |i: u32| {
        let [a, b] = [0.754_878, 0.569_840].map(|step| f64::from(i) * step % 1.0);
        format!("{a:.4},{b:.4},{:.4}\n", 2.0 * a - b + 3.0 * a * b)
    };
    "a,b,y\n".to_owned() + &(0..1000).map(row).collect::<String>()
}

fn train(args: &Args, world: &World) -> Result<()> {
    let config = CsvConfig::numbers([args.target.as_deref().unwrap_or("y")]);
    let (table, name) = match &args.table {
        Some(path) => (CsvTable::open(path, &config)?, path.display().to_string()),
        None => (CsvTable::read(made_up().as_bytes(), "made up", &config)?, "made up".to_owned()),
    };
    let (split, _) = table.split(args.test_share, args.train.seed)?.standardized()?;
    let (split, units) = split.standardized_targets()?;

    let params = args.train.precision.params(args.train.seed, world.device());
    let root = params.root();
    let hidden = |name| Linear::new(&root.pp(name), args.hidden).activation(Activation::Tanh);
    let out = Linear::new(&root.pp("out"), 1);
    let model = Mlp { layers: [hidden("hidden1"), hidden("hidden2"), out] };
    let opt = args.train.make_optimizer(&params, world)?;
    let mut trainer = Trainer::new(model, opt).with_score(RegressionErrors);
    let summary = trainer.compile((1, table.inputs().len()))?;
    let mut out = io::stdout();
    if world.is_root() {
        let (train, test) = (split.train.len(), split.test.len());
        writeln!(out, "{name}: {train} training and {test} test rows\n{summary}\n")?;
    }

    let fit = args.train.fit_on(world, &name, split.train.len())?.output(&mut out);
    trainer.fit_with(fit, &split.train, Some(&split.test))?;

    trainer.eval();
    let [xs, ys] = [&split.test.tensors()[0], &split.test.tensors()[1]].map(|t| t.narrow(0, 0, 1));
    let xs = xs?.to_device(params.device())?.to_dtype(params.dtype())?;
    let output = trainer.model().forward(&xs)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
    if world.is_root() {
        let number = |ys: &Tensor| Ok::<_, anyhow::Error>(units.undo(ys)?.to_vec2::<f32>()?[0][0]);
        let (predicted, target) = (number(&output)?, number(&ys?)?);
        writeln!(out, "the first test row: predicted {predicted:.4}, target {target:.4}")?;
    }
    Ok(())
}
