//! The safetensors files of a folder: one, or several with an index.
//!
//! Only the headers are read at first. The numbers of a tensor are read when a parameter asks for them, piece by piece
//! and straight into the parameter's memory. So loading needs the memory of the parameters and of one piece, and ranks of
//! one host share the system's cache of the file. A mapped file would need the same memory, but a file that another
//! program shortens would end the process.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Var};
use half::{bf16, f16};
use parking_lot::Mutex;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde::Deserialize;

use super::partial_values::PartialValues;
use crate::config::refuse_lfs_pointer;
use crate::error::{Error, Result};

/// The bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// A longer header is no header.
const LONGEST_HEADER: u64 = 100 << 20;

/// The name of the only file.
pub(crate) const WEIGHTS: &str = "model.safetensors";

/// The name of the index of several files.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The files and where the tensors lie in them.
#[derive(Debug)]
pub(crate) struct SafetensorsFiles {
    folder: PathBuf,
    files: Vec<OpenFile>,
    tensors: BTreeMap<String, TensorPlace>,
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: Mutex<File>,
}

/// Where a tensor lies.
#[derive(Debug)]
struct TensorPlace {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    start: u64,
    len: usize,
}

/// The part of an index that matters.
#[derive(Deserialize)]
struct WeightIndex {
    weight_map: UniqueNames,
}

/// The file of each tensor. JSON permits a name twice, and the index must not have one.
struct UniqueNames(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for UniqueNames {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = UniqueNames;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the name of a file for each tensor")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<UniqueNames, A::Error> {
                let mut names = BTreeMap::new();
                while let Some((tensor, file)) = map.next_entry::<String, String>()? {
                    if let Some(other) = names.insert(tensor.clone(), file.clone()) {
                        return Err(serde::de::Error::custom(format!(
                            "it names `{tensor}` twice, in {other} and in {file}"
                        )));
                    }
                }
                Ok(UniqueNames(names))
            }
        }
        from.deserialize_map(Visitor)
    }
}

impl SafetensorsFiles {
    /// The files of `folder`. `None` if there are none.
    ///
    /// # Errors
    /// An index that is no index, names a file that is missing, or does not agree with the files. A file that is
    /// damaged or shorter than its header says.
    pub(crate) fn open(folder: &Path) -> Result<Option<Self>> {
        let (index, single) = (folder.join(INDEX), weights_file(folder));
        // As transformers: one file goes before an index.
        if single.exists() {
            return Self::of_files(folder, &[single]).map(Some);
        }
        if !index.exists() {
            return Ok(None);
        }
        let map = read_index(&index)?;
        let mut paths = Vec::new();
        for name in map.values().collect::<BTreeSet<_>>() {
            let path = folder.join(name);
            if !path.exists() {
                let count = map.values().filter(|file| *file == name).count();
                let what = format!(
                    "is missing: {INDEX} says that {count} tensors are in it; download the folder again"
                );
                return Err(Error::file(&path, what));
            }
            paths.push(path);
        }
        let files = Self::of_files(folder, &paths)?;
        for (tensor, file) in &map {
            let there = files.tensors.get(tensor).map(|place| &files.files[place.file].path);
            if there.is_none_or(|path| path.file_name() != Path::new(file).file_name()) {
                let what = format!("says that `{tensor}` is in {file}, which does not have it");
                return Err(Error::file(&index, what));
            }
        }
        Ok(Some(files))
    }

    /// One file with any name.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub(crate) fn of_file(path: &Path) -> Result<Self> {
        Self::of_files(path.parent().unwrap_or(path), &[path.to_owned()])
    }

    fn of_files(folder: &Path, paths: &[PathBuf]) -> Result<Self> {
        let (mut files, mut tensors) = (Vec::new(), BTreeMap::<String, TensorPlace>::new());
        for path in paths {
            let mut file = File::open(path).map_err(Error::io("open", path))?;
            for (name, place) in header(path, &mut file, files.len())? {
                if let Some(other) = tensors.insert(name.clone(), place) {
                    let other: &OpenFile = &files[other.file];
                    let what = format!("has `{name}`, which {} has, too", other.path.display());
                    return Err(Error::file(path, what));
                }
            }
            files.push(OpenFile { path: path.clone(), file: Mutex::new(file) });
        }
        Ok(Self { folder: folder.to_owned(), files, tensors })
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    pub(crate) fn dims(&self, name: &str) -> &[usize] {
        self.tensors.get(name).map_or(&[], |place| &place.shape)
    }

    /// The tensor `name` as a variable.
    ///
    /// # Errors
    /// A file that cannot be read, whole numbers, or numbers that are too large for `dtype`.
    pub(crate) fn read(&self, name: &str, dtype: DType, device: &Device) -> Result<Var> {
        let Some(place) = self.tensors.get(name) else {
            return Err(Error::file(&self.folder, format!("has no tensor `{name}`")));
        };
        let OpenFile { path, file } = &self.files[place.file];
        let mut file = file.lock();
        file.seek(SeekFrom::Start(place.start)).map_err(Error::io("read", path))?;
        let count = place.shape.iter().product();
        let Some(mut numbers) = PartialValues::new(dtype, count) else {
            return Err(Error::argument(format!(
                "`{name}` as {dtype:?}: no parameter has this type"
            )));
        };
        if let (Dtype::F32, PartialValues::F32(all)) = (place.dtype, &mut numbers) {
            // The usual case: straight into the parameter's memory.
            all.resize(count, 0.0);
            file.read_exact(bytemuck::cast_slice_mut(all)).map_err(Error::io("read", path))?;
            if cfg!(target_endian = "big") {
                all.iter_mut()
                    .for_each(|number| *number = f32::from_bits(number.to_bits().swap_bytes()));
            }
        } else {
            let mut piece = vec![0; PIECE.min(place.len)];
            let mut left = place.len;
            while left > 0 {
                let piece = &mut piece[..PIECE.min(left)];
                file.read_exact(piece).map_err(Error::io("read", path))?;
                left -= piece.len();
                if !extend(&mut numbers, place.dtype, piece, path, name)? {
                    let what = format!("has numbers in `{name}` that are too large for {dtype:?}");
                    return Err(Error::file(path, what));
                }
            }
        }
        Ok(numbers.into_variable(&place.shape, device)?)
    }
}

impl SafetensorsFiles {
    /// Whether two tensors are stored with the same bytes.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(super) fn are_equal(&self, one: &str, other: &str) -> Result<bool> {
        let (Some(one), Some(other)) = (self.tensors.get(one), self.tensors.get(other)) else {
            return Ok(false);
        };
        if (one.dtype, &one.shape) != (other.dtype, &other.shape) {
            return Ok(false);
        }
        let piece = |place: &TensorPlace, at: usize, piece: &mut Vec<u8>| {
            let OpenFile { path, file } = &self.files[place.file];
            let mut file = file.lock();
            piece.resize(PIECE.min(place.len - at), 0);
            file.seek(SeekFrom::Start(place.start + at as u64))
                .and_then(|_| file.read_exact(piece))
                .map_err(Error::io("read", path))
        };
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for at in (0..one.len).step_by(PIECE) {
            piece(one, at, &mut first)?;
            piece(other, at, &mut second)?;
            if first != second {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Adds the numbers of a piece of a tensor.
fn extend(
    numbers: &mut PartialValues,
    dtype: Dtype,
    piece: &[u8],
    path: &Path,
    name: &str,
) -> Result<bool> {
    Ok(match dtype {
        Dtype::F16 => numbers
            .extend(piece.as_chunks().0.iter().map(|&bytes| f64::from(f16::from_le_bytes(bytes)))),
        Dtype::BF16 => numbers
            .extend(piece.as_chunks().0.iter().map(|&bytes| f64::from(bf16::from_le_bytes(bytes)))),
        Dtype::F32 => numbers
            .extend(piece.as_chunks().0.iter().map(|&bytes| f64::from(f32::from_le_bytes(bytes)))),
        Dtype::F64 => {
            numbers.extend(piece.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)))
        }
        other => {
            let what = format!(
                "has `{name}` as {other:?}, which are no weights: take a folder in f32, f16 or bf16, or a GGUF file"
            );
            return Err(Error::file(path, what));
        }
    })
}

/// The file of each tensor by the index at `path`.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let text = std::fs::read(path).map_err(Error::io("read", path))?;
    refuse_lfs_pointer(path, &text)?;
    let WeightIndex { weight_map: UniqueNames(map) } = serde_json::from_slice(&text)
        .map_err(|error| Error::file(path, format!("is no index of weights: {error}")))?;
    for name in map.values() {
        // A name with a separator could lie anywhere.
        if Path::new(name).file_name().is_none_or(|file| file != name.as_str()) {
            let what = format!("names the file {name:?}, which is not in its folder");
            return Err(Error::file(path, what));
        }
    }
    Ok(map)
}

/// The files that the index at `path` names.
///
/// # Errors
/// A file that is no index.
pub(crate) fn shards_of(path: &Path) -> Result<BTreeSet<String>> {
    Ok(read_index(path)?.into_values().collect())
}

/// The file of a folder with one.
pub(crate) fn weights_file(folder: &Path) -> PathBuf {
    folder.join(WEIGHTS)
}

/// The places of the tensors of a file, which is the file number `number`.
fn header(path: &Path, file: &mut File, number: usize) -> Result<Vec<(String, TensorPlace)>> {
    let refuse = |what: String| Error::file(path, format!("is no safetensors file: {what}"));
    let cannot = |error: std::io::Error| {
        if error.kind() == ErrorKind::UnexpectedEof {
            refuse("it ends within its header".to_owned())
        } else {
            Error::io("read", path)(error)
        }
    };
    let mut len = [0; 8];
    file.read_exact(&mut len).map_err(cannot)?;
    let header = u64::from_le_bytes(len);
    if header > LONGEST_HEADER {
        let mut start = len.to_vec();
        file.take(64).read_to_end(&mut start).map_err(cannot)?;
        refuse_lfs_pointer(path, &start)?;
        return Err(refuse(format!("its header would have {header} bytes")));
    }
    let mut bytes = vec![0; header as usize];
    file.read_exact(&mut bytes).map_err(cannot)?;
    // Whether the tensors lie one behind the other, each in as many bytes as its numbers need, is checked there.
    let metadata: Metadata =
        serde_json::from_slice(&bytes).map_err(|error| refuse(format!("its header: {error}")))?;
    let (data, size) = (8 + header, file.metadata().map_err(Error::io("read", path))?.len());
    let end = data + metadata.data_len() as u64;
    if size < end {
        let what = format!("has {size} bytes of {end}: it is truncated; download the file again");
        return Err(Error::file(path, what));
    }
    let place = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
        let (start, end) = info.data_offsets;
        let (dtype, shape) = (info.dtype, info.shape.clone());
        (
            name,
            TensorPlace {
                file: number,
                dtype,
                shape,
                start: data + start as u64,
                len: end - start,
            },
        )
    };
    Ok(metadata.tensors().into_iter().map(place).collect())
}
