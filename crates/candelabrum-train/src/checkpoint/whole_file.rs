//! A file of a checkpoint as a whole, where ranks have written their shards of it.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{TensorView, serialize};
use safetensors::{Dtype, SafeTensors};

use super::manifest::Manifest;
use super::shard::{SHARD, VectorShard};
use crate::{Error, Result};

/// A tensor of a file: its dimensions, and the bytes of its numbers, which are f32.
type WholeTensor = (Vec<usize>, Vec<u8>);

/// The bytes of a safetensors file of a checkpoint, verified. Its name is given without the ending. Tensors of which
/// each rank has written a shard are put together.
pub(super) fn read(checkpoint: &Path, name: &str) -> Result<Vec<u8>> {
    let manifest = Manifest::read(checkpoint)?;
    let (whole, start) = (format!("{name}.safetensors"), format!("{name}{SHARD}"));
    let shards: Vec<&String> =
        manifest.files.keys().filter(|file| file.starts_with(&start)).collect();
    let has_whole = manifest.files.contains_key(&whole);
    if shards.is_empty() {
        return file(checkpoint, &manifest, &whole);
    }
    let mut tensors: BTreeMap<String, WholeTensor> = BTreeMap::new();
    if has_whole {
        let bytes = file(checkpoint, &manifest, &whole)?;
        for (name, view) in parsed(checkpoint, &bytes)?.tensors() {
            tensors.insert(name, (view.shape().to_vec(), view.data().to_vec()));
        }
    }
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for shard in shards {
        let bytes = file(checkpoint, &manifest, shard)?;
        for (key, view) in parsed(checkpoint, &bytes)?.tensors() {
            let VectorShard { vector, start, dims } = VectorShard::from_key(&key);
            let len = dims.iter().product::<usize>() * size_of::<f32>();
            let (_, place) =
                tensors.entry(vector.to_owned()).or_insert_with(|| (dims.clone(), vec![0; len]));
            let start = start * size_of::<f32>();
            let place = place.get_mut(start..start + view.data().len());
            let outside =
                || Error::checkpoint(checkpoint, format!("has `{key}` outside of its tensor"));
            place.ok_or_else(outside)?.copy_from_slice(view.data());
            *found.entry(vector.to_owned()).or_default() += view.data().len();
        }
    }
    for (name, bytes) in found {
        let expected = tensors.get(&name).map_or(0, |(_, values)| values.len());
        if bytes != expected {
            let what = format!("has {bytes} of the {expected} bytes of `{name}`");
            return Err(Error::checkpoint(checkpoint, what));
        }
    }
    let views: Result<Vec<(&String, TensorView<'_>)>> = tensors
        .iter()
        .map(|(name, (dims, bytes))| {
            let view = TensorView::new(Dtype::F32, dims.clone(), bytes);
            Ok((name, view.map_err(|error| unusable(checkpoint, &error))?))
        })
        .collect();
    serialize(views?, None).map_err(|error| unusable(checkpoint, &error))
}

/// The bytes of one file, verified.
fn file(checkpoint: &Path, manifest: &Manifest, name: &str) -> Result<Vec<u8>> {
    let missing =
        || format!("has no `{name}`: a training of several models has a file for each model");
    let digest =
        manifest.files.get(name).ok_or_else(|| Error::checkpoint(checkpoint, missing()))?;
    digest.read(&checkpoint.join(name))
}

fn parsed<'b>(checkpoint: &Path, bytes: &'b [u8]) -> Result<SafeTensors<'b>> {
    SafeTensors::deserialize(bytes).map_err(|error| unusable(checkpoint, &error))
}

pub(super) fn unusable(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::checkpoint(path, format!("cannot be read: {error}"))
}
