//! ResNet on ImageNet, or on any other folder of images. Without a folder, on images that are made up.
//!
//! ```text
//! cargo run --release --example resnet_imagenet -- --network resnet18 --size 64 --workers 2
//! cargo run --release --example resnet_imagenet -- --workers 2 --data-dir imagenet --epochs 90 --accumulate 4
//! ```
//!
//! The folder has a folder `train` and a folder `val`, and each of these a folder of PNG or JPEG files for every class.
//! Images are cut, mirrored and scaled as for torchvision's weights.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use candelabrum::models::{ResNet18, ResNet50};
use candelabrum::prelude::*;
use candelabrum::train::cli::{TrainArgs, parse, run};
use clap::{Parser, ValueEnum};

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Train a ResNet on a folder of images
#[derive(Parser)]
#[command(mut_arg("epochs", |epochs| epochs.default_value("3")))]
#[command(mut_arg("batch_size", |size| size.default_value("32")))]
#[command(mut_arg("lr", |lr| lr.default_value("0.0125")))]
#[command(mut_arg("weight_decay", |decay| decay.default_value("0.0001")))]
struct Args {
    /// The network
    #[arg(long, value_enum, default_value_t)]
    network: Network,

    /// Height and width of the images in pixels
    #[arg(long, value_name = "PIXELS", default_value_t = 224)]
    size: usize,

    /// The number of images for training, where they are made up
    #[arg(long, value_name = "N", default_value_t = 256)]
    images: usize,

    #[command(flatten)]
    train: TrainArgs,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
#[value(rename_all = "lower")]
enum Network {
    ResNet18,
    #[default]
    ResNet50,
}

fn main() -> ExitCode {
    let args = parse::<Args>();
    run(&args.train, |world| match args.train.data_dir() {
        Some(dir) => on_folder(&args, world, dir),
        None => on_made_up_images(&args, world),
    })
}

fn on_folder(args: &Args, world: &World, dir: &Path) -> Result<()> {
    let pipeline = ImagePipeline::rgb([args.size; 2])?
        .resized(Resize::Shorter(args.size * 256 / 224))?
        .cropped(RandomResizedCrop::inception())?
        .scaled(Scaling::IMAGENET)?;
    let train = ImageFolder::open(dir.join("train"), pipeline.clone())?;
    let test = ImageFolder::open_with_classes(dir.join("val"), pipeline, train.classes())?;
    fit(args, world, "image folder", [&train, &test], train.classes().len())
}

fn on_made_up_images(args: &Args, world: &World) -> Result<()> {
    let train = made_up(args.images, 0, args.size)?;
    let test = made_up(args.images.div_ceil(4), args.images, args.size)?;
    fit(args, world, "made-up images", [&train, &test], CLASSES)
}

fn fit<D>(args: &Args, world: &World, name: &str, data: [&D; 2], classes: usize) -> Result<()>
where
    D: Dataset<Batch = Batch> + Clone,
{
    let ([train, test], size) = (data, args.size);
    let params = args.train.precision.params(args.train.seed, world.device());
    let model: Box<dyn Model> = match args.network {
        Network::ResNet18 => Box::new(ResNet18::new(&params.root(), classes)),
        Network::ResNet50 => Box::new(ResNet50::new(&params.root(), classes)),
    };
    let mut trainer = Trainer::new(model, args.train.make_optimizer(&params, world)?);
    let parameters = trainer.compile((1, 3, size, size))?.parameter_count();
    let mut out = io::stdout();
    if world.is_root() {
        let (train, test) = (train.len(), test.len());
        let classes = format!("{classes} classes, {size}×{size}");
        writeln!(out, "{name}: {train} training and {test} validation images of {classes}")?;
        writeln!(out, "{:?}: {parameters} parameters\n", args.network)?;
    }
    let fit = args.train.fit_on(world, name, train.len())?.output(&mut out);
    trainer.fit_with(fit, train, Some(test))?;
    Ok(())
}

const CLASSES: usize = 8;

/// Noise whose three colours are bright or dark by the bits of the class.
fn made_up(count: usize, first: usize, size: usize) -> Result<ImageDataset> {
    let pass = Pass::evaluation();
    let image = |sample: usize| {
        let (class, mut noise) = (sample % CLASSES, pass.rng(sample));
        let light = move |colour: usize| if class >> colour & 1 == 1 { 96 } else { 32 };
        let pixels = (0..3 * size * size).map(move |i| light(i / (size * size)) + noise.below(128));
        pixels.map(|pixel| pixel as u8)
    };
    let samples = first..first + count;
    let labels: Vec<u32> = samples.clone().map(|sample| (sample % CLASSES) as u32).collect();
    let pixels: Vec<u8> = samples.flat_map(image).collect();
    Ok(ImageDataset::new(pixels, labels, [3, size, size], CLASSES)?)
}
