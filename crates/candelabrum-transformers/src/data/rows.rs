//! Rows of different lengths as one tensor, and what else the datasets here share.

use std::{fs, path::Path};

use candle_core::{Device, Tensor, WithDType};

use crate::error::{Error, Result};

/// Rows as (B, T), filled up to the longest one.
pub(crate) fn padded<T: WithDType>(rows: &[Vec<T>], padding: T) -> candle_core::Result<Tensor> {
    let width = rows.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let mut values = Vec::with_capacity(rows.len() * width);
    for (row, end) in rows.iter().zip(1..) {
        values.extend_from_slice(row);
        values.resize(end * width, padding);
    }
    Tensor::from_vec(values, (rows.len(), width), &Device::Cpu)
}

/// Refuses no samples, and more samples than 32-bit indices can name.
pub(super) fn check_count(len: usize) -> Result<()> {
    if len == 0 {
        return Err(Error::argument("the dataset is empty"));
    }
    let what = || format!("{len} samples are more than the {} that an index can name", u32::MAX);
    u32::try_from(len).map(drop).map_err(|_| Error::argument(what()))
}

/// The text of a file. A byte order mark at the start is left out.
///
/// # Errors
/// A file that cannot be read or is not UTF-8.
pub(super) fn read_text(path: &Path) -> Result<String> {
    let content = fs::read(path).map_err(Error::io("read", path))?;
    let text = String::from_utf8(content).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        Error::file(path, format!("not UTF-8 at byte {offset}: convert the file"))
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}
