//! What strategies carry from step to step survives a save and a load, and other buckets.

use candelabrum::dist::parameters_sha256;
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::RanksOf;

use crate::problem::{loss, params};

/// A fresh optimizer without momentum, whose only state is its strategies'.
fn fresh(params: &Params, world: &World, threshold: usize) -> DistOpt {
    let config = DistOptConfig { threshold: Some(threshold), ..DistOptConfig::default() };
    DistOpt::with_config(Sgd::new(0.1), params, world, config).unwrap()
}

fn steps(opt: &mut DistOpt, option: DistOption, range: std::ops::Range<u64>) {
    for step in range {
        let loss = loss(opt.params(), opt.world().rank(), step);
        let spars = if option == DistOption::SparseThreshold { 0.6 } else { 0.05 };
        opt.backward_and_update_with(&loss, option, spars).unwrap();
    }
}

pub(crate) fn rank(world: &World) {
    let options = [DistOption::PartialUpdate, DistOption::SparseTopK, DistOption::SparseThreshold];
    for option in options {
        // Four steps and then six, with an average between as before a checkpoint.
        let whole = params();
        let mut opt = fresh(&whole, world, 300);
        steps(&mut opt, option, 0..4);
        opt.average_parameters().unwrap();
        let saved = opt.strategy_state();
        let values: Vec<Tensor> =
            whole.list().iter().map(|param| param.tensor().copy().unwrap()).collect();
        steps(&mut opt, option, 4..10);

        let resumed = params();
        for (param, value) in resumed.list().iter().zip(&values) {
            param.set(value).unwrap();
        }
        let mut opt = fresh(&resumed, world, 300);
        opt.load_strategy_state(&saved).unwrap();
        steps(&mut opt, option, 4..10);
        let digests = [&whole, &resumed].map(|params| parameters_sha256(params).unwrap());
        assert_eq!(digests[0], digests[1], "{option}: resumed and not");

        // The rotation, and the residual, make a difference.
        let forgot = params();
        for (param, value) in forgot.list().iter().zip(&values) {
            param.set(value).unwrap();
        }
        let mut opt = fresh(&forgot, world, 300);
        steps(&mut opt, option, 4..10);
        assert_ne!(parameters_sha256(&forgot).unwrap(), digests[0], "{option}: state forgotten");
    }
    rebucketed(world);
    switched(world);
    sums(world);
}

/// Residuals belong to parameters, not to buckets.
fn rebucketed(world: &World) {
    let params = params();
    let mut opt = fresh(&params, world, 300);
    steps(&mut opt, DistOption::SparseTopK, 0..3);
    let before = opt.residual_norm();
    let state = opt.strategy_state();
    // One unit of everything that sends next to nothing: what was kept is still there.
    opt.threshold(1_000_000).unwrap();
    // No gradient at all, by a tensor of zero: candle cuts the graph at `* 0.0`.
    let zero = Tensor::new(0.0_f32, &Device::Cpu).unwrap();
    let loss = (loss(opt.params(), world.rank(), 3) * zero).unwrap();
    opt.backward_and_update_with(&loss, DistOption::SparseTopK, 1e-9).unwrap();
    let largest = state[0].memory.iter().flat_map(|(.., vector)| vector.to_vec());
    let largest = f64::from(largest.map(f32::abs).fold(0.0, f32::max));
    let expected = (before.powi(2) - largest.powi(2)).sqrt();
    let after = opt.residual_norm();
    assert!((after - expected).abs() < 1e-4 * expected, "{after}, expected {expected}");
}

/// After partialUpdate, another strategy begins with equal replicas.
fn switched(world: &World) {
    let params = params();
    let mut opt = fresh(&params, world, 300);
    steps(&mut opt, DistOption::PartialUpdate, 0..2);
    steps(&mut opt, DistOption::Fp32, 2..3);
    let digests = world.comm().all_gather_text(&parameters_sha256(&params).unwrap()).unwrap();
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}

/// SINGA's `all_reduce` and `wait`.
fn sums(world: &World) {
    let params = params();
    let mut opt = fresh(&params, world, 300);
    let own = Tensor::new(&[[1.0_f32, world.rank() as f32]], &Device::Cpu).unwrap();
    opt.all_reduce(&own).unwrap();
    opt.all_reduce(&own.sum_all().unwrap()).unwrap();
    let sums = opt.wait().unwrap();
    let ranks = world.world_size();
    let numbers = (ranks * (ranks - 1) / 2) as f32;
    assert_eq!(sums[0].to_vec2::<f32>().unwrap(), [[ranks as f32, numbers]]);
    assert_eq!(sums[1].to_scalar::<f32>().unwrap(), ranks as f32 + numbers);
    assert!(opt.wait().unwrap().is_empty());
}

#[test]
fn what_a_strategy_keeps_survives_a_load_and_other_buckets() {
    for world_size in [2, 3] {
        RanksOf::test("rank_main").env(crate::CASE, "state").run_all_good(world_size);
    }
}
