//! Data parallelism times tensor parallelism. A pair of layers is split over the ranks of a *tensor
//! group*. The ranks with the same part are replicas, which form a *data group*. The result is
//! compared with one process that trains the whole layers on all the data.
//!
//! ```text
//!                 tensor group 0     tensor group 1
//! part 0          rank 0             rank 2             data group 0
//! part 1          rank 1             rank 3             data group 1
//! batch           first half         second half
//! ```
//!
//! Within a tensor group every rank has the same batch and a part of each layer (see
//! `tensor_parallel.rs`). Two all-reduces per step make results and gradients complete. `DistOpt`
//! over the data group averages the gradients of a part over the batches, in buckets that are sent
//! during the backward pass.
//!
//! ```text
//! cargo run --release --example hybrid_parallel                  # 2 x 2 ranks
//! cargo run --release --example hybrid_parallel -- --workers 6 --tensor 3
//! mpiexec --bind-to none -n 4 cargo run --release --example hybrid_parallel
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

const FEATURES: usize = 32;
/// Features between the layers. Each rank of a tensor group has a part of them.
const HIDDEN: usize = 120;
/// Examples of a step. Each tensor group has a part of them.
const BATCH: usize = 48;
const STEPS: usize = 30;
/// The largest difference of a parameter that rounding may cause.
const TOLERANCE: f32 = 1e-6;

/// Train a split model on split data
#[derive(Parser)]
struct Args {
    /// Number of ranks to start
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Number of ranks that share a model
    #[arg(long, default_value_t = 2)]
    tensor: usize,
}

/// Two linear layers, or one rank's part of them. The first is split by outputs (column parallel),
/// the second by inputs (row parallel).
struct Mlp {
    w1: Var, // (hidden / T, features)
    b1: Var, // (hidden / T)
    w2: Var, // (features, hidden / T)
    b2: Var, // (features), on every rank
    /// The ranks with the other parts. `None` if this rank has all parts.
    tensor: Option<Group>,
}

impl Mlp {
    /// The whole layers. They are seeded, so they are the same on every rank.
    fn whole(device: &Device) -> Result<Self> {
        let params = Params::on(0, DType::F32, device);
        let make = |name: &str, shape: &[usize]| -> Result<Var> {
            let param: Param = params.root().param(name, shape, Init::Normal { std: 0.1 })?;
            Ok(param.var().clone())
        };
        let (w1, b1) = (make("w1", &[HIDDEN, FEATURES])?, make("b1", &[HIDDEN])?);
        let (w2, b2) = (make("w2", &[FEATURES, HIDDEN])?, make("b2", &[FEATURES])?);
        Ok(Self { w1, b1, w2, b2, tensor: None })
    }

    /// This rank's part of the layers.
    fn part(&self, group: &Group) -> CandleResult<Self> {
        Ok(Self {
            w1: own_part(&self.w1, 0, group)?,
            b1: own_part(&self.b1, 0, group)?,
            w2: own_part(&self.w2, 1, group)?,
            b2: Var::from_tensor(&self.b2.copy()?)?,
            tensor: Some(group.clone()),
        })
    }

    fn params(&self) -> Result<Params> {
        let vars = [("w1", &self.w1), ("b1", &self.b1), ("w2", &self.w2), ("b2", &self.b2)];
        Ok(Params::from_vars(vars.map(|(name, var)| (name, var.clone())))?)
    }
}

impl Module for Mlp {
    fn forward(&self, xs: &Tensor) -> CandleResult<Tensor> {
        let Some(group) = &self.tensor else {
            let hidden = linear(xs, &self.w1, Some(&self.b1), Some(Activation::Gelu))?;
            return linear(&hidden, &self.w2, Some(&self.b2), None);
        };
        let xs = ops::copy_to_group(xs, group)?;
        let hidden = linear(&xs, &self.w1, Some(&self.b1), Some(Activation::Gelu))?;
        let part = linear(&hidden, &self.w2, None, None)?;
        // The bias is added after the sum, because otherwise it would be added once per rank.
        ops::reduce_from_group(&part, group)?.broadcast_add(&self.b2)
    }
}

/// This rank's part of a tensor that is split along `dim`.
fn own_part(whole: &Tensor, dim: usize, group: &Group) -> CandleResult<Var> {
    let len = whole.dim(dim)? / group.world_size();
    Var::from_tensor(&whole.detach().narrow(dim, group.rank() * len, len)?.contiguous()?)
}

/// All examples of a step, whose targets depend on the inputs. They are the same on every rank.
fn examples(step: usize, device: &Device) -> CandleResult<(Tensor, Tensor)> {
    let count = (BATCH * FEATURES) as f32;
    let xs = Tensor::arange(0_f32, count, device)?.affine(0.37, step as f64)?.sin()?;
    let xs = xs.reshape((BATCH, FEATURES))?;
    let ys = xs.sqr()?;
    Ok((xs, ys))
}

fn loss(model: &Mlp, xs: &Tensor, ys: &Tensor) -> CandleResult<Tensor> {
    (model.forward(xs)? - ys)?.sqr()?.mean_all()
}

fn sgd() -> Sgd {
    Sgd::new(0.2).momentum(0.9)
}

fn main() -> Result<()> {
    let args = Args::parse();
    // The ranks run this program too. Only ranks find a place in their environment.
    let place = Launch::detect_for(Some(args.workers))?;
    let ranks = if place.is_launched() { place.world_size } else { args.workers };
    let tensor = args.tensor;
    ensure!(
        tensor > 0 && ranks.is_multiple_of(tensor),
        "{ranks} ranks do not divide into groups of {tensor}"
    );
    ensure!(HIDDEN.is_multiple_of(tensor), "{HIDDEN} features do not divide into {tensor} parts");
    let replicas = ranks / tensor;
    ensure!(BATCH.is_multiple_of(replicas), "{BATCH} examples do not divide into {replicas} parts");
    if place.is_launched() || ranks == 1 {
        let world = World::launched(place, DeviceChoice::from_env()?)?;
        // No rank should wait for a rank that failed.
        return train(&world, tensor).inspect_err(|error| world.abort(&format!("{error:#}")));
    }
    match launch::spawn(ranks, 1)? {
        Outcome::Success => Ok(()),
        Outcome::Failed(reason) | Outcome::Interrupted { message: reason, .. } => bail!(reason),
        outcome => bail!("the ranks did not finish: {outcome:?}"),
    }
}

fn train(world: &World, tensor: usize) -> Result<()> {
    let whole = Mlp::whole(world.device())?;
    let (replica, position) = (world.rank() / tensor, world.rank() % tensor);
    let group = |colour: usize| -> Result<Group> {
        let group = world.split(Some(colour as u64), world.rank() as i64)?;
        group.ok_or_else(|| anyhow::anyhow!("a group without its member"))
    };
    let tensor_group = group(replica)?;
    let data_group = group(position)?;

    let part = whole.part(&tensor_group)?;
    let mut opt = DistOpt::new(sgd(), &part.params()?, data_group.clone())?;
    let mut alone = DistOpt::new(sgd(), &whole.params()?, &World::single())?;
    let share = BATCH / data_group.world_size();
    for step in 0..STEPS {
        let (xs, ys) = examples(step, world.device())?;
        let own = |all: &Tensor| all.narrow(0, data_group.rank() * share, share)?.contiguous();
        let own_loss = loss(&part, &own(&xs)?, &own(&ys)?)?;
        opt.backward_and_update(&own_loss)?;
        let all_loss = loss(&whole, &xs, &ys)?;
        alone.backward_and_update(&all_loss)?;
        if world.is_root() && (step + 1).is_multiple_of(10) {
            println!("step {:2}: loss {:.6}", step + 1, all_loss.to_scalar::<f32>()?);
        }
    }

    let mut worst = [0_f32];
    let pairs = [(&part.w1, &whole.w1, 0), (&part.b1, &whole.b1, 0), (&part.w2, &whole.w2, 1)];
    for (own, all, dim) in pairs {
        let all = own_part(all, dim, &tensor_group)?;
        worst[0] = worst[0].max(largest_difference(own, &all)?);
    }
    worst[0] = worst[0].max(largest_difference(&part.b2, &whole.b2)?);
    world.comm().all_reduce(&mut worst, ReduceOp::Max)?;
    if world.is_root() {
        let replicas = data_group.world_size();
        println!("{replicas} replica(s) of a model in {tensor} part(s), {STEPS} steps");
        println!("largest difference to one process: {:.9}", worst[0]);
    }
    ensure!(worst[0] < TOLERANCE, "the split model is not the whole one");
    Ok(())
}

fn largest_difference(a: &Tensor, b: &Tensor) -> CandleResult<f32> {
    (a - b)?.abs()?.flatten_all()?.max(0)?.to_scalar()
}
