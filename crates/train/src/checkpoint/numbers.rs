//! The numbers of one file of a checkpoint.
//!
//! They are copied into memory that the next checkpoint uses again: fresh memory of a whole state costs as
//! much as the copy. The file is a safetensors file, which other libraries read, too.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use candelabrum_memory::Span;
use safetensors::{Dtype, View, serialize_to_file};

use super::digest::FileDigest;

/// Vectors of f32 numbers by name, with the dimensions of their tensors.
#[derive(Debug, Default)]
pub struct Numbers {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    dims: Vec<usize>,
    values: Vec<f32>,
    /// Whether the values are those of this checkpoint, and not of the one before.
    is_new: bool,
}

impl Numbers {
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
        let entry = self.entries.entry(name.to_owned()).or_insert_with(|| Entry {
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

    /// Writes the file, and waits until it is on the disk. The digest is that of the bytes read back.
    pub(super) fn write(&self, path: &Path) -> io::Result<FileDigest> {
        serialize_to_file(&self.entries, None, path).map_err(io::Error::other)?;
        File::open(path)?.sync_all()?;
        FileDigest::of_file(path)
    }
}

impl View for &Entry {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.dims
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(bytemuck::cast_slice(&self.values))
    }

    fn data_len(&self) -> usize {
        size_of::<f32>() * self.values.len()
    }
}
