//! A checkpoint that has been read: every file that this rank needs, verified, in memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use candelabrum_memory::SpanMut;
use safetensors::{Dtype, SafeTensors};

use super::manifest::{Manifest, PartState};
use super::saving::own_facts;
use super::shard::SHARD;
use super::snapshot::{OwnFacts, own_name, shard_name, shared_name};
use crate::{Error, Metrics, Result};

/// How the names of files begin that hooks have in a checkpoint.
pub(crate) const HOOK_FILES: &str = "hook-";

/// A checkpoint in memory.
#[derive(Debug)]
pub struct Restored {
    path: PathBuf,
    manifest: Manifest,
    /// By the name of the file, without its ending.
    files: BTreeMap<String, VectorFile>,
    own: Vec<OwnFacts>,
    rank: usize,
    world_size: usize,
}

/// A file of numbers.
#[derive(Debug)]
pub struct VectorFile {
    path: PathBuf,
    bytes: Vec<u8>,
    /// The dimensions of each vector, and where it lies.
    vectors: BTreeMap<String, (Vec<usize>, Range<usize>)>,
}

impl Restored {
    /// Reads the checkpoint in `path` for this rank.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a file that is missing, damaged, or of another version.
    pub(super) fn read(path: &Path, rank: usize, world_size: usize) -> Result<Self> {
        let manifest = Manifest::read(path)?;
        let (mut files, mut own) = (BTreeMap::new(), Vec::new());
        // At another number of ranks, each rank needs what all ranks had of their own.
        let had = manifest.world_size;
        let needed = if had == world_size { rank..rank + 1 } else { 0..had };
        let own_files: Vec<String> =
            needed.clone().map(|rank| format!("-rank-{rank}.safetensors")).collect();
        for (name, digest) in &manifest.files {
            let is_own = own_files.iter().any(|own| name.ends_with(own.as_str()));
            if !name.ends_with(".safetensors")
                || name.contains('/')
                || name.contains(SHARD)
                || name.contains("-rank-") && !is_own
            {
                continue;
            }
            let file = path.join(name);
            let loaded = VectorFile::new(&file, digest.read(&file)?)?;
            files.insert(name.trim_end_matches(".safetensors").to_owned(), loaded);
        }
        // What servers have is verified by rank 0 for all.
        for (name, digest) in
            manifest.files.iter().filter(|(name, _)| name.contains('/') && rank == 0)
        {
            digest.read(&path.join(name))?;
        }
        // Shards are read again when the vectors are there that they are for. A damaged one is found now.
        for (name, digest) in &manifest.files {
            let rank =
                name.rsplit_once(SHARD).and_then(|(_, rank)| rank.strip_suffix(".safetensors"));
            if rank.and_then(|rank| rank.parse().ok()).is_some_and(|rank| needed.contains(&rank)) {
                digest.read(&path.join(name))?;
            }
        }
        for rank in needed {
            let name = own_facts(rank);
            let file = path.join(&name);
            let missing = || Error::checkpoint(&file, "is not among the files of the checkpoint");
            let bytes = manifest.files.get(&name).ok_or_else(missing)?.read(&file)?;
            let facts = serde_json::from_slice(&bytes);
            own.push(facts.map_err(|error| damaged(&file, &error))?);
        }
        Ok(Self { path: path.to_owned(), manifest, files, own, rank, world_size })
    }

    /// The directory of the checkpoint.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the checkpoint is of.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The state of the optimizer of a part.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is no such part.
    pub fn part(&self, part: &str) -> Result<&PartState> {
        let names =
            || self.manifest.parts.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>();
        self.manifest.parts.get(part).ok_or_else(|| {
            self.refuse(format!("has no part `{part}`: its parts are {}", names().join(", ")))
        })
    }

    /// The file called `name` of a part that all ranks share.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is none.
    pub fn shared(&self, part: &str, name: &str) -> Result<&VectorFile> {
        self.file(&shared_name(part, name))
    }

    /// The files called `name` of a part that belong to this rank: its own one, or at another number of ranks
    /// those of all ranks.
    pub fn own(&self, part: &str, name: &str) -> Vec<&VectorFile> {
        let ranks = if self.is_same_world() {
            self.rank..self.rank + 1
        } else {
            0..self.manifest.world_size
        };
        ranks.filter_map(|rank| self.files.get(&own_name(part, name, rank))).collect()
    }

    /// Reads the shard of rank `rank` of the file called `name` of a part. `None` if that rank had no shard.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a damaged file.
    pub(super) fn shard(&self, part: &str, name: &str, rank: usize) -> Result<Option<VectorFile>> {
        let name = format!("{}.safetensors", shard_name(part, name, rank));
        let Some(digest) = self.manifest.files.get(&name) else { return Ok(None) };
        let file = self.path.join(&name);
        VectorFile::new(&file, digest.read(&file)?).map(Some)
    }

    /// Whether ranks have written shards of the file called `name` of a part.
    pub(super) fn has_shards(&self, part: &str, name: &str) -> bool {
        let start = format!("{}{SHARD}", shared_name(part, name));
        self.manifest.files.keys().any(|file| file.starts_with(&start))
    }

    /// The ranks that have written shards. This rank's number comes first, if it is among them.
    pub(super) fn shards(&self) -> impl Iterator<Item = usize> + use<> {
        let (own, count) = (self.rank, self.manifest.world_size);
        (own..count).take(1).chain((0..count).filter(move |&rank| rank != own))
    }

    /// Whether a hook has written the file of this name.
    pub(crate) fn has_hook_vectors(&self, name: &str) -> bool {
        self.whole(name).is_some() || self.has_shards("", name)
    }

    /// The file of this name that rank 0 has written as a whole.
    pub(super) fn whole(&self, name: &str) -> Option<&VectorFile> {
        self.files.get(name)
    }

    /// Whether as many ranks train now as when the checkpoint was written.
    pub fn is_same_world(&self) -> bool {
        self.manifest.world_size == self.world_size
    }

    /// The draws of noise of this rank.
    pub(super) fn noise_draws(&self, part: &str) -> u64 {
        self.own
            .iter()
            .filter_map(|own| own.noise_draws.get(part))
            .copied()
            .max()
            .unwrap_or_default()
    }

    /// The counts of this rank in the epoch so far. At another number of ranks rank 0 has those of all.
    pub(super) fn metrics(&self) -> Metrics {
        if self.is_same_world() || self.rank == 0 {
            return self.own.iter().fold(Metrics::default(), |sum, own| sum.plus(&own.metrics));
        }
        Metrics::default()
    }

    fn file(&self, name: &str) -> Result<&VectorFile> {
        let missing = || self.refuse(format!("has no file {name}.safetensors"));
        self.whole(name).ok_or_else(missing)
    }

    pub(super) fn refuse(&self, what: String) -> Error {
        Error::checkpoint(&self.path, what)
    }

    /// Returns an error if what the model has from its files and nothing trains is not what it was.
    pub(super) fn check_constants(&self, saved: Option<&str>, here: Option<&str>) -> Result<()> {
        if saved == here {
            return Ok(());
        }
        Err(self.refuse(match (saved, here) {
            (Some(_), None) => {
                "is of a pretrained model with frozen parameters, which this run does not have: load the same files, and freeze or adapt the same parameters".to_owned()
            }
            _ => {
                "is of another pretrained model, or of one with other frozen parameters: continue with the files and adapters of the first run, not merged".to_owned()
            }
        }))
    }
}

fn damaged(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::checkpoint(path, format!("is damaged: {error}"))
}

impl VectorFile {
    fn new(path: &Path, bytes: Vec<u8>) -> Result<Self> {
        let file = SafeTensors::deserialize(&bytes).map_err(|error| damaged(path, &error))?;
        let mut vectors = BTreeMap::new();
        for (name, view) in file.tensors() {
            if view.dtype() != Dtype::F32 {
                let what = format!("has `{name}` in {:?} and not in F32", view.dtype());
                return Err(Error::checkpoint(path, what));
            }
            let start = view.data().as_ptr().addr() - bytes.as_ptr().addr();
            vectors.insert(name, (view.shape().to_vec(), start..start + view.data().len()));
        }
        Ok(Self { path: path.to_owned(), bytes, vectors })
    }

    /// The names of all vectors, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.vectors.keys().map(String::as_str)
    }

    /// The dimensions of a vector; none if there is none of this name.
    pub(super) fn dims(&self, name: &str) -> Vec<usize> {
        self.vectors.get(name).map(|(dims, _)| dims.clone()).unwrap_or_default()
    }

    /// The number of elements of a vector; 0 if there is none of this name.
    pub(super) fn elements(&self, name: &str) -> usize {
        self.vectors.get(name).map_or(0, |(_, range)| range.len() / size_of::<f32>())
    }

    /// Whether there is a vector of this name.
    pub fn has(&self, name: &str) -> bool {
        self.vectors.contains_key(name)
    }

    /// Returns an error if the vectors are not those of `expected`, names with their dimensions.
    ///
    /// # Errors
    /// [`Error::Checkpoint`], which names the first difference.
    pub fn check(&self, expected: &[(String, Vec<usize>)]) -> Result<()> {
        for (name, dims) in expected {
            match self.vectors.get(name) {
                None => return Err(self.refuse(format!("has no `{name}`, which this model has"))),
                Some((saved, _)) if saved != dims => {
                    return Err(self.refuse(format!(
                        "has `{name}` of {saved:?}, in this model it is {dims:?}"
                    )));
                }
                Some(_) => {}
            }
        }
        let unknown = |name: &&str| !expected.iter().any(|(expected, _)| expected == name);
        match self.names().find(unknown) {
            Some(name) => Err(self.refuse(format!("has `{name}`, which this model does not have"))),
            None => Ok(()),
        }
    }

    /// The numbers of a vector.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is no vector of this name.
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        let (_, range) =
            self.vectors.get(name).ok_or_else(|| self.refuse(format!("has no `{name}`")))?;
        let (numbers, _) = self.bytes[range.clone()].as_chunks();
        Ok(numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// Copies a vector to `place`, which has as many elements.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for another number of elements, and a device's error.
    pub fn copy_to(&self, name: &str, mut place: SpanMut<'_>) -> Result<()> {
        let values = self.values(name)?;
        if values.len() != place.len() {
            let (saved, here) = (values.len(), place.len());
            return Err(self.refuse(format!("has {saved} elements as `{name}`, here are {here}")));
        }
        Ok(place.copy_from((&values).into()).map_err(candelabrum_dist::Error::from)?)
    }

    fn refuse(&self, what: String) -> Error {
        Error::checkpoint(&self.path, what)
    }
}
