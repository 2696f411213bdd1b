//! `bench-player products`: the speed of a training whose step is nothing but large matrix products.
//!
//! It multiplies matrices of 1024 × 1024 in f32 by the crate gemm, through candle. From the time of a
//! product and the arithmetic of the network's step it finds the time of a step that would be as fast.
//! A contender's speed divided by this one is the share of the machine that the contender uses.

use std::hint::black_box;
use std::num::NonZeroU32;

use candelabrum::dist::World;
use candelabrum::prelude::*;
use serde_json::{Value, json};

use crate::arithmetic::Multiplications;
use crate::network::build;
use crate::pace::{RankPace, Repeat, cpu_time};
use crate::problem;
use crate::serve::{RequestHandler, serve};
use crate::settings::TrainingSettings;

/// The rows and columns of the matrices. They need 12 MiB, more than the second-level cache has.
const SIDE: usize = 1024;

/// Products before the first sample.
const WARM_UP: NonZeroU32 = NonZeroU32::new(3).unwrap();

/// Serves requests.
pub(crate) fn run(settings: &TrainingSettings, world: &World) -> anyhow::Result<()> {
    serve(&mut Products::new(settings, world)?, world)
}

struct Products {
    matrices: [Tensor; 2],
    /// The number of products with as many multiplications as one step.
    products_per_step: f64,
    /// The number of examples of one step.
    batch_size: usize,
    multiplications: Multiplications,
    pace: RankPace,
}

impl Products {
    fn new(settings: &TrainingSettings, world: &World) -> anyhow::Result<Self> {
        let &TrainingSettings { network, blocks, .. } = settings;
        let batch_size = settings.batch_size.get();
        let params = Params::new(0);
        // The network with one example, because a large batch would only take time.
        let (xs, _) = problem::batch(network, 0, 1)?;
        let built = build(network, blocks, network.drawn_sizes(), &params, &xs)?;
        let one = Multiplications::from_summary(&built.summary, &params);
        let count = batch_size as u64;
        let multiplications =
            Multiplications { forward: count * one.forward, step: count * one.step };
        let products_per_step = multiplications.step as f64 / SIDE.pow(3) as f64;
        let matrix = || Tensor::rand(-1_f32, 1.0, (SIDE, SIDE), &Device::Cpu);
        let matrices = [matrix()?, matrix()?];
        let pace = RankPace::new(world);
        let mut products = Self { matrices, products_per_step, batch_size, multiplications, pace };
        products.sample(Repeat::Steps(WARM_UP))?;
        Ok(products)
    }
}

impl RequestHandler for Products {
    type Request = Repeat;

    fn ready(&self) -> Value {
        let Multiplications { forward, step } = self.multiplications;
        json!({"forward_multiplications": forward, "step_multiplications": step})
    }

    /// A step of a request is a product here.
    fn sample(&mut self, request: Repeat) -> anyhow::Result<Value> {
        let Self { matrices: [a, b], products_per_step, batch_size, pace, .. } = self;
        let cpu = cpu_time();
        let (timed, ()) = pace.run(request, |products| {
            for _ in 0..products {
                black_box(a.matmul(b)?);
            }
            Ok(())
        })?;
        let mut sample = timed.fields();
        sample["cpu_seconds"] = (cpu_time() - cpu).as_secs_f64().into();
        let step = timed.step_seconds() * *products_per_step;
        sample["step_seconds"] = step.into();
        sample["examples_per_second"] = (*batch_size as f64 / step).into();
        let operations = 2.0 * SIDE.pow(3) as f64 / timed.step_seconds();
        sample["operations_per_second"] = operations.into();
        Ok(sample)
    }
}
