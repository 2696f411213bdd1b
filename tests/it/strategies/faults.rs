//! Faults that every strategy must report: a NaN on one rank, an overflow, ranks with different
//! strategies. The error is the same on every rank, and nothing has changed.

use candelabrum::dist::strategy::{Bucket, Message, Strategy, register};
use candelabrum::dist::{Collective, Error, parameters_sha256};
use candelabrum::nn::Init;
use candelabrum::prelude::*;

use super::problem::{PARAMS, loss, params, ranks};

/// Whether this is the rank with the fault.
fn odd(world: &World) -> bool {
    world.rank() == world.world_size() - 1
}

/// A finite loss. Element 7 of its gradient by `w2` is larger by `slope`, which may be infinite or NaN.
fn spoilt(params: &Params, world: &World, slope: f64) -> Tensor {
    let good = loss(params, world.rank(), 0);
    (good + bend(params, "w2", 7, slope)).unwrap()
}

/// Zero, with this slope in one element of a parameter.
fn bend(params: &Params, name: &str, element: usize, slope: f64) -> Tensor {
    let one = params.get(name).unwrap().tensor().flatten_all().unwrap().get(element).unwrap();
    let zero = (&one - one.detach()).unwrap();
    // The root's slope at 0 is infinite, and zero times infinity is NaN.
    let bend = match slope {
        f64::INFINITY => zero.sqrt(),
        // Times a tensor of zeros, because candle passes no gradient through `* 0.0`.
        slope if slope.is_nan() => zero.sqrt().unwrap() * zero.zeros_like().unwrap(),
        slope => zero * slope,
    };
    bend.unwrap()
}

pub(crate) fn rank(fault: &str, world: &World) {
    if fault == "everywhere" {
        return a_bad_number_anywhere(world);
    }
    if fault == "sparse-overflow" {
        overflow_of_a_sparse_sum(world, OnOverflow::Error);
        return overflow_of_a_sparse_sum(world, OnOverflow::Skip);
    }
    let (fault, option) = fault.split_once(' ').unwrap();
    let option: DistOption = option.parse().unwrap();
    let params = params();
    let on_overflow = if fault == "skip" { OnOverflow::Skip } else { OnOverflow::Error };
    let config = DistOptConfig { on_overflow, ..DistOptConfig::default() };
    let sgd = Sgd::new(0.1).momentum(0.9);
    let mut opt = DistOpt::with_config(sgd, &params, world, config).unwrap();
    let step = |opt: &mut DistOpt, factor: f64| {
        let loss = spoilt(&params, world, factor);
        opt.backward_and_update_with(&loss, option, 0.05)
    };
    // A good step first, so that there is a residual to spoil.
    step(&mut opt, 1.0).unwrap();
    let before = (parameters_sha256(&params).unwrap(), opt.strategy_state().unwrap());
    let error = match fault {
        "nan" => step(&mut opt, if odd(world) { f64::NAN } else { 1.0 }),
        "infinity" => step(&mut opt, if odd(world) { f64::INFINITY } else { 1.0 }),
        "overflow" => step(&mut opt, if odd(world) { 1e6 } else { 1.0 }),
        "skip" => {
            step(&mut opt, if odd(world) { 1e6 } else { 1.0 }).unwrap();
            assert_eq!(parameters_sha256(&params).unwrap(), before.0, "a skipped step");
            step(&mut opt, 1.0).unwrap();
            assert_ne!(parameters_sha256(&params).unwrap(), before.0, "the step after it");
            let figures = opt.figures(option);
            println!("\nskipped {} of {} steps", figures.skipped, figures.steps);
            return;
        }
        "other-option" => {
            let loss = spoilt(&params, world, 1.0);
            let option = if odd(world) { DistOption::SparseTopK } else { option };
            // The other ranks take the step as before: only the exchanged data shows the fault.
            opt.backward_and_update_with(&loss, option, 0.05)
        }
        "other-spars" => {
            let loss = spoilt(&params, world, 1.0);
            let spars = if odd(world) { 0.2 } else { 0.1 };
            opt.backward_and_update_with(&loss, option, spars)
        }
        "other-threshold" => {
            let loss = spoilt(&params, world, 1.0);
            let threshold = if odd(world) { 100 } else { 200 };
            opt.threshold(threshold).unwrap().backward_and_update(&loss)
        }
        "stranger" => {
            // The strategy fails on one rank. The other ranks must not wait for its message.
            let option = register("stranger", |_| Ok(Box::new(Stranger))).unwrap();
            let loss = spoilt(&params, world, 1.0);
            opt.backward_and_update_with(&loss, option, 0.5)
        }
        "half-clip" => {
            let loss = spoilt(&params, world, if odd(world) { f64::INFINITY } else { 1.0 });
            opt.backward_and_update_half(&loss, Some(1.0))
        }
        other => panic!("there is no case {other}"),
    };
    let error = error.expect_err("every case is an error");
    assert_eq!(parameters_sha256(&params).unwrap(), before.0, "a failed step changed something");
    // The clipped strategy is a separate one, which has taken no step.
    let states = opt.strategy_state().unwrap();
    assert_eq!(states[0], before.1[0], "a failed step is remembered");
    println!("\nrank {} says: {error}", world.rank());
}

/// A strategy that fails on the last rank alone.
#[derive(Debug)]
struct Stranger;

impl Strategy for Stranger {
    fn describe(&self) -> String {
        "stranger".to_owned()
    }

    fn compress(&mut self, bucket: &Bucket<'_>, _values: &mut [f32]) -> Result<Message, Error> {
        if bucket.rank + 1 == bucket.world_size {
            return Err(Error::Unsupported { what: format!("a message of {bucket}") });
        }
        Ok(Message::InPlace(Collective::AllReduce(ReduceOp::Mean)))
    }
}

/// A sum of finite gradients that is not finite itself.
fn overflow_of_a_sparse_sum(world: &World, on_overflow: OnOverflow) {
    let params = params();
    let config = DistOptConfig { on_overflow, ..DistOptConfig::default() };
    let mut opt = DistOpt::with_config(Sgd::new(0.1), &params, world, config).unwrap();
    let step = |opt: &mut DistOpt, factor: f64| {
        let loss = spoilt(&params, world, factor);
        opt.backward_and_update_with(&loss, DistOption::SparseTopK, 0.05)
    };
    step(&mut opt, 1.0).unwrap();
    let before = (
        parameters_sha256(&params).unwrap(),
        opt.strategy_state().unwrap()[0].error_feedback.clone(),
    );
    let result = step(&mut opt, 3e38);
    match on_overflow {
        OnOverflow::Skip => {
            result.unwrap();
            assert_eq!(opt.figures(DistOption::SparseTopK).skipped, 1);
            let notes = opt.take_notes();
            assert!(notes[0].contains("left out") && notes[0].contains("`w2`"), "{notes:?}");
        }
        _ => assert!(matches!(result, Err(Error::Overflow { .. })), "{result:?}"),
    }
    let after = (
        parameters_sha256(&params).unwrap(),
        opt.strategy_state().unwrap()[0].error_feedback.clone(),
    );
    assert!(before == after, "{on_overflow}: a step that was not taken is remembered");
}

/// A bad number of any rank in any place of a bucket, alone and with others after it, and a rank whose loss
/// is bad. The ranks share the search, so each place is found by another rank.
fn a_bad_number_anywhere(world: &World) {
    let params = params();
    let mut opt = DistOpt::new(Sgd::new(0.1), &params, world).unwrap();
    let before = parameters_sha256(&params).unwrap();
    let mut fails = |bends: &[(usize, &str, usize)], expected: (usize, &str)| {
        let mut loss = loss(&params, world.rank(), 0);
        for &(_, name, element) in bends.iter().filter(|bend| bend.0 == world.rank()) {
            loss = match name {
                "the loss" => (loss * f64::NAN).unwrap(),
                name => (loss + bend(&params, name, element, f64::NAN)).unwrap(),
            };
        }
        let error = opt.backward_and_update(&loss).unwrap_err();
        let (rank, what) = expected;
        let what = format!("{what} is not finite on rank {rank}; no parameter was changed");
        assert_eq!(error.to_string(), what, "{bends:?}");
        assert_eq!(parameters_sha256(&params).unwrap(), before, "{bends:?}");
    };
    for (name, shape) in PARAMS {
        let len: usize = shape.iter().product();
        let what = format!("the gradient of `{name}`");
        for element in [0, len / 3, 2 * len / 3, len - 1] {
            for rank in 0..world.world_size() {
                fails(&[(rank, name, element)], (rank, &what));
            }
            // Of several ranks the first one is named.
            fails(&[(2, "big", 0), (1, name, element), (2, name, 0)], (1, &what));
            fails(&[(0, "the loss", 0), (1, name, element)], (0, "the loss"));
        }
    }
    fails(&[(1, "the loss", 0), (1, "w2", 0), (2, "big", 0)], (1, "the loss"));
    opt.backward_and_update(&loss(&params, world.rank(), 0)).unwrap();
    assert_ne!(parameters_sha256(&params).unwrap(), before, "the step after them");
}

/// Runs a case on three ranks: each must give the same error, with all of `parts` in it.
fn refuse(fault: &str, option: DistOption, parts: &[&str]) {
    let case = format!("{fault} {option}");
    let outputs = ranks(&case).run_all_good(3);
    for (rank, output) in outputs.iter().enumerate() {
        let says = format!("rank {rank} says: ");
        let line = output.text.lines().find_map(|line| line.strip_prefix(&says));
        let line = line.unwrap_or_else(|| panic!("{case}: rank {rank} said nothing"));
        for part in parts {
            assert!(line.contains(part), "{case}: `{part}` is missing: {line}");
        }
    }
}

/// Every rank hears the same, before anything changes.
#[test]
fn a_step_that_a_rank_cannot_take_is_refused_by_all() {
    let bad = ["the gradient of `w2`", "is not finite on rank 2", "no parameter was changed"];
    for option in DistOption::ALL {
        refuse("nan", option, &bad);
        refuse("infinity", option, &bad);
    }
    // Clipping would make the infinity a 1.
    refuse("half-clip", DistOption::Fp16, &bad);
    let overflow = ["fp16", "`w2`", "overflowed", "no parameter was changed"];
    refuse("overflow", DistOption::Fp16, &overflow);
    refuse("other-option", DistOption::Fp32, &["rank 2", "rank 0", "the same dist option"]);
    let parts = ["spars differs between ranks", "rank 0 has `0.1`", "rank(s) 2 `0.2`"];
    refuse("other-spars", DistOption::SparseTopK, &parts);
    let parts = ["the size of buckets differs", "Threshold(200)", "rank(s) 2 `Threshold(100)`"];
    refuse("other-threshold", DistOption::Fp32, &parts);
}

#[test]
fn a_bad_number_is_found_in_every_place_and_named_with_its_rank() {
    ranks("everywhere").run_all_good(3);
    let Some(output) = ranks("everywhere").run_under_mpiexec(3) else { return };
    assert_eq!(output.code, Some(0), "{}", output.text);
}

#[test]
fn an_overflow_is_skipped_by_all_ranks_where_that_was_asked_for() {
    let outputs = ranks("skip fp16").run_all_good(3);
    for output in &outputs {
        assert!(output.text.contains("skipped 1 of 3 steps"), "{}", output.text);
    }
}

#[test]
fn a_sparse_step_that_overflows_leaves_the_residual_as_it_was() {
    ranks("sparse-overflow").run_all_good(2);
}

#[test]
fn a_rank_that_fails_by_itself_tells_the_others_why() {
    refuse("stranger", DistOption::Fp32, &["a message of bucket 0 of"]);
    // Over MPI the failing rank ends the job, but prints the cause first.
    let Some(output) = ranks("stranger fp32").run_under_mpiexec(2) else { return };
    assert!(output.text.contains("rank 1 says: a message of bucket 0"), "{}", output.text);
}

#[test]
fn parameters_that_overflow_in_their_average_are_named() {
    let params = Params::new(0);
    let weight = params.root().param("weight", 2, Init::Const(3e38)).unwrap();
    let mut opt = DistOpt::new(Sgd::new(1.0), &params, &World::single()).unwrap();
    // A loss of 0 whose gradient makes the parameters overflow.
    let zero = (weight.tensor() - weight.tensor().detach()).unwrap();
    let slope = Tensor::full(-1e38_f32, 2, &Device::Cpu).unwrap();
    let loss = (zero * slope).unwrap().sum_all().unwrap();
    let result = opt.backward_and_update_with(&loss, DistOption::PartialUpdate, 0.5);
    let error = result.unwrap_err().to_string();
    assert!(error.contains("parameter `weight` is no longer finite"), "{error}");
}

#[test]
fn settings_out_of_range_are_refused_at_the_step() {
    let params = params();
    let world = World::single();
    let mut opt = DistOpt::new(Sgd::new(0.1), &params, &world).unwrap();
    let loss = loss(&params, 0, 0);
    assert!(opt.threshold(0).unwrap_err().to_string().contains("threshold is 0"));
    for (top_k, spars) in [(true, 0.0), (true, 1.01), (true, f32::NAN), (false, 0.0)] {
        let error = opt.backward_and_sparse_update(&loss, spars, top_k, true).unwrap_err();
        assert!(error.to_string().contains("spars is"), "{error}");
    }
    let error = opt.backward_and_update_half(&loss, Some(-1.0)).unwrap_err().to_string();
    assert!(error.contains("clip is -1"), "{error}");
    let error = opt.backward_and_update_with(&loss, DistOption::Custom("nobody"), 0.5).unwrap_err();
    assert!(error.to_string().contains("`nobody`"), "{error}");
}
