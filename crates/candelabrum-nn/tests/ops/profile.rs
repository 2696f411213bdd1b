//! The profile names candle's operations between fused ones, and counts all of the time once.

use std::time::Instant;

use candelabrum_nn::ops::profile::{self, CandleRegion, Profile};
use candelabrum_nn::ops::{linear, relu, scale};
use candelabrum_testkit::uniform;
use candle_core::{DType, Result, Tensor, Var};

fn variable(shape: &[usize], seed: u64) -> Result<Var> {
    Var::from_tensor(&uniform(shape, seed, -1.0, 1.0, DType::F32)?)
}

/// The profile of `steps` backward passes of the same graph.
fn profiled(steps: usize, loss: impl Fn() -> Result<Tensor>) -> Result<Profile> {
    profile::start();
    for _ in 0..steps {
        profile::backward(&loss()?)?;
    }
    Ok(profile::stop())
}

fn names(profile: &Profile) -> Vec<&str> {
    profile.candle.iter().map(|region| region.name.as_str()).collect()
}

/// The region between the losses' own operations and the first fused operation.
fn middle(f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<String> {
    let xs = variable(&[2, 6, 4], 1)?;
    let profile = profiled(1, || relu(&f(&scale(&xs, 2.0)?)?)?.sum_all())?;
    let names = names(&profile);
    assert_eq!(names[0], "reshape, reduction"); // the sum
    let middle = names[1..].iter().find(|name| **name != "no operation");
    Ok(middle.map_or_else(String::new, |name| (*name).to_owned()))
}

#[test]
fn operations_have_their_names() -> Result<()> {
    let weight = variable(&[2, 4, 3], 2)?;
    let row = variable(&[4], 3)?;
    assert_eq!(middle(|xs| xs.tanh())?, "element-wise");
    assert_eq!(middle(|xs| xs.narrow(1, 1, 3)?.tanh())?, "element-wise, narrow");
    assert_eq!(middle(|xs| xs.t()?.sqr())?, "element-wise, transpose");
    assert_eq!(middle(|xs| xs.reshape((12, 4))?.sqr())?, "element-wise, reshape");
    assert_eq!(middle(|xs| xs.matmul(&weight))?, "matmul");
    assert_eq!(middle(|xs| xs.matmul(&xs.t()?))?, "matmul or cat, transpose");
    assert_eq!(middle(|xs| xs.broadcast_add(&row))?, "element-wise, broadcast_as");
    assert_eq!(middle(|xs| xs.sum_keepdim(2))?, "reduction");
    assert_eq!(middle(|xs| (xs + xs.tanh()?)?.exp())?, "element-wise, element-wise, element-wise");
    // Views between fused operations are not in candle's graph.
    assert_eq!(middle(|xs| xs.narrow(1, 1, 3)?.transpose(0, 1))?, "");
    Ok(())
}

#[test]
fn regions_of_one_kind_are_one_row_and_the_times_are_the_passes() -> Result<()> {
    let (xs, weight) = (variable(&[64, 300], 1)?, variable(&[300, 300], 2)?);
    let loss = || {
        let mut ys = linear(&xs, &weight, None, None)?;
        for _ in 0..3 {
            ys = linear(&ys.tanh()?, &weight, None, None)?;
        }
        ys.sum_all()
    };
    let began = Instant::now();
    let profile = profiled(5, loss)?;
    let elapsed = began.elapsed();
    let tanh: Vec<&CandleRegion> =
        profile.candle.iter().filter(|region| region.name == "element-wise").collect();
    assert_eq!(tanh.len(), 1);
    assert_eq!((tanh[0].calls, &tanh[0].output[..]), (15, &[64, 300][..]));
    assert!(!tanh[0].time.is_zero());
    let linear = &profile.operations[0];
    assert_eq!((linear.name, linear.calls), ("linear", 20));
    let candles: std::time::Duration = profile.candle.iter().map(|region| region.time).sum();
    assert!(candles + linear.forward + linear.backward <= elapsed);
    Ok(())
}

#[test]
fn nothing_is_measured_before_the_start_and_after_the_stop() -> Result<()> {
    let xs = variable(&[3], 1)?;
    profile::backward(&relu(&xs)?.sum_all()?)?;
    assert_eq!(profiled(0, || unreachable!("no step"))?, Profile::default());
    profile::backward(&relu(&xs)?.sum_all()?)?;
    assert_eq!(profile::stop(), Profile::default());
    // Without a fused operation, the pass is one region.
    let profile = profiled(2, || xs.sqr()?.sum_all())?;
    assert_eq!(names(&profile), ["reshape, reduction, element-wise"]);
    assert_eq!(profile.candle[0].calls, 2);
    Ok(())
}

#[test]
fn flat_gradients_are_profiled_also_after_a_pass_that_failed() -> Result<()> {
    let params = candelabrum_nn::Params::new(1);
    let weight = params.root().param("weight", (2, 3), candelabrum_nn::Init::Const(1.0))?;
    let mut gradients = crate::hooks::each_its_own_unit(&params)?;
    let loss = || linear(&relu(weight.tensor())?.tanh()?, weight.tensor(), None, None)?.sum_all();
    let mut regions = Vec::new();
    for fails in [false, true, false] {
        let loss = loss()?;
        if fails {
            weight.update_in_place(|mut values| values.scale(0.5))??;
        }
        gradients.clear();
        profile::start();
        assert_eq!(gradients.backward(&loss).is_err(), fails);
        let calls = profile::stop().candle.into_iter().map(|region| (region.name, region.calls));
        regions.push(calls.collect::<Vec<_>>());
    }
    assert!(regions[0].contains(&("element-wise".to_owned(), 1)), "{regions:?}");
    assert!(!regions[1].contains(&("element-wise".to_owned(), 1)), "{regions:?}");
    assert_eq!(regions[0], regions[2]);
    Ok(())
}
