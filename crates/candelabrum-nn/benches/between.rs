//! Rearrangements and arithmetic between fused operations: ours against candle's, forward and backward.
//!
//! ```text
//! RAYON_NUM_THREADS=1 cargo bench -p candelabrum-nn --bench between
//! ```
//!
//! Each step is a fused operation, the operation that is measured, and a consumer: candle's `sqr` or
//! our `relu`. Both contenders have the same surroundings, which are part of their times, so the ratio
//! of the operations alone is larger. The contenders take turns, and a ratio is the median of the ratios
//! within rounds.

#![expect(clippy::unwrap_used, reason = "a bench has nobody to hand an error to")]
#![expect(clippy::print_stdout, reason = "a benchmark's results are what it prints")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use candelabrum_nn::ops;
use candelabrum_testkit::uniform;
use candle_core::{D, DType, Device, Result, Tensor, Var};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 31;
/// Batch, tokens, width, heads.
const SIZES: [usize; 4] = [16, 64, 128, 4];

fn variable(shape: &[usize], seed: u64) -> Tensor {
    let values = uniform(shape, seed, -1.0, 1.0, DType::F32).unwrap();
    Var::from_tensor(&values).unwrap().into_inner()
}

/// Whose operation is measured, and whose uses the result.
#[derive(Clone, Copy)]
struct By {
    ours: bool,
    then_ours: bool,
}

type Step = Box<dyn Fn(By) -> Result<Vec<Tensor>>>;

fn cases() -> Vec<(&'static str, Step)> {
    let [n, t, c, h] = SIZES;
    let wide = variable(&[n, t, 3 * c], 1);
    let xs = variable(&[n, t, c], 2);
    let scores = variable(&[n, h, t, t], 3);
    let (row, positions) = (variable(&[c], 4), variable(&[t, c], 5));
    let future: Vec<u8> = (0..t * t).map(|i| u8::from(i % t > i / t)).collect();
    let mask = Tensor::from_vec(future, (t, t), &Device::Cpu).unwrap();
    let source = |xs: &Tensor| {
        let xs = xs.clone();
        move || ops::scale(&xs, 1.5)
    };
    let (wide, heads, columns, parts) = (source(&wide), source(&xs), source(&xs), source(&xs));
    let (biased, placed, gained, scaled) = (source(&xs), source(&xs), source(&xs), source(&scores));
    let (masked, reshaped) = (source(&scores), source(&xs));
    let gain = row.clone();
    vec![
        (
            "split in three",
            Box::new(move |by| {
                let xs = wide()?;
                if by.ours {
                    ops::split(&xs, &[c, c, c], D::Minus1)
                } else {
                    xs.chunk(3, D::Minus1)
                }
            }),
        ),
        (
            "transpose of heads",
            Box::new(move |by| {
                let xs = heads()?.reshape((n, t, h, c / h))?;
                Ok(vec![if by.ours { ops::transpose(&xs, 1, 2)? } else { xs.transpose(1, 2)? }])
            }),
        ),
        (
            "transpose of a matrix",
            Box::new(move |by| {
                let xs = columns()?;
                Ok(vec![if by.ours { ops::transpose(&xs, 1, 2)? } else { xs.transpose(1, 2)? }])
            }),
        ),
        (
            "reshape (candle's in both)",
            Box::new(move |_| Ok(vec![reshaped()?.reshape((n * t, c))?])),
        ),
        (
            "cat of two",
            Box::new(move |by| {
                let xs = parts()?;
                let both = [&xs, &xs];
                Ok(vec![if by.ours { ops::cat(&both, 1)? } else { Tensor::cat(&both, 1)? }])
            }),
        ),
        (
            "add a row",
            Box::new(move |by| {
                let xs = biased()?;
                let ys = if by.ours { ops::add(&xs, &row, None) } else { xs.broadcast_add(&row) };
                Ok(vec![ys?])
            }),
        ),
        (
            "add positions",
            Box::new(move |by| {
                let (xs, ys) = (placed()?, &positions);
                Ok(vec![if by.ours { ops::add(&xs, ys, None) } else { xs.broadcast_add(ys) }?])
            }),
        ),
        (
            "multiply by a row",
            Box::new(move |by| {
                let xs = gained()?;
                Ok(vec![if by.ours { ops::mul(&xs, &gain) } else { xs.broadcast_mul(&gain) }?])
            }),
        ),
        (
            "scale",
            Box::new(move |by| {
                let xs = scaled()?;
                Ok(vec![if by.ours { ops::scale(&xs, 0.2) } else { xs.affine(0.2, 0.0) }?])
            }),
        ),
        (
            "causal mask",
            Box::new(move |by| {
                let (xs, low) = (masked()?, -1e9);
                Ok(vec![if by.ours {
                    ops::masked_fill(&xs, &mask, low)?
                } else {
                    let fill = Tensor::full(low as f32, xs.shape(), xs.device())?;
                    mask.broadcast_as(xs.shape())?.where_cond(&fill, &xs)?
                }])
            }),
        ),
    ]
}

/// Forward and backward of the operation and its surroundings.
fn step(case: &Step, by: By) -> Duration {
    let start = Instant::now();
    let run = || -> Result<()> {
        let mut losses = Vec::new();
        for part in case(by)? {
            let part = if by.then_ours { ops::relu(&part)? } else { part.sqr()? };
            losses.push(part.sum_all()?);
        }
        black_box(Tensor::stack(&losses, 0)?.sum_all()?.backward()?);
        Ok(())
    };
    run().unwrap();
    start.elapsed()
}

fn median<T: Copy + PartialOrd>(mut values: Vec<T>) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).unwrap());
    values[values.len() / 2]
}

fn main() {
    println!("N, T, C, heads = {SIZES:?}; f32; {} threads", rayon_threads());
    println!("{:28} {:>8} {:>9} {:>9} {:>7}", "operation", "then", "ours µs", "candle µs", "ratio");
    for (name, case) in cases() {
        for then_ours in [false, true] {
            let of = |ours| step(&case, By { ours, then_ours });
            for _ in 0..5 {
                black_box([of(true), of(false)]);
            }
            let rounds: Vec<[f64; 2]> = (0..ROUNDS)
                .map(|_| [of(true), of(false)].map(|time| 1e6 * time.as_secs_f64()))
                .collect();
            let ours = median(rounds.iter().map(|round| round[0]).collect());
            let candles = median(rounds.iter().map(|round| round[1]).collect());
            let ratio = median(rounds.iter().map(|round| round[1] / round[0]).collect());
            let then = if then_ours { "ours" } else { "candle's" };
            println!("{name:28} {then:>8} {ours:>9.0} {candles:>9.0} {ratio:>7.2}");
        }
    }
}

fn rayon_threads() -> String {
    std::env::var("RAYON_NUM_THREADS").unwrap_or_else(|_| "all".to_owned())
}
