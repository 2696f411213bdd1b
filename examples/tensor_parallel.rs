//! Tensor parallelism after Megatron (Shoeybi et al., 2019, arXiv:1909.08053). The two layers of an
//! MLP block are split over the ranks and compared with the whole block.
//!
//! Rank `r` of N has 1/N of the hidden features. The first layer computes only these features (its
//! weight is split by outputs: *column parallel*). The activation needs no communication. The
//! second layer computes from these features a part of every output (its weight is split by inputs:
//! *row parallel*). One all-reduce adds up the parts in the forward pass, and one in the backward
//! pass. The hidden features themselves are never sent.
//!
//! ```text
//! cargo run --release --example tensor_parallel -- --workers 2
//! mpiexec --bind-to none -n 2 cargo run --release --example tensor_parallel
//! ```

#![expect(clippy::print_stdout, reason = "an example talks to its user")]

use anyhow::{Result, bail, ensure};
use candelabrum::candle::{Result as CandleResult, Var};
use candelabrum::dist::launch::{self, DeviceChoice, Launch, Outcome};
use candelabrum::dist::{Group, ops};
use candelabrum::nn::ops::linear;
use candelabrum::nn::{Init, Param};
use candelabrum::prelude::*;
use clap::Parser;

const BATCH: usize = 16;
const FEATURES: usize = 64;
/// Features between the layers. Each rank has a part of them.
const HIDDEN: usize = 240;

/// Split the two linear layers of an MLP block over ranks
#[derive(Parser)]
struct Args {
    /// Number of ranks to start
    #[arg(long, default_value_t = 2)]
    workers: usize,
}

/// A linear layer with some outputs of a whole layer. The result stays split.
struct ColumnParallelLinear {
    weight: Var, // (hidden / N, features)
    bias: Var,   // (hidden / N)
    group: Group,
}

impl ColumnParallelLinear {
    fn part_of(weight: &Param, bias: &Param, group: &Group) -> CandleResult<Self> {
        let [weight, bias] = [weight, bias].map(|whole| own_part(whole.tensor(), 0, group));
        Ok(Self { weight: weight?, bias: bias?, group: group.clone() })
    }
}

impl Module for ColumnParallelLinear {
    fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        // Every rank has all of xs. Backward: each rank adds its share to the gradient of xs.
        let xs = ops::copy_to_group(xs, &self.group)?;
        linear(&xs, &self.weight, Some(&self.bias), Some(Activation::Gelu))
    }
}

/// A linear layer with some inputs of a whole layer. The inputs are already split.
struct RowParallelLinear {
    weight: Var, // (features, hidden / N)
    bias: Var,   // (features), on every rank
    group: Group,
}

impl RowParallelLinear {
    fn part_of(weight: &Param, bias: &Param, group: &Group) -> CandleResult<Self> {
        let weight = own_part(weight.tensor(), 1, group)?;
        Ok(Self { weight, bias: Var::from_tensor(bias.tensor())?, group: group.clone() })
    }
}

impl Module for RowParallelLinear {
    fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        let part = linear(xs, &self.weight, None, None)?;
        // The bias is added after the sum, because otherwise it would be added N times.
        ops::reduce_from_group(&part, &self.group)?.broadcast_add(&self.bias)
    }
}

/// This rank's part of a tensor that is split along `dim`.
fn own_part(whole: &Tensor, dim: usize, group: &Group) -> CandleResult<Var> {
    let len = whole.dim(dim)? / group.world_size();
    Var::from_tensor(&whole.detach().narrow(dim, group.rank() * len, len)?.contiguous()?)
}

fn largest_difference(a: &Tensor, b: &Tensor) -> CandleResult<f32> {
    (a - b)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}

fn main() -> Result<()> {
    let args = Args::parse();
    // The ranks run this program too. Only ranks find a place in their environment.
    let place = Launch::detect_for(Some(args.workers))?;
    let ranks = if place.is_launched() { place.world_size } else { args.workers };
    ensure!(HIDDEN.is_multiple_of(ranks), "{HIDDEN} features do not divide by {ranks} ranks");
    if place.is_launched() || ranks == 1 {
        let world = World::launched(place, DeviceChoice::from_env()?)?;
        // No rank should wait for a rank that failed.
        return compare(&world).inspect_err(|error| world.abort(&format!("{error:#}")));
    }
    match launch::spawn(ranks, 1)? {
        Outcome::Success => Ok(()),
        Outcome::Failed(reason) | Outcome::Interrupted { message: reason, .. } => bail!(reason),
        outcome => bail!("the ranks did not finish: {outcome:?}"),
    }
}

fn compare(world: &World) -> Result<()> {
    let group = world.group();
    // The whole layers. They are seeded, so they are the same on every rank.
    let params = Params::on(0, DType::F32, world.device());
    let scope = params.root();
    let normal = Init::Normal { std: 0.1 };
    let (w1, b1) =
        (scope.param("w1", (HIDDEN, FEATURES), normal)?, scope.param("b1", HIDDEN, normal)?);
    let (w2, b2) =
        (scope.param("w2", (FEATURES, HIDDEN), normal)?, scope.param("b2", FEATURES, normal)?);
    let xs = scope.param("xs", (BATCH, FEATURES), Init::Normal { std: 1.0 })?;

    let ys = linear(xs.tensor(), w1.tensor(), Some(b1.tensor()), Some(Activation::Gelu))?;
    let ys = linear(&ys, w2.tensor(), Some(b2.tensor()), None)?;
    let loss = ys.sqr()?.mean_all()?;
    let grads = loss.backward()?;

    let first = ColumnParallelLinear::part_of(&w1, &b1, &group)?;
    let second = RowParallelLinear::part_of(&w2, &b2, &group)?;
    let split_xs = Var::from_tensor(xs.tensor())?;
    let split_ys = second.forward(&first.forward(&split_xs)?)?;
    let split_loss = split_ys.sqr()?.mean_all()?; // the same on every rank
    let split_grads = split_loss.backward()?;

    let mut worst = [largest_difference(&split_ys, &ys)?];
    worst[0] = worst[0].max(largest_difference(&split_loss, &loss)?);
    let pairs: [(&Var, &Param, Option<usize>); 5] = [
        (&first.weight, &w1, Some(0)),
        (&first.bias, &b1, Some(0)),
        (&second.weight, &w2, Some(1)),
        (&second.bias, &b2, None),
        (&split_xs, &xs, None),
    ];
    for (split, whole, dim) in pairs {
        let (Some(own), Some(all)) = (split_grads.get(split), grads.get(whole.tensor())) else {
            bail!("no gradient of `{}`", whole.name())
        };
        let all = match dim {
            Some(dim) => own_part(all, dim, &group)?.as_detached_tensor(),
            None => all.clone(),
        };
        worst[0] = worst[0].max(largest_difference(own, &all)?);
    }
    world.comm().all_reduce(&mut worst, ReduceOp::Max)?;
    if world.is_root() {
        let all = w1.var().elem_count() + w2.var().elem_count();
        let own = first.weight.elem_count() + second.weight.elem_count();
        println!("{} rank(s), each with {own} of {all} weights", group.world_size());
        println!(
            "loss {:.6}, not split {:.6}",
            split_loss.to_scalar::<f32>()?,
            loss.to_scalar::<f32>()?
        );
        println!("largest difference of results and gradients: {:.9}", worst[0]);
    }
    Ok(())
}
