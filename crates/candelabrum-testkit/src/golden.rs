//! Golden files: safetensors written by `scripts/golden`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use candle_core::safetensors::Load;
use candle_core::{Device, Tensor};
use safetensors::SafeTensors;

/// The tensors of a golden file, by name.
///
/// # Panics
///
/// If the file is missing or no safetensors file, with its path.
#[track_caller]
pub fn golden(path: impl AsRef<Path>) -> BTreeMap<String, Tensor> {
    let path = path.as_ref();
    let data = read(path);
    let file = SafeTensors::deserialize(&data)
        .unwrap_or_else(|error| panic!("golden file {}: {error}", path.display()));
    let load = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
        let tensor = view
            .load(&Device::Cpu)
            .unwrap_or_else(|error| panic!("tensor {name} of {}: {error}", path.display()));
        (name.to_owned(), tensor)
    };
    file.iter().map(load).collect()
}

/// The metadata of a golden file: tool versions, hyper-parameters as JSON.
///
/// # Panics
///
/// If the file is missing or no safetensors file, with its path.
#[track_caller]
pub fn golden_metadata(path: impl AsRef<Path>) -> BTreeMap<String, String> {
    let path = path.as_ref();
    let data = read(path);
    let (_, header) = SafeTensors::read_metadata(&data)
        .unwrap_or_else(|error| panic!("golden file {}: {error}", path.display()));
    header.metadata().clone().into_iter().flatten().collect()
}

#[track_caller]
fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| {
        panic!("golden file {}: {error}; scripts/golden writes it", path.display())
    })
}
