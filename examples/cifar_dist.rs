//! SINGA's networks on CIFAR-10 or CIFAR-100: alone, with `--workers N`, under mpiexec, srun or torchrun.
//!
//! ```text
//! cargo run --release --example cifar_dist -- --network resnet18 --workers 2
//! cargo run --release --example cifar_dist -- --network vgg11 --classes 100 --data-dir cifar
//! ```
//!
//! Images are changed at random as SINGA changes them (`--augment singa`). Where there are no files and no network,
//! the images are synthetic digits in color.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Result, bail};
use candelabrum::datasets::{DataRequest, ImageSet};
use candelabrum::models::{
    AlexNet, Cnn, LeNet, Mlp, MobileNetV2, ResNet18, ResNet34, ResNet50, ResNet101, ResNet152,
    Stem, Vgg, VggConfig, VggDepth, Vit, VitConfig, Xception,
};
use candelabrum::prelude::*;
use candelabrum::train::cli::{TrainArgs, parse, run};
use candelabrum::train::load_data;
use clap::{Parser, ValueEnum};

#[global_allocator]
static ALLOCATOR: CountedHeap<mimalloc::MiMalloc> = CountedHeap(mimalloc::MiMalloc);

/// Train a network on CIFAR
#[derive(Parser)]
#[command(mut_arg("augment", |augment| augment.default_value("singa")))]
struct Args {
    /// The network
    #[arg(long, value_enum, default_value_t)]
    network: Network,

    /// 10 or 100: the classes of CIFAR-10 or CIFAR-100
    #[arg(long, value_name = "N", default_value_t = 10)]
    classes: usize,

    #[command(flatten)]
    train: TrainArgs,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
#[value(rename_all = "lower")]
enum Network {
    Mlp,
    #[default]
    Cnn,
    LeNet,
    AlexNet,
    Vgg11,
    Vgg16,
    ResNet18,
    ResNet34,
    ResNet50,
    ResNet101,
    ResNet152,
    MobileNetV2,
    Xception,
    Vit,
}

impl Network {
    /// The model for images of 32×32. ResNets keep the size in their first convolution.
    fn model(self, scope: &Scope, classes: usize) -> Box<dyn Model> {
        let vgg = |depth| {
            let config = VggConfig { batch_norm: true, units: 512, ..VggConfig::new(depth) };
            Box::new(Vgg::new(scope, classes, config))
        };
        match self {
            Self::Mlp => Box::new(Mlp::new(scope, classes)),
            Self::Cnn => Box::new(Cnn::new(scope, classes)),
            Self::LeNet => Box::new(LeNet::new(scope, classes)),
            Self::AlexNet => Box::new(AlexNet::new(scope, classes)),
            Self::Vgg11 => vgg(VggDepth::Vgg11),
            Self::Vgg16 => vgg(VggDepth::Vgg16),
            Self::ResNet18 => Box::new(ResNet18::with_stem(scope, classes, Stem::Small)),
            Self::ResNet34 => Box::new(ResNet34::with_stem(scope, classes, Stem::Small)),
            Self::ResNet50 => Box::new(ResNet50::with_stem(scope, classes, Stem::Small)),
            Self::ResNet101 => Box::new(ResNet101::with_stem(scope, classes, Stem::Small)),
            Self::ResNet152 => Box::new(ResNet152::with_stem(scope, classes, Stem::Small)),
            Self::MobileNetV2 => Box::new(MobileNetV2::new(scope, classes)),
            Self::Xception => Box::new(Xception::new(scope, classes)),
            Self::Vit => Box::new(Vit::new(scope, classes, VitConfig::tiny_4())),
        }
    }
}

fn main() -> ExitCode {
    let args = parse::<Args>();
    run(&args.train, |world| train(&args, world))
}

fn train(args: &Args, world: &World) -> Result<()> {
    let set = match args.classes {
        10 => ImageSet::Cifar10,
        100 => ImageSet::Cifar100,
        classes => bail!("--classes {classes}: CIFAR has 10 or 100"),
    };
    let data = load_data(&DataRequest { set, ..args.train.data_request() }, world)?;
    let params = args.train.precision.params(args.train.seed, world.device());
    let model = args.network.model(&params.root(), data.train.classes());
    let mut trainer = Trainer::new(model, args.train.make_optimizer(&params, world)?);

    let [channels, height, width] = data.train.image_shape();
    let parameters = trainer.compile((1, channels, height, width))?.parameter_count();
    let dropped = args.train.sampler(world, data.train.len())?.dropped_per_epoch();
    let mut out = io::stdout();
    if world.is_root() {
        let (train, test) = (data.train.len(), data.test.len());
        writeln!(out, "{}: {train} training and {test} test images", data.name)?;
        writeln!(out, "{:?}: {parameters} parameters\n", args.network)?;
    }
    let fit = args.train.fit(args.train.report(world, &data, dropped)).output(&mut out);
    trainer.fit_with(fit, &args.train.augmented(&data.train), Some(&data.test))?;
    Ok(())
}
