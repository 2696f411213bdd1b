//! The folders of `tests/tiny`, what Python's `transformers` computes of them, and comparisons with that.

use std::fs;
use std::path::{Path, PathBuf};

use candelabrum_dist::{DistOpt, World};
use candelabrum_nn::{Model, Params};
use candelabrum_optim::AdamW;
use candelabrum_transformers::Pretrained;
use candle_core::{DType, Device, Tensor};
use serde_json::Value;

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Looser bounds would not tell exact GELU from its approximation.
pub(crate) const CLOSE: f64 = 1e-5;

pub(crate) fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

pub(crate) fn tiny(name: &str) -> PathBuf {
    tests().join("tiny").join(name)
}

/// A copy of a tiny folder, which may be changed.
pub(crate) fn copy(name: &str) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    for entry in fs::read_dir(tiny(name))? {
        let entry = entry?;
        fs::copy(entry.path(), folder.path().join(entry.file_name()))?;
    }
    Ok(folder)
}

pub(crate) fn read(path: &Path) -> Result<Value> {
    Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
}

/// The error of a causal model in `path`.
pub(crate) fn error_of(path: &Path) -> String {
    let params = Params::new(0);
    let loaded = Pretrained::open(path).and_then(|pretrained| pretrained.causal_lm(&params));
    loaded.map(drop).expect_err("the model cannot be used").to_string()
}

/// What `transformers` computes of a folder.
pub(crate) struct Expected(pub(crate) Value);

impl Expected {
    pub(crate) fn of(name: &str) -> Result<Self> {
        Ok(Self(read(&tiny(name).join("expected.json"))?))
    }

    pub(crate) fn numbers(&self, key: &str) -> Vec<f64> {
        let list = self.0[key].as_array().unwrap_or_else(|| panic!("expected.json has {key}"));
        list.iter().map(|number| number.as_f64().expect("a number")).collect()
    }

    pub(crate) fn tokens(&self) -> Result<Tensor> {
        let rows: Vec<Vec<u32>> = serde_json::from_value(self.0["tokens"].clone())?;
        Ok(Tensor::new(rows, &Device::Cpu)?)
    }

    pub(crate) fn labels(&self) -> Result<Tensor> {
        let labels: Vec<u32> = serde_json::from_value(self.0["labels"].clone())?;
        Ok(Tensor::new(labels, &Device::Cpu)?)
    }
}

/// The images of `expected.json`.
pub(crate) fn pixels() -> Result<Tensor> {
    let pixels = (0..2 * 3 * 16 * 16).map(|i| (0.37 * f64::from(i)).sin() as f32);
    Ok(Tensor::from_iter(pixels, &Device::Cpu)?.reshape((2, 3, 16, 16))?)
}

#[track_caller]
pub(crate) fn assert_close(what: &str, got: &Tensor, expected: &[f64]) {
    assert_within(CLOSE, what, got, expected);
}

#[track_caller]
#[expect(clippy::print_stderr, reason = "a test says what it measures")]
pub(crate) fn assert_within(bound: f64, what: &str, got: &Tensor, expected: &[f64]) {
    let got = got.flatten_all().and_then(|got| got.to_dtype(DType::F64)?.to_vec1::<f64>());
    let got = got.expect("numbers");
    assert_eq!(got.len(), expected.len(), "{what}");
    let difference = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    eprintln!("{what}: a difference of {difference:.1e}");
    assert!(difference <= bound, "{what}: a difference of {difference:e}");
}

/// The losses of 20 steps of AdamW on one batch.
pub(crate) fn losses(
    model: &impl Model,
    params: &Params,
    (xs, ys): (&Tensor, &Tensor),
    weight_decay: f64,
) -> Result<Vec<f64>> {
    let optimizer = AdamW::new(5e-3).weight_decay(weight_decay);
    let mut opt = DistOpt::new(optimizer, params, &World::single())?;
    let mut losses = Vec::new();
    for _ in 0..20 {
        let (_, loss) = model.output_and_loss(xs, ys)?;
        losses.push(f64::from(loss.to_scalar::<f32>()?));
        opt.backward_and_update(&loss)?;
    }
    Ok(losses)
}

/// All tokens but the last of each row, and those that follow.
pub(crate) fn shifted(tokens: &Tensor) -> Result<(Tensor, Tensor)> {
    let length = tokens.dim(1)?;
    let part = |first| tokens.narrow(1, first, length - 1)?.contiguous();
    Ok((part(0)?, part(1)?.to_dtype(DType::I64)?))
}
