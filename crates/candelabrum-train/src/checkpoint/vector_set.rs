//! The numbers of one file of a checkpoint.
//!
//! They are copied into memory that the next checkpoint uses again: fresh memory of a whole state costs as
//! much as the copy. The file is a safetensors file, which other libraries read, too.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use candelabrum_memory::Span;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::digest::FileDigest;
use super::direct_file::DirectFile;
use super::shard::VectorShard;

/// The bytes of a file's numbers begin at a multiple of it.
const ALIGNMENT: usize = 8;

/// Vectors of f32 numbers by name, with the dimensions of their tensors.
#[derive(Debug, Default)]
pub struct VectorSet {
    entries: BTreeMap<String, VectorEntry>,
}

#[derive(Debug)]
struct VectorEntry {
    dims: Vec<usize>,
    values: Vec<f32>,
    /// Whether the values are those of this checkpoint, and not of the one before.
    is_new: bool,
}

impl VectorSet {
    /// Copies `values` of a tensor of these dimensions. Numbers on a GPU are copied to the host.
    ///
    /// # Errors
    /// A device's error.
    pub fn put(
        &mut self,
        name: &str,
        dims: &[usize],
        values: Span<'_>,
    ) -> candelabrum_memory::Result<()> {
        let entry = self.entries.entry(name.to_owned()).or_insert_with(|| VectorEntry {
            dims: Vec::new(),
            values: Vec::new(),
            is_new: false,
        });
        dims.clone_into(&mut entry.dims);
        match values {
            // Without zeros first.
            Span::Host(values) => {
                entry.values.clear();
                entry.values.extend_from_slice(values);
            }
            values => {
                entry.values.resize(values.len(), 0.0);
                values.copy_to_slice(&mut entry.values)?;
            }
        }
        entry.is_new = true;
        Ok(())
    }

    /// Copies this rank's shard of a tensor of these dimensions, from the element `start` on. A shard of nothing is left
    /// out.
    ///
    /// # Errors
    /// A device's error.
    pub fn put_shard(
        &mut self,
        name: &str,
        start: usize,
        dims: &[usize],
        values: Span<'_>,
    ) -> candelabrum_memory::Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        self.put(&VectorShard::key(name, start, dims), &[values.len()], values)
    }

    /// Begins the next checkpoint. What it does not put is dropped by [`end`](Self::end).
    pub(super) fn begin(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.is_new = false);
    }

    pub(super) fn end(&mut self) {
        self.entries.retain(|_, entry| entry.is_new);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Writes the file, and waits until it is on the disk.
    pub(super) fn write(&self, path: &Path) -> io::Result<FileDigest> {
        let header = self.header()?;
        let mut file = DirectFile::create(path)?;
        file.append(&(header.len() as u64).to_le_bytes())?;
        file.append(&header)?;
        for entry in self.entries.values() {
            file.append(bytemuck::cast_slice(&entry.values))?;
        }
        file.finish()
    }

    /// The names, dimensions and places of all vectors, in the form of safetensors.
    fn header(&self) -> io::Result<Vec<u8>> {
        let mut end = 0;
        let places = self.entries.iter().map(|(name, entry)| {
            let begin = end;
            end += size_of_val(&entry.values[..]);
            let (dtype, shape) = (Dtype::F32, entry.dims.clone());
            (name.clone(), TensorInfo { dtype, shape, data_offsets: (begin, end) })
        });
        let metadata = Metadata::new(None, places.collect()).map_err(io::Error::other)?;
        let mut header = serde_json::to_vec(&metadata)?;
        header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use safetensors::tensor::{TensorView, serialize};

    use super::*;

    #[test]
    fn a_file_has_the_bytes_that_its_format_demands() {
        let tensors: [(&str, &[usize], Vec<f32>); 4] = [
            ("features.weight", &[3, 5], (0..15_u8).map(f32::from).collect()),
            ("bias", &[1], vec![f32::NAN]),
            ("scale", &[], vec![-0.0]),
            ("none", &[0, 7], vec![]),
        ];
        let mut numbers = VectorSet::default();
        for (name, dims, values) in &tensors {
            numbers.put(name, dims, Span::Host(values)).unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("numbers.safetensors");
        let digest = numbers.write(&path).unwrap();
        let views = tensors.iter().map(|(name, dims, values)| {
            let bytes = bytemuck::cast_slice(values);
            (*name, TensorView::new(Dtype::F32, dims.to_vec(), bytes).unwrap())
        });
        let bytes = serialize(views, None).unwrap();
        assert_eq!(fs::read(&path).unwrap(), bytes);
        assert_eq!(digest, FileDigest::from_bytes(&bytes));
    }
}
