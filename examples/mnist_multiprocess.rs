//! SINGA's second way: the program itself makes the world and starts the ranks through the
//! library's API, without a launcher and without the shared options.
//!
//! ```text
//! cargo run --release --example mnist_multiprocess -- --world-size 2
//! ```

use std::io;
use std::path::PathBuf;

use anyhow::{Result, bail};
use candelabrum::datasets::{DataRequest, DatasetKind, Environment};
use candelabrum::dist::launch::{self, DeviceChoice, Launch, Outcome};
use candelabrum::models::Cnn;
use candelabrum::prelude::*;
use candelabrum::train::{DOWNLOAD_TIME, load_data, set_threads};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Train SINGA's convolutional network on several processes that this one starts
#[derive(Parser)]
struct Args {
    /// Number of ranks to start
    #[arg(long, default_value_t = 2)]
    world_size: usize,
    /// Directory of MNIST; without it $MNIST_DIR, the cache, a download, and then synthetic digits
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// auto, mnist, fashion-mnist, cifar10, cifar100 or synthetic
    #[arg(long, default_value_t = DatasetKind::Auto)]
    dataset: DatasetKind,
    /// Passes over the training data
    #[arg(long, default_value_t = 2)]
    epochs: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    // The ranks run this program too. Only ranks find a place in their environment.
    let place = Launch::detect_for(Some(args.world_size))?;
    if place.is_launched() {
        return run_rank(&args, place);
    }
    match launch::spawn(args.world_size, 1)? {
        Outcome::Success => Ok(()),
        Outcome::Failed(reason) | Outcome::Interrupted { message: reason, .. } => bail!(reason),
        outcome => bail!("the ranks did not finish: {outcome:?}"),
    }
}

/// The work of each process.
fn run_rank(args: &Args, place: Launch) -> Result<()> {
    set_threads(1)?;
    let world = World::launched(place, DeviceChoice::from_env()?)?;
    let result = train(args, &world);
    if let Err(error) = &result {
        // No rank should wait for a rank that failed.
        world.abort(&format!("{error:#}"));
    }
    result
}

fn train(args: &Args, world: &World) -> Result<()> {
    let data = load_data(
        &DataRequest {
            kind: args.dataset,
            data_dir: args.data_dir.clone(),
            environment: Environment::of_process(),
            download: Some(DOWNLOAD_TIME),
            ..DataRequest::default()
        },
        world,
    )?;
    let params = Params::on(0, DType::F32, world.device());
    let model = Cnn::new(&params.root(), data.train.classes());
    let opt = DistOpt::new(Sgd::new(0.005).momentum(0.9).weight_decay(1e-5), &params, world)?;
    let mut trainer = Trainer::new(model, opt);
    let [channels, height, width] = data.train.image_shape();
    trainer.compile((1, channels, height, width))?;
    let config = FitConfig { epochs: args.epochs, ..FitConfig::default() };
    trainer.fit(&data.train, &data.test, &config, &mut io::stdout())?;
    Ok(())
}
