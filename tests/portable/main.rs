//! A build without what needs Linux trains in one process, and says what it lacks (`cargo xtask portable`).

use candelabrum::candle::{ModuleT, Result as CandleResult};
use candelabrum::dist::launch::{self, LOCAL_RANKS};
use candelabrum::prelude::*;
use candle_nn::{Linear, VarBuilder, VarMap, linear, loss};

const NO_RANKS: &str = "several ranks without MPI need Linux";

struct Net(Linear);

impl ModuleT for Net {
    fn forward_t(&self, xs: &Tensor, _: bool) -> CandleResult<Tensor> {
        self.0.forward(xs)
    }
}

/// A model of candle-nn in a loop of its own. In other builds, too.
#[test]
fn a_world_of_one_rank_trains() {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let model = Net(linear(4, 3, vb).unwrap());
    let params = Params::from_varmap(&varmap).unwrap();
    let mut opt = DistOpt::new(AdamW::new(0.05), &params, &World::single()).unwrap();
    let xs = Tensor::randn(0f32, 1.0, (64, 4), &Device::Cpu).unwrap();
    let ys = xs.narrow(1, 0, 3).unwrap().contiguous().unwrap().argmax(1).unwrap();
    let mut losses = Vec::new();
    for _ in 0..100 {
        let loss = loss::cross_entropy(&model.forward_t(&xs, true).unwrap(), &ys).unwrap();
        losses.push(loss.to_scalar::<f32>().unwrap());
        opt.backward_and_update(&loss).unwrap();
    }
    assert!(losses[99] < 0.5 * losses[0], "{losses:?}");
}

#[test]
fn several_ranks_say_what_they_need() {
    if LOCAL_RANKS {
        println!("left out: this build has ranks without MPI");
        return;
    }
    let alone = World::threads(1).unwrap().remove(0);
    assert_eq!((alone.rank(), alone.world_size()), (0, 1));
    for error in [World::threads(2).unwrap_err(), launch::spawn(2, 1).unwrap_err()] {
        assert!(error.to_string().starts_with(NO_RANKS), "{error}");
    }
}
