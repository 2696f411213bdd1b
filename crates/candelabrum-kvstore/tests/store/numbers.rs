//! Reproducible numbers, digests, and the sequential references of updates and of compression.

use candelabrum_kvstore::Compression;
use candelabrum_optim::{Optimizer, ParamInfo, Recipe};
use candelabrum_testkit::split_mix;
use candle_core::{Device, Tensor};
use half::{bf16, f16};

/// Numbers in [-1, 1) that depend on these three numbers alone. Their sums round.
pub(crate) fn numbers(what: u64, worker: usize, round: usize, len: usize) -> Vec<f32> {
    let seed = split_mix(split_mix(what) ^ (worker as u64) << 32 ^ round as u64);
    let number = |place: u64| (split_mix(seed ^ place << 20) >> 40) as f32 / (1 << 23) as f32 - 1.0;
    (0..len as u64).map(number).collect()
}

pub(crate) fn tensor(values: &[f32], dims: &[usize]) -> Tensor {
    Tensor::from_slice(values, dims, &Device::Cpu).expect("a tensor")
}

pub(crate) fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().and_then(|tensor| tensor.to_vec1()).expect("an f32 tensor")
}

/// The sum of lists, added in their order.
pub(crate) fn sum(lists: &[Vec<f32>]) -> Vec<f32> {
    let mut sum = lists[0].clone();
    for list in &lists[1..] {
        sum.iter_mut().zip(list).for_each(|(sum, value)| *sum += value);
    }
    sum
}

#[track_caller]
pub(crate) fn assert_same_bits(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (place, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.to_bits(), expected.to_bits(), "{what}: {got} for {expected} at {place}");
    }
}

/// A digest of numbers by their bits (FNV-1a).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(pub(crate) u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    pub(crate) fn add(&mut self, values: &[f32]) {
        for byte in values.iter().flat_map(|value| value.to_bits().to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// An optimizer run by hand on a whole value.
pub(crate) struct ByHand {
    optimizer: Box<dyn Optimizer>,
    divide_by: f32,
    pub(crate) values: Vec<f32>,
}

impl ByHand {
    pub(crate) fn new(recipe: &Recipe, divide_by: f32, name: &str, values: Vec<f32>) -> Self {
        let mut optimizer = recipe.build();
        let dims = [values.len()];
        optimizer.bind(&[ParamInfo::on_host(name, &dims)]).expect("good settings");
        Self { optimizer, divide_by, values }
    }

    /// An update by the sum of gradients.
    pub(crate) fn update(&mut self, mut sum: Vec<f32>) {
        sum.iter_mut().for_each(|x| *x /= self.divide_by);
        let (values, grad) = (self.values.as_mut_slice(), sum.as_slice());
        self.optimizer.update(0, values.into(), grad.into()).expect("a fitting gradient");
        self.optimizer.step();
    }

    /// A step without a gradient for these values, as for rows that are not pushed.
    pub(crate) fn pass(&mut self) {
        self.optimizer.step();
    }
}

/// A worker's compression of one part of a key, written down from the definitions.
#[derive(Clone, Debug)]
pub(crate) struct Compressor {
    compression: Compression,
    residual: Vec<f32>,
}

impl Compressor {
    pub(crate) fn new(compression: Compression, len: usize) -> Self {
        Self { compression, residual: vec![0.0; len] }
    }

    /// What a server decodes of these values.
    pub(crate) fn send(&mut self, values: &[f32]) -> Vec<f32> {
        let keeps = self.compression.keeps_residual();
        let input: Vec<f32> = match keeps {
            true => values.iter().zip(&self.residual).map(|(value, rest)| value + rest).collect(),
            false => values.to_vec(),
        };
        let sent: Vec<f32> = match self.compression {
            Compression::None => input.clone(),
            Compression::Fp16 => input.iter().map(|x| f16::from_f32(*x).to_f32()).collect(),
            Compression::Bf16 => input.iter().map(|x| bf16::from_f32(*x).to_f32()).collect(),
            Compression::TwoBit { threshold: t } => {
                let code = |x: &f32| match *x {
                    x if x >= t => t,
                    x if x <= -t => -t,
                    _ => 0.0,
                };
                input.iter().map(code).collect()
            }
            Compression::OneBit { threshold } => {
                input.iter().map(|x| if *x > threshold { 1.0 } else { -1.0 }).collect()
            }
            Compression::TopK { share } => {
                let mut order: Vec<usize> = (0..input.len()).collect();
                order.sort_by(|a, b| input[*b].abs().total_cmp(&input[*a].abs()));
                let count = (f64::from(share) * input.len() as f64).ceil() as usize;
                let chosen = &order[..count];
                let value = |(place, x): (usize, &f32)| match chosen.contains(&place) {
                    true => *x,
                    false => 0.0,
                };
                input.iter().enumerate().map(value).collect()
            }
            Compression::Threshold { magnitude } => {
                input.iter().map(|x| if x.abs() >= magnitude { *x } else { 0.0 }).collect()
            }
            other => panic!("{other:?} has no reference"),
        };
        if keeps {
            self.residual = input.iter().zip(&sent).map(|(input, sent)| input - sent).collect();
        }
        sent
    }

    pub(crate) fn residual(&self) -> &[f32] {
        &self.residual
    }
}
