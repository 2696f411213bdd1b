//! Five steps of every case. Parameters and residuals equal the reference's within a computed
//! bound, and the bits are the same on every rank and over MPI as over the local backend.

use std::path::{Path, PathBuf};

use candelabrum::dist::parameters_sha256;
use candelabrum::prelude::*;

use super::problem::{
    CASES, Case, LR, MOMENTUM, PARAMS, STEPS, WEIGHT_DECAY, len, loss, params, ranks,
};
use super::reference::{self, Elements};

/// Trains every case and prints the results.
pub(crate) fn rank(world: &World) {
    for (number, case) in CASES.into_iter().enumerate() {
        let params = params();
        let sgd = Sgd::new(LR).momentum(MOMENTUM.into()).weight_decay(WEIGHT_DECAY.into());
        let mut opt = DistOpt::with_config(sgd, &params, world, case.config()).unwrap();
        for step in 0..STEPS {
            let loss = loss(&params, world.rank(), step);
            opt.backward_and_update_with(&loss, case.option, case.spars).unwrap();
        }
        let rank = world.rank();
        write(rank, number, "params", &values(&params));
        let residual = residual(&mut opt);
        write(rank, number, "residual", &residual);
        let norm = residual.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        assert!((norm - opt.residual_norm()).abs() <= 1e-9 * norm, "{case:?}");
        opt.average_parameters().unwrap();
        write(rank, number, "averaged", &values(&params));
        println!("\ndigest of case {number}: {}", parameters_sha256(&params).unwrap());
    }
}

fn values(params: &Params) -> Vec<f32> {
    let value = |param: &candelabrum::nn::Param| {
        param.tensor().flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    params.list().iter().flat_map(value).collect()
}

/// The residual of every parameter in the model's order; empty without error feedback.
fn residual(opt: &mut DistOpt) -> Vec<f32> {
    let states = opt.strategy_state().unwrap();
    let vectors: Vec<_> = states.iter().flat_map(|state| state.error_feedback.iter()).collect();
    let of = |name: &str| {
        let found = vectors.iter().find(|(_, other, _)| *other == name);
        found.map(|(.., vector)| vector.to_vec()).unwrap_or_default()
    };
    PARAMS.iter().flat_map(|(name, _)| of(name)).collect()
}

/// The variable with the directory in which ranks write their numbers.
const DIR: &str = "STRATEGIES_DIR";

fn file(dir: &Path, rank: usize, case: usize, what: &str) -> PathBuf {
    dir.join(format!("{what}-of-case-{case}-rank-{rank}"))
}

/// Writes numbers for the test if it has set a directory.
fn write(rank: usize, case: usize, what: &str, values: &[f32]) {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    std::fs::write(file(Path::new(&dir), rank, case, what), bytes).unwrap();
}

fn read(dir: &Path, rank: usize, case: usize, what: &str) -> Vec<f32> {
    let bytes = std::fs::read(file(dir, rank, case, what)).unwrap();
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn assert_within(case: Case, what: &str, got: &[f32], expected: &Elements) {
    let places = (0..PARAMS.len()).flat_map(|param| (0..len(param)).map(move |at| (param, at)));
    assert_eq!(got.len(), places.clone().count(), "{case:?}: {what}");
    for (&got, (param, at)) in got.iter().zip(places) {
        let expected = expected[param][at];
        let off = (f64::from(got) - expected.value).abs();
        assert!(
            off <= expected.bound + 1e-12,
            "{case:?}: {what} of {}[{at}] is {got}, {off:e} from {expected:?}",
            PARAMS[param].0
        );
        // The residual of a sent element is exactly 0.
        if what == "residual" && expected.value == 0.0 {
            assert_eq!(got.to_bits(), 0, "{case:?}: {what} of {}[{at}]", PARAMS[param].0);
        }
    }
}

/// Runs all cases on `world_size` ranks and compares them with the reference.
fn compare(world_size: usize) {
    let dir = tempfile::tempdir().unwrap();
    ranks("exact").env(DIR, dir.path().display()).run_all_good(world_size);
    let read = |rank: usize, case: usize, what: &str| read(dir.path(), rank, case, what);
    for (number, case) in CASES.into_iter().enumerate() {
        let expected = reference::train(case, world_size);
        let averaged = read(0, number, "averaged");
        assert_within(case, "averaged", &averaged, &expected.averaged);
        let first = read(0, number, "params");
        for rank in 0..world_size {
            let params = read(rank, number, "params");
            assert_within(case, "params", &params, &expected.params[rank]);
            let residual = read(rank, number, "residual");
            match &expected.residual {
                Some(expected) => assert_within(case, "residual", &residual, &expected[rank]),
                None => assert!(residual.is_empty(), "{case:?} keeps something"),
            }
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let drift = case.option == DistOption::PartialUpdate && rank > 0;
            assert_eq!(bits(&params) == bits(&first), !drift, "{case:?}: rank {rank} and rank 0");
            let own = read(rank, number, "averaged");
            assert_eq!(bits(&own), bits(&averaged), "{case:?}: averages of rank {rank}");
        }
    }
}

#[test]
fn ranks_do_what_the_reference_does() {
    (1..=4).for_each(compare);
}

#[test]
fn under_mpiexec_every_strategy_gives_the_local_backends_bits() {
    let digests = |text: &str| {
        let mut lines: Vec<String> = text
            .lines()
            .filter_map(|line| line.find("digest of case").map(|start| line[start..].to_owned()))
            .collect();
        lines.sort();
        lines
    };
    for world_size in [2, 3] {
        let Some(output) = ranks("exact").run_under_mpiexec(world_size) else { return };
        let local = ranks("exact").run_all_good(world_size);
        let local: String = local.iter().map(|output| output.text.as_str()).collect();
        assert_eq!(output.code, Some(0), "{}", output.text);
        assert_eq!(digests(&output.text).len(), world_size * CASES.len());
        assert_eq!(digests(&output.text), digests(&local));
    }
}
