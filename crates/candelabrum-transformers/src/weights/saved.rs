//! The parameters of a model as a safetensors file that Python's `transformers` opens.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use candelabrum_nn::{Params, QuantizedMatrix};
use candle_core::{DType, Device, Tensor};
use safetensors::{Dtype, View};

use super::naming::Naming;
use crate::error::{Error, Result};

/// The named tensors of a file, in the order of their names.
pub(crate) type NamedTensors = BTreeMap<String, Tensor>;

/// A tensor that is converted when its turn in the file comes.
enum TensorToWrite {
    Tensor(Tensor),
    /// As f32.
    Quantized(QuantizedMatrix),
}

/// A [`TensorToWrite`] with its shape.
struct SavedView {
    saved: TensorToWrite,
    shape: Vec<usize>,
    transposed: bool,
}

impl View for SavedView {
    fn dtype(&self) -> Dtype {
        match &self.saved {
            TensorToWrite::Tensor(tensor) => match tensor.dtype() {
                DType::F64 => Dtype::F64,
                DType::F16 => Dtype::F16,
                DType::BF16 => Dtype::BF16,
                DType::I64 => Dtype::I64,
                _ => Dtype::F32,
            },
            TensorToWrite::Quantized(_) => Dtype::F32,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        // The type and the device were checked when the view was made. An error leaves the file short, which is found.
        Cow::Owned(self.bytes().unwrap_or_default())
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype().bitsize() / 8
    }
}

impl SavedView {
    fn bytes(&self) -> candle_core::Result<Vec<u8>> {
        let mut tensor = match &self.saved {
            TensorToWrite::Tensor(tensor) => tensor.to_device(&Device::Cpu)?,
            TensorToWrite::Quantized(matrix) => matrix.dequantize(DType::F32, &Device::Cpu)?,
        };
        if self.transposed {
            tensor = tensor.t()?.contiguous()?;
        }
        let tensor = tensor.flatten_all()?;
        fn all<const N: usize, T>(numbers: Vec<T>, bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
            numbers.into_iter().flat_map(bytes).collect()
        }
        Ok(match tensor.dtype() {
            DType::F64 => all(tensor.to_vec1()?, f64::to_le_bytes),
            DType::F16 => all(tensor.to_vec1()?, half::f16::to_le_bytes),
            DType::BF16 => all(tensor.to_vec1()?, half::bf16::to_le_bytes),
            DType::I64 => all(tensor.to_vec1()?, i64::to_le_bytes),
            _ => all(tensor.to_vec1()?, f32::to_le_bytes),
        })
    }
}

/// Writes the parameters and quantised matrices of a model but those of adapters, and tensors that it has `kept`, to
/// `path`.
///
/// # Errors
/// A file that cannot be written.
pub(crate) fn save(
    params: &Params,
    kept: &NamedTensors,
    naming: &Naming,
    path: &Path,
) -> Result<()> {
    let kept = kept.iter().map(|(name, tensor)| (name.clone(), view(tensor.clone(), false)));
    let mut named: BTreeMap<_, _> = kept.collect();
    for param in params.list() {
        if is_of_adapter(param.name()) {
            continue;
        }
        // Other ranks may keep a part of the values.
        param.gather()?;
        let tensor = param.var().as_detached_tensor();
        named.insert(param.name().to_owned(), view(tensor, naming.transposes(param.name())));
    }
    for (name, matrix) in params.constants() {
        let ((rows, columns), transposed) = (matrix.dims(), naming.transposes(&name));
        let shape = if transposed { vec![columns, rows] } else { vec![rows, columns] };
        named
            .insert(name, SavedView { saved: TensorToWrite::Quantized(matrix), shape, transposed });
    }
    write(named, path)
}

/// Writes tensors to `path`.
///
/// # Errors
/// A file that cannot be written.
pub(crate) fn save_named(named: NamedTensors, path: &Path) -> Result<()> {
    write(named.into_iter().map(|(name, tensor)| (name, view(tensor, false))).collect(), path)
}

fn view(tensor: Tensor, transposed: bool) -> SavedView {
    let mut shape = tensor.dims().to_vec();
    let transposed = transposed && shape.len() == 2;
    if transposed {
        shape.reverse();
    }
    SavedView { saved: TensorToWrite::Tensor(tensor), shape, transposed }
}

/// Whether this is a parameter of an adapter, which has a folder of its own.
pub(crate) fn is_of_adapter(name: &str) -> bool {
    name.contains(".lora_")
}

fn write(named: BTreeMap<String, SavedView>, path: &Path) -> Result<()> {
    let size: usize = named.values().map(View::data_len).sum();
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::serialize_to_file(named, Some(metadata), path)
        .map_err(|error| Error::file(path, format!("cannot be written: {error}")))?;
    match fs::metadata(path).map_err(Error::io("read", path))?.len() {
        len if len < size as u64 => {
            Err(Error::file(path, format!("was written with {len} bytes of {size}")))
        }
        _ => Ok(()),
    }
}
