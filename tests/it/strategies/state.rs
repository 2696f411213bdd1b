//! The state of strategies between steps: it survives other buckets and other strategies, and a wrong one is not loaded.
//! `tests/law` continues runs with it.

use candelabrum::dist::parameters_sha256;
use candelabrum::nn::Init;
use candelabrum::prelude::*;

use super::problem::{loss, params, ranks};

/// A fresh optimizer without momentum, whose only state is its strategies'.
fn fresh(params: &Params, world: &World, threshold: usize) -> DistOpt {
    let config = DistOptConfig { threshold: Some(threshold), ..DistOptConfig::default() };
    DistOpt::with_config(Sgd::new(0.1), params, world, config).unwrap()
}

fn steps(opt: &mut DistOpt, option: DistOption, range: std::ops::Range<u64>) {
    for step in range {
        let loss = loss(opt.params(), opt.group().rank(), step);
        let spars = if option == DistOption::SparseThreshold { 0.6 } else { 0.05 };
        opt.backward_and_update_with(&loss, option, spars).unwrap();
    }
}

pub(crate) fn rank(world: &World) {
    rebucketed(world);
    switched(world);
    switched_with_the_right_gradient(world);
    sums(world);
    loaded_wrongly(world);
}

/// Residuals belong to parameters, not to buckets.
fn rebucketed(world: &World) {
    let params = params();
    let mut opt = fresh(&params, world, 300);
    steps(&mut opt, DistOption::SparseTopK, 0..3);
    let before = opt.residual_norm();
    let state = opt.strategy_state().unwrap();
    // In a single bucket that sends next to nothing, the residuals are still there.
    opt.threshold(1_000_000).unwrap();
    // The gradient is 0. The factor is a tensor, because candle cuts the graph at `* 0.0`.
    let zero = Tensor::new(0.0_f32, &Device::Cpu).unwrap();
    let loss = (loss(opt.params(), world.rank(), 3) * zero).unwrap();
    opt.backward_and_update_with(&loss, DistOption::SparseTopK, 1e-9).unwrap();
    let largest = state[0].error_feedback.iter().flat_map(|(.., vector)| vector.to_vec());
    let largest = f64::from(largest.map(f32::abs).fold(0.0, f32::max));
    let expected = (before.powi(2) - largest.powi(2)).sqrt();
    let after = opt.residual_norm();
    assert!((after - expected).abs() < 1e-4 * expected, "{after}, expected {expected}");
}

fn assert_equal_ranks(params: &Params, world: &World, what: &str) {
    let digests = world.comm().all_gather_text(&parameters_sha256(params).unwrap()).unwrap();
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{what}: {digests:?}");
}

/// After partialUpdate, a step of another strategy makes the replicas equal. They stay equal,
/// because the momentum is averaged, too.
fn switched(world: &World) {
    for evaluated in [false, true] {
        let params = params();
        let sgd = Sgd::new(0.1).momentum(0.9);
        let mut opt = DistOpt::new(sgd, &params, world).unwrap();
        steps(&mut opt, DistOption::PartialUpdate, 0..2);
        if evaluated {
            opt.average_parameters().unwrap();
            assert_equal_ranks(&params, world, "averaged");
        }
        for step in 2..5 {
            steps(&mut opt, DistOption::Fp32, step..step + 1);
            assert_equal_ranks(&params, world, "switched");
        }
    }
}

/// The step that makes replicas equal again uses the gradients at the parameters of the forward
/// pass. If the step fails, nothing changes.
fn switched_with_the_right_gradient(world: &World) {
    let params = Params::new(0);
    let a = params.root().param("a", 1, Init::ZEROS).unwrap();
    let b = params.root().param("b", 1, Init::ZEROS).unwrap();
    let mut opt = fresh(&params, world, 300);
    let zero = ((a.tensor() + b.tensor()).unwrap()
        * &Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap())
        .unwrap();
    // After a step of partialUpdate the ranks may differ. Here the gradient is 0, and `set` makes
    // them differ.
    opt.backward_and_update_with(&zero.sum_all().unwrap(), DistOption::PartialUpdate, 0.5).unwrap();
    let own = if world.rank() == 0 { 3.0_f32 } else { 1.0 };
    let set = |param: &candelabrum::nn::Param, value: f32| {
        param.set(&Tensor::new(&[value], &Device::Cpu).unwrap()).unwrap();
    };
    set(&a, own);
    set(&b, own);
    let product = || (a.tensor() * b.tensor()).unwrap().sum_all().unwrap();

    // A root at 0 makes the gradient infinite, but not the loss.
    let zero = (a.tensor() - a.tensor().detach()).unwrap().sqrt().unwrap().sum_all().unwrap();
    let bad = (product() + zero).unwrap();
    opt.backward_and_update_with(&bad, DistOption::Fp32, 0.5).unwrap_err();
    assert_eq!(a.tensor().to_vec1::<f32>().unwrap(), [own], "a failed step");

    opt.backward_and_update_with(&product(), DistOption::Fp32, 0.5).unwrap();
    // The mean of the parameters minus 0.1 times the mean of the ranks' gradients. The gradients of
    // a product of two equal numbers are these numbers.
    let ranks = world.world_size() as f32;
    let mean = (3.0 + (ranks - 1.0)) / ranks;
    for param in [&a, &b] {
        let value = param.tensor().to_vec1::<f32>().unwrap()[0];
        assert!((value - 0.9 * mean).abs() < 1e-6, "{value}, expected {}", 0.9 * mean);
    }
}

/// A state that only one rank loads, or that belongs to another model, is an error.
fn loaded_wrongly(world: &World) {
    let params = params();
    let mut opt = fresh(&params, world, 300);
    steps(&mut opt, DistOption::SparseTopK, 0..1);
    let mut states = opt.strategy_state().unwrap();
    states[0].error_feedback =
        [("residual".to_owned(), "w2".to_owned(), vec![1.0; 7])].into_iter().collect();
    let error = opt.load_strategy_state(&states).unwrap_err().to_string();
    assert!(error.contains("`w2` has 7 elements, the parameter 200"), "{error}");

    let saved = opt.strategy_state().unwrap();
    let mut opt = fresh(&params, world, 300);
    if world.rank() == 0 {
        opt.load_strategy_state(&saved).unwrap();
    }
    let loss = loss(&params, world.rank(), 0);
    let error = opt.backward_and_update_with(&loss, DistOption::SparseTopK, 0.05).unwrap_err();
    assert!(error.to_string().contains("the number of its steps so far differs"), "{error}");
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
fn what_a_strategy_keeps_survives_other_buckets_and_strategies() {
    for world_size in [2, 3] {
        ranks("state").run_all_good(world_size);
    }
}
