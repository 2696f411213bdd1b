//! A step that fails on one rank in a program that goes on. Every rank receives the cause in that
//! step, the next step works again, and the models stay equal. Over the local backend and over MPI.

use candelabrum::dist::{Result, parameters_sha256};
use candelabrum::nn::{Init, Param, layers::BatchNorm2d, ops::with_composites};
use candelabrum::prelude::*;
use candelabrum_testkit::EndedProgram;
use candelabrum_testkit::ranks::RanksOf;

use crate::ranks::world_of_rank;

/// The parameters, each a unit of its own.
const PARAMETERS: [&str; 3] = ["a", "b", "c"];

/// The variable with the parameter that the failing rank leaves out, or with another fault.
const FAULT: &str = "FAILED_STEP_FAULT";
const OPTION: &str = "FAILED_STEP_OPTION";
const OVERLAP: &str = "FAILED_STEP_OVERLAP";

/// The fault of a gradient that only the end of the backward pass shows, when all units are complete: an
/// operation of candle uses a parameter directly and did not in earlier steps.
const LATE: &str = "late";

/// The failing rank and its step.
const FAILING: usize = 1;
const STEP: usize = 4;
const STEPS: usize = 8;

/// Not a test: the program of a rank.
#[test]
fn rank_main() {
    let Some(world) = world_of_rank() else { return };
    let fault = std::env::var(FAULT).unwrap();
    let option: DistOption = std::env::var(OPTION).unwrap().parse().unwrap();
    let overlap = std::env::var(OVERLAP).unwrap() == "true";
    let params = Params::new(0);
    let init = Init::Normal { std: 0.1 };
    let list: Vec<Param> =
        PARAMETERS.iter().map(|name| params.root().param(name, 1000, init).unwrap()).collect();
    let norm = BatchNorm2d::new(&params.root().pp("norm"));
    let xs = |step: usize| {
        let value = (step + 10 * world.rank()) as f64;
        Tensor::arange(0_f32, 16.0, &Device::Cpu)?.affine(0.1, value)?.reshape((2, 2, 2, 2))
    };
    norm.forward(&xs(0).unwrap()).unwrap();
    let config =
        DistOptConfig { first_bucket_bytes: 1, bucket_bytes: 1, overlap, ..Default::default() };
    let sgd = Sgd::new(0.01).momentum(0.9);
    let mut opt = DistOpt::with_config(sgd, &params, &world, config).unwrap();
    for step in 0..STEPS {
        let fails = step == STEP && world.rank() == FAILING;
        let before = (statistics(&params), parameters_sha256(&params).unwrap());
        let result = take_step(&list, &norm, &xs(step).unwrap(), &fault, fails)
            .and_then(|loss| opt.backward_and_update_with(&loss, option, 0.05));
        if let Err(error) = result {
            println!("rank {} step {step}: {error}", world.rank());
            assert_eq!(step, STEP, "rank {}: {error}", world.rank());
            let after = (statistics(&params), parameters_sha256(&params).unwrap());
            assert_eq!(after, before, "a failed step changes nothing");
        } else {
            assert_ne!(step, STEP, "rank {} has not heard of it", world.rank());
        }
    }
    opt.average_parameters().unwrap();
    println!("digest {} ", parameters_sha256(&params).unwrap());
}

/// The loss of a step. The failing rank leaves a parameter out, has a late gradient or returns no scalar.
fn take_step(
    list: &[Param],
    norm: &BatchNorm2d,
    xs: &Tensor,
    fault: &str,
    fails: bool,
) -> Result<Tensor> {
    let mut loss = norm.forward(xs)?.sqr()?.mean_all()?;
    for (param, name) in list.iter().zip(PARAMETERS) {
        if !(fails && name == fault) {
            loss = (loss + param.identity()?.sqr()?.sum_all()?)?;
        }
    }
    if fails && fault == LATE {
        loss = (loss + list[0].tensor().sqr()?.sum_all()?)?;
    }
    if fails && fault == "not a scalar" {
        return Ok(Tensor::stack(&[&loss, &loss], 0)?);
    }
    Ok(loss)
}

#[test]
fn a_batch_with_a_nan_leaves_running_statistics_as_they_were() {
    check_a_batch_with_a_nan();
    with_composites(check_a_batch_with_a_nan);
}

fn check_a_batch_with_a_nan() {
    let params = Params::new(0);
    let norm = BatchNorm2d::new(&params.root().pp("norm"));
    let good = Tensor::arange(0_f32, 16.0, &Device::Cpu).unwrap().reshape((2, 2, 2, 2)).unwrap();
    let loss = |xs: &Tensor| norm.forward(xs).unwrap().sqr().unwrap().mean_all().unwrap();
    loss(&good);
    let mut opt = DistOpt::new(Sgd::new(0.1), &params, &World::single()).unwrap();
    opt.backward_and_update(&loss(&good)).unwrap();
    let before = statistics(&params);
    let bad = good.affine(f64::NAN, 0.0).unwrap();
    let error = opt.backward_and_update(&loss(&bad)).unwrap_err();
    assert!(error.to_string().contains("is not finite on rank 0"), "{error}");
    assert_eq!(statistics(&params), before);
    opt.backward_and_update(&loss(&good)).unwrap();
    let after = statistics(&params);
    assert!(
        after != before && after.iter().flatten().all(|&bits| f32::from_bits(bits).is_finite())
    );
}

/// The running statistics, bit for bit.
fn statistics(params: &Params) -> Vec<Vec<u32>> {
    let bits = |tensor: Tensor| {
        let values = tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        values.into_iter().map(f32::to_bits).collect()
    };
    params.buffers().iter().map(|buffer| bits(buffer.value())).collect()
}

fn ranks(fault: &str, option: &str, overlap: bool) -> RanksOf {
    let ranks = RanksOf::new(rank_main).env("CANDELABRUM_TIMEOUT", 20);
    ranks.env(FAULT, fault).env(OPTION, option).env(OVERLAP, overlap)
}

/// Asserts that every rank received the cause and that all models are equal at the end.
#[track_caller]
fn check(outputs: &[EndedProgram], ranks: usize, cause: &str) {
    let text: String = outputs.iter().map(|output| output.text.as_str()).collect();
    assert!(outputs.iter().all(|output| output.code == Some(0)), "{text}");
    for rank in 0..ranks {
        let line = text.lines().find(|line| line.contains(&format!("rank {rank} step {STEP}: ")));
        let line = line.unwrap_or_else(|| panic!("rank {rank} has not said anything: {text}"));
        assert!(line.contains(cause), "rank {rank}: {line}");
        let named = line.contains(&format!("rank {FAILING}: {cause}"));
        assert!(rank == FAILING || named, "rank {rank} does not name the rank: {line}");
    }
    let digests: Vec<&str> =
        text.split("digest ").skip(1).filter_map(|rest| rest.split(' ').next()).collect();
    assert_eq!(digests.len(), ranks, "{text}");
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}

const OPTIONS: [&str; 5] = ["fp32", "fp16", "partialUpdate", "sparseTopK", "sparseThreshold"];

#[test]
fn every_rank_hears_why_one_fails_and_the_next_step_works() {
    for overlap in [true, false] {
        for option in OPTIONS {
            for fault in PARAMETERS {
                let cause = format!("no gradient reached `{fault}`");
                check(&ranks(fault, option, overlap).run(3), 3, &cause);
            }
        }
    }
    let cause = "the loss has the shape [2], expected a scalar, []: take its mean or its sum";
    check(&ranks("not a scalar", "fp32", true).run(2), 2, cause);
}

#[test]
fn every_rank_hears_of_a_gradient_after_the_last_complete_unit() {
    for option in ["fp32", "fp16", "sparseTopK"] {
        let outputs = ranks(LATE, option, true).run(2);
        check(&outputs, 2, "a gradient of `a` came when its bucket had gone");
    }
}

#[test]
fn under_mpiexec_every_rank_hears_why_one_fails_and_the_next_step_works() {
    for option in OPTIONS {
        for fault in PARAMETERS {
            let Some(output) = ranks(fault, option, true).run_under_mpiexec(2) else { return };
            check(&[output], 2, &format!("no gradient reached `{fault}`"));
        }
    }
}
