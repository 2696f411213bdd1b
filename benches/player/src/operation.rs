//! `bench-player operation`: the speed of one operation of a network, forward and backward.
//!
//! An operation on elements is judged by the bytes of its tensors per second, beside a copy of as many elements. A linear
//! layer is judged by the arithmetic of its three products per second, beside a linear layer of 1024 features.
//! `scripts/bench_operation.py` counts in the same way.

use std::hint::black_box;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use candelabrum::dist::World;
use candelabrum::memory::{ElementType, FlatTensor};
use candelabrum::nn::ops::{self, profile, set_product_precision};
use candelabrum::nn::{BucketPlan, FlatGradients, Init, Param, Params};
use candelabrum::train::cli::Precision;
use candle_core::{Result, Tensor};
use serde::Deserialize;
use serde_json::Value;

use crate::pace::{RankPace, Repeat, cpu_time};
use crate::serve::{RequestHandler, serve};

/// The features of the linear layer that other linear layers are judged by.
const FEATURES: usize = 1024;

#[derive(Debug, clap::Args)]
pub(crate) struct OperationArgs {
    /// Compute threads
    #[arg(long, default_value = "1")]
    pub(crate) threads: NonZeroUsize,
    /// The precision of products
    #[arg(long, default_value = "f32")]
    precision: Precision,
    /// Instead of the operation, what bounds its speed: a copy, or a linear layer of 1024 features
    #[arg(long)]
    limit: bool,
}

#[derive(Deserialize)]
pub(crate) struct OperationRequest {
    operation: String,
    #[serde(flatten)]
    repeat: Repeat,
}

/// Serves requests.
pub(crate) fn run(args: &OperationArgs, world: &World) -> anyhow::Result<()> {
    args.precision.check(world.device())?;
    set_product_precision(args.precision.products());
    serve(&mut OperationPlayer { limit: args.limit, last: None, pace: RankPace::new(world) }, world)
}

struct OperationPlayer {
    limit: bool,
    /// The last requested operation.
    last: Option<(String, MeasuredOperation)>,
    pace: RankPace,
}

impl RequestHandler for OperationPlayer {
    type Request = OperationRequest;

    fn sample(
        &mut self,
        OperationRequest { operation, repeat }: Self::Request,
    ) -> anyhow::Result<Value> {
        let Self { limit, last, pace } = self;
        let (_, measured) = match last {
            Some(last) if last.0 == operation => last,
            last => {
                let mut new = MeasuredOperation::parse(&operation, *limit)
                    .with_context(|| format!("there is no operation {operation}"))?;
                *pace = RankPace::new(&pace.world);
                for _ in 0..2 {
                    pace.run(Repeat::Steps(NonZeroU32::MIN), |steps| new.time(steps))?;
                }
                last.insert((operation, new))
            }
        };
        let cpu = cpu_time();
        let (timed, time) = pace.run(repeat, |steps| measured.time(steps))?;
        let seconds = time.as_secs_f64() / f64::from(timed.steps);
        let mut sample = timed.fields();
        sample["cpu_seconds"] = (cpu_time() - cpu).as_secs_f64().into();
        sample["step_seconds"] = seconds.into();
        sample["speed"] = (measured.work / seconds).into();
        Ok(sample)
    }
}

type Forward = fn(&[&Tensor]) -> Result<Tensor>;

fn layer_norm(xs: &[&Tensor]) -> Result<Tensor> {
    ops::layer_norm(xs[0], xs[1].dims(), Some(xs[1]), Some(xs[2]), 1e-5)
}

/// An operation with its inputs, whose gradients have memory of their own, as in a training.
struct MeasuredOperation {
    inputs: Vec<Param>,
    forward: Forward,
    /// `None` for a copy.
    gradients: Option<FlatGradients>,
    /// Bytes, or additions and multiplications, of the forward and the backward pass.
    work: f64,
}

impl MeasuredOperation {
    /// The operation of a text, such as `gelu:4096x1536` or `linear:4096x384x1536` (rows, inputs, outputs).
    fn parse(text: &str, limit: bool) -> anyhow::Result<Self> {
        let (name, sizes) = text.split_once(':').context("its sizes come after a colon")?;
        let sizes =
            sizes.split('x').map(str::parse).collect::<std::result::Result<Vec<usize>, _>>()?;
        let (shapes, forward, work): (_, Forward, f64) = match (name, &*sizes) {
            ("linear", &[rows, inputs, outputs]) => {
                let (k, n) = if limit { (FEATURES, FEATURES) } else { (inputs, outputs) };
                let work = 6.0 * (rows * k * n) as f64;
                (vec![vec![rows, k], vec![n, k]], |xs| ops::linear(xs[0], xs[1], None, None), work)
            }
            (_, &[rows, columns]) => {
                // A pass forward reads the input and writes the output. A pass backward reads the gradient of the output and what
                // was saved, and writes the gradient of the input.
                let bytes = |tensors: usize| (4 * tensors * rows * columns) as f64;
                let [all, row] = [vec![rows, columns], vec![columns]];
                match name {
                    _ if limit => (vec![all], |xs| xs[0].copy(), bytes(2)),
                    "relu" => (vec![all], |xs| ops::relu(xs[0]), bytes(5)),
                    "gelu" => (vec![all], |xs| ops::gelu(xs[0]), bytes(5)),
                    "silu" => (vec![all], |xs| ops::silu(xs[0]), bytes(5)),
                    "softmax" => (vec![all], |xs| ops::softmax(xs[0]), bytes(5)),
                    "layer-norm" => (vec![all, row.clone(), row], layer_norm, bytes(5)),
                    _ => bail!("there is gelu, layer-norm, linear, relu, silu and softmax"),
                }
            }
            _ => {
                bail!("an operation has rows and columns, a linear layer rows, inputs and outputs")
            }
        };
        let root = Params::new(0).root();
        let input = |(number, dims): (usize, Vec<usize>)| {
            root.param(&number.to_string(), dims, Init::Uniform { low: -1.0, high: 1.0 })
        };
        let inputs = shapes
            .into_iter()
            .enumerate()
            .map(input)
            .collect::<std::result::Result<Vec<_>, _>>()?;
        let gradients = (name == "linear" || !limit).then(|| gradients(&inputs)).transpose()?;
        Ok(Self { inputs, forward, gradients, work })
    }

    /// The time of so many passes.
    fn time(&mut self, steps: u32) -> anyhow::Result<Duration> {
        let mut time = Duration::ZERO;
        for _ in 0..steps {
            let inputs: Vec<&Tensor> = self.inputs.iter().map(Param::tensor).collect();
            let Some(gradients) = &mut self.gradients else {
                let start = Instant::now();
                black_box((self.forward)(&inputs)?);
                time += start.elapsed();
                continue;
            };
            gradients.clear();
            profile::start();
            // candle's gradient of the output is copied once, here in the operation behind the measured one.
            let output = ops::scale(&(self.forward)(&inputs)?, 1.0)?;
            gradients.backward(&output)?;
            let operations = profile::stop().operations.into_iter();
            let measured = operations.filter(|row| row.name != "scale");
            time += measured.map(|row| row.forward + row.backward).sum::<Duration>();
        }
        Ok(time)
    }
}

/// The gradients of all inputs, in one bucket.
fn gradients(inputs: &[Param]) -> Result<FlatGradients> {
    let mut plan = BucketPlan::default();
    for (number, input) in inputs.iter().enumerate() {
        plan.push(number, input.tensor().elem_count());
    }
    let bucket = FlatTensor::zeros(ElementType::F32, plan.len);
    FlatGradients::new(inputs.to_vec(), vec![plan], vec![bucket])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_speed_and_what_is_no_operation_is_refused() -> anyhow::Result<()> {
        let world = World::single();
        let sample = |operation: &str, limit| {
            let mut player = OperationPlayer { limit, last: None, pace: RankPace::new(&world) };
            let repeat = Repeat::Steps(NonZeroU32::MIN);
            player.sample(OperationRequest { operation: operation.to_owned(), repeat })
        };
        for operation in ["gelu", "layer-norm", "relu", "silu", "softmax"] {
            let speed = sample(&format!("{operation}:3x5"), false)?["speed"].as_f64();
            assert!(speed > Some(0.0), "{operation}");
        }
        for limit in [false, true] {
            assert!(sample("linear:3x5x2", limit)?["speed"].as_f64() > Some(0.0));
        }
        for unknown in ["gelu", "gelu:3", "gelu:3x5x2", "linear:3x5", "hat:3x5", "gelu:3x-5"] {
            let error = sample(unknown, false).expect_err("it is refused").to_string();
            assert_eq!(error, format!("there is no operation {unknown}"));
        }
        Ok(())
    }
}
