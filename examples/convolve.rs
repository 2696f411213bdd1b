//! A kernel of your own beside candle: a picture is convolved with a filter, on a GPU or on the CPU.
//!
//! `convolve.cu` has the kernels, `convolve/op.rs` makes an operation of candle of them. The program
//! compares them with the convolution of [`candelabrum::nn::ops`], which is cuDNN on a GPU.
//!
//! ```text
//! cargo run --release --example convolve -- --filter sobel --output edges.png
//! cargo run --release --features cuda --example convolve -- --input photo.png --radius 8
//! ```

#![expect(clippy::print_stdout, reason = "an example talks to its user")]

#[path = "convolve/filters.rs"]
mod filters;
#[path = "convolve/op.rs"]
mod op;
#[path = "convolve/picture.rs"]
mod picture;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use candelabrum::candle::Result as CandleResult;
use candelabrum::dist::launch::DeviceChoice;
use candelabrum::nn::ops::{Conv2dConfig, conv2d};
use candelabrum::prelude::*;
use candelabrum::train::cli::{parse, run_ranks};
use clap::Parser;

use crate::filters::{Filters, Kind};
use crate::op::Convolve;
use crate::picture::Picture;

/// The largest difference between two contenders, as a share of the largest number.
const TOLERANCE: f64 = 1e-5;

/// The time of a sample. A contender that is faster is called several times.
const SAMPLE_SECONDS: f64 = 5e-3;

/// Convolve a picture with a filter, and compare the ways to do it
#[derive(Parser)]
struct Args {
    /// A PNG, grey or RGB, with or without alpha [default: a test picture]
    #[arg(long, value_name = "FILE.png")]
    input: Option<PathBuf>,

    /// Write the result to this PNG
    #[arg(long, value_name = "FILE.png")]
    output: Option<PathBuf>,

    /// What to do with the picture
    #[arg(long, value_enum, default_value_t)]
    filter: Kind,

    /// Pixels on each side of the middle of gaussian and box, 1 to 8 [default: 3]
    #[arg(long, value_name = "R")]
    radius: Option<usize>,

    /// auto (a GPU if there is one), cpu, cuda or cuda:N [default: $CANDELABRUM_DEVICE, or auto]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,

    /// Rounds of the measurement, in each of which every contender has a turn
    #[arg(long, value_name = "N", default_value = "5")]
    rounds: NonZeroUsize,
}

fn main() -> ExitCode {
    let args = parse::<Args>();
    run_ranks(None, None, args.device, |world| convolve(&args, world))
}

fn convolve(args: &Args, world: &World) -> Result<()> {
    let filters = Filters::new(args.filter, args.radius)?;
    let picture = args.input.as_ref().map_or_else(|| Ok(Picture::test()), |p| Picture::read(p))?;
    let xs = picture.planes(world.device())?;
    let contenders = contenders(&filters, world.device())?;
    let (ys, difference) = compare(&contenders, &xs)?;
    if let Some(path) = &args.output {
        picture.with_planes(&ys)?.write(path)?;
    }
    let (Picture { width, height, color, .. }, device) = (&picture, world.device_name());
    println!("{width} x {height} pixels ({color:?}) on {device}, {:?} filter", args.filter);
    println!("radius {}, {} rounds, medians:\n", filters.radius, args.rounds);
    println!("{:<16}{:>12}{:>12}", "", "ms", "x the first");
    for (name, seconds, ratio) in measure(&contenders, &xs, args.rounds.get())? {
        println!("{name:<16}{:>12.4}{ratio:>12.3}", 1e3 * seconds);
    }
    println!("\nlargest difference: {difference:.1e} of the largest number");
    Ok(())
}

/// A way to convolve planes (N, 1, H, W).
struct Contender {
    name: &'static str,
    run: Box<Run>,
}

type Run = dyn Fn(&Tensor) -> CandleResult<Tensor>;

fn contenders(filters: &Filters, device: &Device) -> CandleResult<Vec<Contender>> {
    let own = |name, tiled| -> CandleResult<Contender> {
        let op = Convolve::new(filters, tiled, device)?;
        let run = move |xs: &Tensor| xs.apply_op1_no_bwd(&op);
        Ok(Contender { name, run: Box::new(run) })
    };
    let (weight, padding) = (filters.tensor(device)?, (filters.radius, filters.radius));
    let config = Conv2dConfig { padding, ..Conv2dConfig::default() };
    let run = move |xs: &Tensor| conv2d(xs, &weight, None, config, None);
    let library = |name| Contender { name, run: Box::new(run) };
    Ok(if device.is_cuda() {
        vec![own("tiled kernel", true)?, own("untiled kernel", false)?, library("cuDNN")]
    } else {
        vec![own("direct loop", false)?, library("ops::conv2d")]
    })
}

/// The first contender's result, and the largest difference of another one from it, as a share of the
/// largest number. It must be small.
fn compare(contenders: &[Contender], xs: &Tensor) -> Result<(Tensor, f64)> {
    let numbers = |ys: &Tensor| ys.flatten_all()?.to_vec1::<f32>();
    let first = (contenders[0].run)(xs)?;
    let expected = numbers(&first)?;
    let largest = expected.iter().fold(0.0, |most: f32, y| most.max(y.abs()));
    let mut worst = 0.0_f64;
    for Contender { name, run } in &contenders[1..] {
        let ys = numbers(&run(xs)?)?;
        let difference = ys.iter().zip(&expected).fold(0.0, |most: f32, (y, expected)| {
            let difference = (y - expected).abs();
            if difference.is_nan() { f32::INFINITY } else { most.max(difference) }
        });
        let share = f64::from(difference) / f64::from(largest.max(f32::MIN_POSITIVE));
        ensure!(share <= TOLERANCE, "{name} differs from {} by {share:.1e}", contenders[0].name);
        worst = worst.max(share);
    }
    Ok((first, worst))
}

/// The median of each contender's seconds, and of the ratios to the first contender within a round.
fn measure(
    contenders: &[Contender],
    xs: &Tensor,
    rounds: usize,
) -> CandleResult<Vec<(&'static str, f64, f64)>> {
    let sample = |contender: &Contender, calls: usize| -> CandleResult<f64> {
        // A call only enqueues work on a GPU.
        xs.device().synchronize()?;
        let start = Instant::now();
        for _ in 0..calls {
            (contender.run)(xs)?;
        }
        xs.device().synchronize()?;
        Ok(start.elapsed().as_secs_f64() / calls as f64)
    };
    let calls = |contender| -> CandleResult<usize> {
        let calls = SAMPLE_SECONDS / sample(contender, 1)?;
        Ok(calls.clamp(1.0, 1000.0) as usize)
    };
    let calls: Vec<usize> = contenders.iter().map(calls).collect::<CandleResult<_>>()?;
    let mut seconds = vec![Vec::new(); contenders.len()];
    for _ in 0..rounds {
        for ((contender, &calls), seconds) in contenders.iter().zip(&calls).zip(&mut seconds) {
            seconds.push(sample(contender, calls)?);
        }
    }
    let result = |(contender, own): (&Contender, &Vec<f64>)| {
        let ratios = own.iter().zip(&seconds[0]).map(|(own, first)| own / first);
        (contender.name, median(own.clone()), median(ratios.collect()))
    };
    Ok(contenders.iter().zip(&seconds).map(result).collect())
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
