//! A strategy of your own: random-K. At each step all ranks draw the same K positions of a bucket
//! from a shared seed, so only values are sent, and an all-reduce can average them.
//!
//! Stich et al., "Sparsified SGD with ErrorFeedback", NeurIPS 2018 (arXiv:1809.07599). The crate does the
//! error feedback, with the `ErrorFeedback` that `error_feedback` returns.
//!
//! ```text
//! cargo run --release --example custom_strategy -- --workers 2 --dist-option randomK --spars 0.05
//! ```

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to its user")]

use std::process::ExitCode;

use anyhow::Result;
use candelabrum::dist::strategy::select::count_of_share;
use candelabrum::dist::strategy::{Bucket, ErrorFeedback, Message, Strategy, register};
use candelabrum::dist::{Collective, Error, Payload, Result as DistResult};
use candelabrum::models::Cnn;
use candelabrum::prelude::*;
use candelabrum::train::cli::{TrainArgs, load_data, parse, run};
use clap::Parser;
use rand::SeedableRng;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Sends the share `spars` of each bucket, at random positions.
#[derive(Debug)]
struct RandomK {
    seed: u64,
    error_feedback: Option<ErrorFeedback>,
}

impl RandomK {
    fn new(config: &StrategyConfig) -> DistResult<Self> {
        config.options.only(&["seed"])?;
        let seed = config.options.get("seed", 0)?;
        Ok(Self { seed, error_feedback: config.corr.then(ErrorFeedback::default) })
    }

    /// The positions that every rank sends of this bucket at this step.
    fn positions(&self, bucket: &Bucket<'_>) -> Vec<usize> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(bucket.step << 20 | bucket.index as u64);
        index::sample(&mut rng, bucket.len(), count_of_share(bucket.spars, bucket.len())).into_vec()
    }
}

impl Strategy for RandomK {
    fn describe(&self) -> String {
        format!("randomK seed={}", self.seed)
    }

    fn check_spars(&self, spars: f32) -> DistResult<()> {
        let (setting, value, range) = ("spars", spars.to_string(), "above 0 and at most 1");
        let good = spars > 0.0 && spars <= 1.0;
        if good { Ok(()) } else { Err(Error::Setting { setting, value, range }) }
    }

    fn error_feedback(&mut self) -> Option<&mut ErrorFeedback> {
        self.error_feedback.as_mut()
    }

    /// Sends the values at the drawn positions and sets them to zero. The rest of `values` is the
    /// residual, which is kept for the next step.
    fn compress(&mut self, bucket: &Bucket<'_>, values: &mut [f32]) -> DistResult<Message> {
        let positions = self.positions(bucket);
        let sent: Vec<f32> = positions.iter().map(|&at| std::mem::take(&mut values[at])).collect();
        Ok(Message::new(Collective::AllReduce(ReduceOp::Mean), Payload::from_slice(&sent)))
    }

    fn aggregate(
        &mut self,
        bucket: &Bucket<'_>,
        received: Vec<Payload>,
        values: &mut [f32],
    ) -> DistResult<Option<Message>> {
        values.fill(0.0);
        for (at, mean) in self.positions(bucket).into_iter().zip(received[0].as_slice()?) {
            values[at] = *mean;
        }
        Ok(None)
    }
}

/// Train SINGA's convolutional network on MNIST with your own strategy
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
}

fn main() -> ExitCode {
    // Registers before the command line is parsed, so that the parser knows the name.
    if let Err(error) = register("randomK", |config| Ok(Box::new(RandomK::new(config)?))) {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    let args = parse::<Args>().train;
    run(&args, |world| train(&args, world))
}

fn train(args: &TrainArgs, world: &World) -> Result<()> {
    let data = load_data(args, world)?;
    let params = args.precision.params(args.seed, world.device());
    let model = Cnn::new(&params.root(), data.train.classes());
    let opt = args.make_optimizer(&params, world)?;
    let mut trainer = Trainer::new(model, opt);
    let [channels, height, width] = data.train.image_shape();
    trainer.compile((1, channels, height, width))?;
    let mut out = std::io::stdout();
    let fit = args.fit_on(world, data.name, data.train.len())?.output(&mut out);
    trainer.fit_with(fit, &args.augmented(&data.train), Some(&data.test))?;
    let residual = trainer.opt_mut().residual_norm();
    if world.is_root() {
        println!("still to be sent: a residual of norm {residual:.2}");
    }
    Ok(())
}
