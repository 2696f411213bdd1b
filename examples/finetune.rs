//! Weights of a safetensors file, by name, as the body of a model with a new head.
//!
//! ```text
//! cargo run --release --example finetune
//! cargo run --release --example finetune -- --weights body.safetensors --rename encoder=body --workers 2
//! ```
//!
//! The body is frozen: no gradient of it is computed, and none is sent. The head learns whether a digit is
//! odd. Without `--weights`, rank 0 first trains a model that knows all ten digits.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, ensure};
use candelabrum::candle;
use candelabrum::datasets::ImageDatasets;
use candelabrum::prelude::*;
use candelabrum::train::cli::{TrainArgs, load_data, parse, run};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Train a new head on a body from a file
#[derive(Parser)]
#[command(mut_arg("epochs", |epochs| epochs.default_value("3")))]
#[command(mut_arg("lr", |lr| lr.default_value("0.05")))]
struct Args {
    /// A safetensors file with the weights of the body [default: they are trained first]
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,

    /// Replaces FROM by TO in the names of the file; repeat the option for several
    #[arg(long, value_name = "FROM=TO", value_parser = parse_rename)]
    rename: Vec<(String, String)>,

    #[command(flatten)]
    train: TrainArgs,
}

struct Net([Linear; 3]);

impl Net {
    fn new(scope: &Scope, body: &str, classes: usize) -> Self {
        let body = scope.pp(body);
        let layer = |name, units| Linear::new(&body.pp(name), units).activation(Activation::Relu);
        let head = Linear::new(&scope.pp("head"), classes);
        Self([layer("hidden1", 128), layer("hidden2", 64), head])
    }
}

impl Model for Net {
    fn forward(&self, xs: &Tensor) -> candle::Result<Tensor> {
        self.0.iter().try_fold(xs.flatten_from(1)?, |xs, layer| layer.forward(&xs))
    }
}

fn main() -> ExitCode {
    let args = parse::<Args>();
    run(&args.train, |world| train(&args, world))
}

fn train(args: &Args, world: &World) -> Result<()> {
    let digits = load_data(&args.train, world)?;
    let (train, test) = (odd_or_even(&digits.train)?, odd_or_even(&digits.test)?);
    let params = args.train.precision.params(args.train.seed, world.device());
    let model = Net::new(&params.root(), "body", 2);
    let [channels, height, width] = train.image_shape();
    model.compile(&params, (1, channels, height, width))?;
    let mut out = io::stdout();
    if world.is_root() {
        let folder = tempfile::tempdir()?;
        let rename = |names: NameMap, (from, to): &(String, String)| names.rename(from, to);
        let names = args.rename.iter().fold(NameMap::new(), rename);
        let report = if let Some(path) = &args.weights {
            params.load_weights(path, &names)?
        } else {
            let path = folder.path().join("body.safetensors");
            train_body(&args.train, &digits, &path)?;
            params.load_weights(path, &names.rename("encoder", "body"))?
        };
        writeln!(out, "{report}")?;
        let is_body = |name: &String| name.starts_with("body.");
        ensure!(report.loaded.iter().any(is_body), "no weight of the body: try --rename FROM=TO");
    }
    let frozen = params.freeze(|name| name.starts_with("body."));
    // This sets the parameters of all ranks to those of rank 0.
    let mut trainer = Trainer::new(model, args.train.make_optimizer(&params, world)?);
    if world.is_root() {
        writeln!(out, "{frozen} of {} parameters are frozen\n", params.len())?;
    }
    let fit = args.train.fit_on(world, digits.name, train.len())?.output(&mut out);
    trainer.fit_with(fit, &train, Some(&test))?;
    Ok(())
}

/// Trains a model of all ten digits for an epoch, under other names.
fn train_body(args: &TrainArgs, digits: &ImageDatasets, path: &Path) -> Result<()> {
    let (params, world) = (Params::new(args.seed), World::single());
    let opt = DistOpt::new(Sgd::new(0.05).momentum(0.9), &params, &world)?;
    let mut trainer = Trainer::new(Net::new(&params.root(), "encoder", 10), opt);
    let config = FitConfig { epochs: 1, seed: args.seed, ..FitConfig::default() };
    trainer.fit(&digits.train, &digits.test, &config, &mut io::sink())?;
    Ok(params.save_weights(path)?)
}

/// The same images with label 1 for odd digits and 0 for even ones.
fn odd_or_even(digits: &ImageDataset) -> Result<ImageDataset> {
    let images = || (0..digits.len()).filter_map(|index| digits.get(index));
    let pixels: Vec<u8> = images().flat_map(|(image, _)| image.iter().copied()).collect();
    let labels: Vec<u32> = images().map(|(_, label)| label % 2).collect();
    Ok(ImageDataset::new(pixels, labels, digits.image_shape(), 2)?)
}

fn parse_rename(text: &str) -> Result<(String, String), &'static str> {
    let (from, to) = text.split_once('=').ok_or("it has the form FROM=TO")?;
    Ok((from.to_owned(), to.to_owned()))
}
