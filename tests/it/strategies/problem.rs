//! The problem of every case: parameters, gradients that depend on rank and step alone, the cases.

use candelabrum::dist::{DistOptConfig, StrategyConfig};
use candelabrum::nn::Init;
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::RanksOf;

pub(crate) const STEPS: u64 = 5;

/// Name and shape of every parameter. Under [`BUCKET`] they make three buckets: `big` alone; `b2`,
/// `w2`, `b1` and `w1`; `embed`.
pub(crate) const PARAMS: [(&str, &[usize]); 6] = [
    ("embed", &[40, 6]),
    ("w1", &[31, 9]),
    ("b1", &[17]),
    ("w2", &[200]),
    ("b2", &[1]),
    ("big", &[701]),
];

/// SINGA's `threshold` of every case.
pub(crate) const BUCKET: usize = 300;

pub(crate) const LR: f32 = 0.1;
pub(crate) const MOMENTUM: f32 = 0.9;
pub(crate) const WEIGHT_DECAY: f32 = 0.01;

/// A strategy and its settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) option: DistOption,
    pub(crate) spars: f32,
    pub(crate) corr: bool,
}

/// The variable with the case of a rank.
pub(crate) const CASE: &str = "STRATEGIES_CASE";

/// Ranks that run a case.
pub(crate) fn ranks(case: &str) -> RanksOf {
    RanksOf::test("strategies::rank_main").env(CASE, case)
}

/// Every case. Of the last four, some buckets are sent whole in some worlds.
pub(crate) const CASES: [Case; 12] = [
    case(DistOption::Fp32, 0.5, true),
    case(DistOption::Fp16, 0.5, true),
    case(DistOption::Bf16, 0.5, true),
    case(DistOption::PartialUpdate, 0.5, true),
    case(DistOption::SparseTopK, 0.05, true),
    case(DistOption::SparseTopK, 0.05, false),
    case(DistOption::SparseThreshold, 0.6, true),
    case(DistOption::SparseThreshold, 0.6, false),
    case(DistOption::SparseTopK, 0.3, true),
    case(DistOption::SparseTopK, 0.3, false),
    case(DistOption::SparseThreshold, 0.02, true),
    case(DistOption::SparseThreshold, 0.02, false),
];

const fn case(option: DistOption, spars: f32, corr: bool) -> Case {
    Case { option, spars, corr }
}

impl Case {
    pub(crate) fn config(self) -> DistOptConfig {
        let mut strategy = StrategyConfig::default();
        strategy.corr = self.corr;
        DistOptConfig { threshold: Some(BUCKET), strategy, ..DistOptConfig::default() }
    }
}

/// The number of elements of parameter number `param`.
pub(crate) fn len(param: usize) -> usize {
    PARAMS[param].1.iter().product()
}

pub(crate) fn initial(param: usize) -> Vec<f32> {
    uniform(param, 1_000_000 + param as u64)
}

/// A parameter's gradient: many small elements and a few large ones.
pub(crate) fn gradient(rank: usize, step: u64, param: usize) -> Vec<f32> {
    let seed = (rank as u64 * 100 + step) * 100 + param as u64;
    uniform(param, seed).into_iter().map(|x| x.powi(3)).collect()
}

fn uniform(param: usize, seed: u64) -> Vec<f32> {
    let values = candelabrum_testkit::uniform(len(param), seed, -1.0, 1.0, DType::F32);
    values.and_then(|values| values.to_vec1()).unwrap()
}

/// All parameters, with their initial values.
pub(crate) fn params() -> Params {
    let params = Params::new(0);
    for (index, (name, shape)) in PARAMS.into_iter().enumerate() {
        let param = params.root().param(name, shape, Init::ZEROS).unwrap();
        let values = Tensor::from_vec(initial(index), shape, &Device::Cpu).unwrap();
        param.set(&values).unwrap();
    }
    params
}

/// A loss whose gradient is [`gradient`], whatever the parameters are.
pub(crate) fn loss(params: &Params, rank: usize, step: u64) -> Tensor {
    let term = |(index, param): (usize, &candelabrum::nn::Param)| {
        let slope = gradient(rank, step, index);
        let slope = Tensor::from_vec(slope, PARAMS[index].1, &Device::Cpu).unwrap();
        (param.tensor() * slope).unwrap().sum_all().unwrap()
    };
    let terms: Vec<Tensor> = params.list().iter().enumerate().map(term).collect();
    Tensor::stack(&terms, 0).unwrap().sum_all().unwrap()
}
