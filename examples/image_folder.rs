//! A network of your own on your own images: a folder with a folder of PNG or JPEG files for each class.
//!
//! ```text
//! cargo run --release --example image_folder
//! cargo run --release --example image_folder -- --data-dir photos --size 64 --workers 2
//! ```
//!
//! A tenth of the images is for tests. In training an image is shifted and mirrored at random. Without a folder, there
//! are drawn discs, squares and crosses.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use candelabrum::candle;
use candelabrum::prelude::*;
use candelabrum::train::cli::{TrainArgs, parse, run};
use clap::Parser;

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Train a network on a folder of images
#[derive(Parser)]
#[command(mut_arg("optimizer", |name| name.default_value("adam")))]
#[command(mut_arg("batch_size", |size| size.default_value("16")))]
#[command(mut_arg("lr", |lr| lr.default_value("0.003")))]
struct Args {
    /// Height and width to which the largest square in the center of an image is resized
    #[arg(long, value_name = "PIXELS", default_value_t = 32)]
    size: usize,

    #[command(flatten)]
    train: TrainArgs,
}

/// Convolutions that halve the image, each with a normalisation, and a linear layer on the means of the channels.
struct Net {
    convolutions: Vec<(Conv2d, BatchNorm2d)>,
    linear: Linear,
}

impl Net {
    fn new(scope: &Scope, classes: usize) -> Self {
        let convolution = |(number, channels): (usize, usize)| {
            let conv = Conv2d::new(&scope.pp(format!("conv{number}")), channels, 3);
            let norm = BatchNorm2d::new(&scope.pp(format!("norm{number}")));
            (conv.stride(2).padding(1).no_bias(), norm.activation(Activation::Relu))
        };
        Self {
            convolutions: (1..).zip([16, 32, 64]).map(convolution).collect(),
            linear: Linear::new(&scope.pp("linear"), classes),
        }
    }
}

impl Model for Net {
    /// (N, 3, H, W) -> (N, classes)
    fn forward(&self, xs: &Tensor) -> candle::Result<Tensor> {
        let mut ys = xs.clone();
        for (conv, norm) in &self.convolutions {
            ys = norm.forward(&conv.forward(&ys)?)?;
        }
        self.linear.forward(&GlobalAvgPool.forward(&ys)?)
    }
}

fn main() -> ExitCode {
    let args = parse::<Args>();
    run(&args.train, |world| train(&args, world))
}

fn train(args: &Args, world: &World) -> Result<()> {
    let drawn = tempfile::tempdir()?;
    let folder = args.train.data_dir();
    if folder.is_none() {
        draw(drawn.path())?;
    }
    let pipeline = ImagePipeline::rgb([args.size; 2])?.augmented(Augmentation::singa());
    let images = ImageFolder::open(folder.unwrap_or(drawn.path()), pipeline)?;
    let classes = images.classes().join(", ");
    let params = args.train.precision.params(args.train.seed, world.device());
    let model = Net::new(&params.root(), images.classes().len());
    let (train, test) = Subset::random_split(images, 0.1, args.train.seed)?;
    let mut trainer = Trainer::new(model, args.train.make_optimizer(&params, world)?);
    let summary = trainer.compile((1, 3, args.size, args.size))?;
    let mut out = io::stdout();
    if world.is_root() {
        let (train, test) = (train.len(), test.len());
        writeln!(out, "{train} training and {test} test images of {classes}\n{summary}\n")?;
    }
    let fit = args.train.fit_on(world, "images", train.len())?.output(&mut out);
    trainer.fit_with(fit, &train, Some(&test))?;
    Ok(())
}

/// 100 white shapes of each class on gray, at places and in sizes that differ.
fn draw(folder: &Path) -> Result<()> {
    type Shape = fn(i32, i32, i32) -> bool;
    let shapes: [(&str, Shape); 3] = [
        ("disc", |x, y, radius| x * x + y * y <= radius * radius),
        ("square", |x, y, radius| x.abs().max(y.abs()) <= radius),
        ("cross", |x, y, radius| x.abs().min(y.abs()) <= 1 && x.abs().max(y.abs()) <= radius),
    ];
    for (class, is_inside) in shapes {
        fs::create_dir(folder.join(class))?;
        for number in 0..100 {
            let (radius, x, y) = (5 + number % 4, 11 + number / 4 % 5 * 2, 11 + number / 20 * 2);
            let inside = |place: i32| is_inside(place % 32 - x, place / 32 - y, radius);
            let pixels = (0..32 * 32).map(|place| if inside(place) { 255 } else { 64 });
            let pixels: Vec<u8> = pixels.collect();
            let file = File::create(folder.join(class).join(format!("{number}.png")))?;
            png::Encoder::new(file, 32, 32).write_header()?.write_image_data(&pixels)?;
        }
    }
    Ok(())
}
