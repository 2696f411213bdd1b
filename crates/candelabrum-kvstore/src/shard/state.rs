//! The state of a server in a file: values, the optimizer's state, versions.
//!
//! Each server writes a file of its own, in the format of safetensors, because no other process has
//! room for a large table. The file replaces an older one at once and whole.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use candelabrum_memory::FlatTensor;
use candelabrum_optim::Optimizer;
use safetensors::tensor::{Dtype, SafeTensors, View, serialize_to_file};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::loaded::StoredValue;
use super::means::UpdateInputs;
use super::settings::{KeyInit, OptimizerSettings};
use super::{KeySlot, KeyValue, ServerShard};
use crate::wire::numbers;
use crate::{Error, Result};

/// The version of the format.
const FORMAT: u32 = 1;

/// The entry of the file's metadata that has the [`digest`], by which a damaged file is recognised, and
/// [`StateContents`] in JSON. It is the only one, because the format keeps no order among several.
const CONTENTS: &str = "candelabrum-kvstore";

#[derive(Serialize, Deserialize)]
struct StateContents {
    format: u32,
    server: usize,
    servers: usize,
    optimizer: Option<OptimizerSettings>,
    /// By the key's number.
    keys: BTreeMap<u32, StateEntry>,
}

#[derive(Serialize, Deserialize)]
struct StateEntry {
    init: KeyInit,
    version: u64,
    /// Steps of the optimizer, and the number of its vectors; `None` before the first update.
    optimizer: Option<(u64, usize)>,
}

/// Numbers in a file: those of a state in use, or a copy of some of them.
struct StateElements<'a> {
    dtype: Dtype,
    shape: [usize; 1],
    bytes: Cow<'a, [u8]>,
}

impl<'a> StateElements<'a> {
    /// The given rows of `values`, or all values. Only rows are copied.
    fn from_values(values: &'a [f32], rows: Option<&[u32]>, row_len: usize) -> Self {
        let bytes = match rows {
            None => Cow::Borrowed(bytemuck::cast_slice(values)),
            Some(rows) => Cow::Owned(gathered(values, rows, row_len)),
        };
        Self { dtype: Dtype::F32, shape: [bytes.len() / size_of::<f32>()], bytes }
    }

    fn positions(rows: &[u32]) -> Self {
        let bytes = Cow::Owned(bytemuck::cast_slice(rows).to_vec());
        Self { dtype: Dtype::U32, shape: [rows.len()], bytes }
    }
}

impl View for StateElements<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// A file of a state whose bytes are those that were written.
struct StateFile<'f> {
    path: &'f Path,
    tensors: SafeTensors<'f>,
    contents: StateContents,
}

impl<'f> StateFile<'f> {
    fn read(path: &'f Path, bytes: &'f [u8]) -> Result<Self> {
        let damaged = |error: &dyn Display| damaged(path, error);
        let file = SafeTensors::deserialize(bytes).map_err(|error| damaged(&error))?;
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| damaged(&error))?;
        let entry = metadata.metadata().as_ref().and_then(|entries| entries.get(CONTENTS));
        let entry = entry.and_then(|entry| entry.split_once(' '));
        let (written, text) = entry.ok_or_else(|| refused(path, "is no state of a server"))?;
        let mut tensors = file.tensors();
        tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
        let all = tensors.iter().map(|(name, tensor)| (&**name, tensor.data()));
        if digest(text, all) != written {
            return Err(damaged(&"its bytes are not those that were written"));
        }
        let contents = serde_json::from_str(text).map_err(|error| damaged(&error))?;
        Ok(Self { path, tensors: file, contents })
    }

    /// The numbers of a key that are called `name`.
    fn numbers<T: bytemuck::Pod>(&self, key: u32, name: &str) -> Result<Vec<T>> {
        let tensor = self.tensors.tensor(&format!("{key}.{name}"));
        let tensor = tensor.map_err(|error| self.damaged(&error))?;
        Ok(numbers(tensor.data()).into_owned())
    }

    fn damaged(&self, error: &dyn Display) -> Error {
        damaged(self.path, error)
    }

    fn refuse(&self, what: String) -> Error {
        refused(self.path, what)
    }
}

fn damaged(path: &Path, error: &dyn Display) -> Error {
    refused(path, format!("is damaged: {error}"))
}

fn refused(path: &Path, what: impl Into<String>) -> Error {
    Error::State { path: path.to_owned(), what: what.into() }
}

fn name_of(settings: &Option<OptimizerSettings>) -> String {
    settings.as_ref().map_or("no optimizer".to_owned(), OptimizerSettings::describe)
}

impl KeySlot {
    /// The positions of the rows to be written, or `None` for all of a dense value.
    fn rows(&self) -> Option<Vec<u32>> {
        match &self.value {
            KeyValue::Dense(_) => None,
            KeyValue::Table(table) => Some(table.existing()),
        }
    }

    fn row_len(&self) -> usize {
        match &self.value {
            KeyValue::Dense(_) => 1,
            KeyValue::Table(table) => table.dim,
        }
    }

    fn parts(&mut self) -> (&mut FlatTensor, &mut Option<Box<dyn Optimizer>>) {
        match &mut self.value {
            KeyValue::Dense(dense) => (&mut dense.values, &mut dense.optimizer),
            KeyValue::Table(table) => (&mut table.values, &mut table.optimizer),
        }
    }
}

impl ServerShard {
    fn state_path(&self, dir: &Path) -> PathBuf {
        let (server, servers) = self.place;
        dir.join(format!("server-{}-of-{servers}.safetensors", server + 1))
    }

    /// Refuses to save or to load in the middle of a round, whose pushes are in no file.
    fn check_between_rounds(&self, path: &Path) -> Result<()> {
        match self.slots.values().find(|slot| slot.rounds.is_open()) {
            None => Ok(()),
            Some(slot) => {
                let key = &slot.init.key;
                Err(refused(
                    path,
                    format!("a round of `{key}` is open: not all workers have pushed"),
                ))
            }
        }
    }

    /// Writes the state to a file in `dir`. Only the rows of tables are copied for it.
    pub(super) fn save(&mut self, dir: &Path) -> Result<()> {
        let path = self.state_path(dir);
        self.check_between_rounds(&path)?;
        let unwritable =
            |error: &dyn Display| refused(&path, format!("cannot be written: {error}"));
        // Before the work: a directory that cannot be written is known at once.
        let file = temporary(dir).map_err(|error| unwritable(&error))?;
        let (mut tensors, mut keys) = (BTreeMap::new(), BTreeMap::new());
        for (number, slot) in &mut self.slots {
            let (rows, row_len) = (slot.rows(), slot.row_len());
            let (init, version) = (slot.init.clone(), slot.rounds.version());
            let (values, optimizer) = slot.parts();
            let values = StateElements::from_values(values.as_slice()?, rows.as_deref(), row_len);
            tensors.insert(format!("{number}.values"), values);
            let mut state = None;
            if let Some(optimizer) = optimizer {
                let steps = optimizer.steps();
                let vectors = optimizer.parameter_state(0)?.unwrap_or_default();
                state = Some((steps, vectors.len()));
                for (index, vector) in vectors.into_iter().enumerate() {
                    let vector =
                        StateElements::from_values(vector.host()?, rows.as_deref(), row_len);
                    tensors.insert(format!("{number}.state.{index}"), vector);
                }
            }
            if let Some(rows) = rows {
                tensors.insert(format!("{number}.rows"), StateElements::positions(&rows));
            }
            keys.insert(*number, StateEntry { init, version, optimizer: state });
        }
        let (server, servers) = self.place;
        let optimizer = self.optimizer.clone();
        let contents = StateContents { format: FORMAT, server, servers, optimizer, keys };
        let text =
            serde_json::to_string(&contents).map_err(|error| refused(&path, error.to_string()))?;
        let all = tensors.iter().map(|(name, tensor)| (&**name, &*tensor.bytes));
        let text = format!("{} {text}", digest(&text, all));
        let metadata = HashMap::from([(CONTENTS.to_owned(), text)]);
        let permissions =
            file.as_file().metadata().map_err(|error| unwritable(&error))?.permissions();
        serialize_to_file(tensors, Some(metadata), file.path())
            .map_err(|error| unwritable(&error))?;
        // The library has put a file of its own in this place, which only its user may read.
        fs::set_permissions(file.path(), permissions).map_err(|error| unwritable(&error))?;
        replace(dir, &path, file).map_err(|error| unwritable(&error))
    }

    /// Reads the state from a file in `dir`, and keeps it until all servers have read theirs. The
    /// state of this server stays as it is.
    pub(super) fn load(&mut self, dir: &Path) -> Result<()> {
        self.loaded = None;
        let path = self.state_path(dir);
        self.check_between_rounds(&path)?;
        let here = self.place.1;
        let bytes = fs::read(&path).map_err(|error| {
            let what = match servers_of(dir) {
                Some(servers) if servers != here => format!(
                    "does not exist: {servers} server(s) saved this state, and this job has {here}: give it {servers} (`--servers \
                     {servers}`)"
                ),
                _ => format!("cannot be read: {error}"),
            };
            refused(&path, what)
        })?;
        let file = StateFile::read(&path, &bytes)?;
        self.check_same_store(&file)?;
        let slots = self.slots.iter().zip(file.contents.keys.values());
        let loaded =
            slots.map(|((number, slot), entry)| self.load_slot(&file, *number, slot, entry));
        self.loaded = Some(loaded.collect::<Result<_>>()?);
        Ok(())
    }

    /// Refuses a file of another server, another optimizer, or other keys.
    fn check_same_store(&self, file: &StateFile<'_>) -> Result<()> {
        let &StateContents { format, server, servers, ref optimizer, ref keys } = &file.contents;
        if (format, (server, servers)) != (FORMAT, self.place) {
            let server = server.saturating_add(1);
            let what = format!("is of server {server} of {servers} in the format {format}");
            return Err(file.refuse(what));
        }
        // Its settings may change, and another number of workers divides by another number.
        let kind = |settings: &Option<OptimizerSettings>| {
            settings.as_ref().map(|settings| std::mem::discriminant(&settings.recipe))
        };
        if kind(optimizer) != kind(&self.optimizer) {
            let (has, here) = (name_of(optimizer), name_of(&self.optimizer));
            return Err(file.refuse(format!("has {has}, and this store has {here}")));
        }
        for number in self.slots.keys().chain(keys.keys()) {
            let name = |init: Option<&KeyInit>| init.map_or("nothing".to_owned(), super::describe);
            let has = keys.get(number).map(|entry| &entry.init);
            let here = self.slots.get(number).map(|slot| &slot.init);
            if has != here {
                let (has, here) = (name(has), name(here));
                let what = format!("has {has} as key number {number}, and this store has {here}");
                return Err(file.refuse(what));
            }
        }
        Ok(())
    }

    /// Reads the state of a key.
    fn load_slot(
        &self,
        file: &StateFile<'_>,
        number: u32,
        slot: &KeySlot,
        entry: &StateEntry,
    ) -> Result<StoredValue> {
        let rows = match slot.rows() {
            None => None,
            Some(_) => Some(file.numbers::<u32>(number, "rows")?),
        };
        let (part, row_len) = (slot.init.part.len(), slot.row_len());
        if rows.iter().flatten().any(|row| *row as usize >= part) {
            return Err(file.damaged(&"a row is out of range"));
        }
        let rows_len = rows.as_ref().map(|rows| rows.len() * row_len);
        let vector = |name: &str, whole: usize| {
            let (values, len) = (file.numbers::<f32>(number, name)?, rows_len.unwrap_or(whole));
            if values.len() == len {
                return Ok(values);
            }
            Err(file.damaged(&format_args!("{name} has {} elements, not {len}", values.len())))
        };
        let values = vector("values", part)?;
        let KeyInit { key, dims, .. } = &slot.init;
        let means = UpdateInputs { key, dims, settings: self.optimizer.as_ref(), updater: None };
        let mut optimizer = match entry.optimizer {
            None => None,
            Some(_) => means.optimizer(part * row_len)?,
        };
        if let (Some(optimizer), Some((steps, count))) = (&mut optimizer, entry.optimizer) {
            optimizer.set_steps(steps);
            let mut vectors = optimizer.parameter_state(0)?.unwrap_or_default();
            if vectors.len() != count {
                // SGD without momentum has other vectors than SGD with it.
                let (has, here) = (name_of(&file.contents.optimizer), name_of(&self.optimizer));
                let len = vectors.len();
                return Err(file.refuse(format!(
                    "has {count} vector(s) of `{key}`, for {has}, and this store has {len}, for {here}"
                )));
            }
            for (index, state) in vectors.iter_mut().enumerate() {
                // Not all optimizers keep a number for each element.
                let values = vector(&format!("state.{index}"), state.len())?;
                scatter(state.reborrow().host()?, &values, rows.as_deref(), row_len);
            }
        }
        Ok(StoredValue { number, version: entry.version, values, rows, optimizer })
    }

    /// Replaces the state by the one that was read, because all servers have read theirs.
    pub(super) fn adopt(&mut self, from: usize) -> Result<()> {
        let missing = || Error::Message { from, what: "no state has been read".to_owned() };
        for loaded in self.loaded.take().ok_or_else(missing)? {
            let StoredValue { number, version, values, rows, optimizer: restored } = loaded;
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            let row_len = slot.row_len();
            slot.rounds.set_version(version);
            if let (KeyValue::Table(table), Some(rows)) = (&mut slot.value, &rows) {
                table.clear();
                for row in rows {
                    table.mark(*row as usize);
                }
            }
            let (place, optimizer) = slot.parts();
            scatter(place.as_mut_slice()?, &values, rows.as_deref(), row_len);
            *optimizer = restored;
        }
        Ok(())
    }
}

/// The number of servers whose files a directory has.
fn servers_of(dir: &Path) -> Option<usize> {
    let servers =
        |name: &str| name.strip_suffix(".safetensors")?.rsplit_once("-of-")?.1.parse().ok();
    fs::read_dir(dir).ok()?.flatten().find_map(|entry| servers(entry.file_name().to_str()?))
}

/// The digest of the contents and of all numbers, in the order of their names.
fn digest<'a>(text: &str, numbers: impl Iterator<Item = (&'a str, &'a [u8])>) -> String {
    let mut digest = Sha256::new();
    digest.update(text);
    for (name, bytes) in numbers {
        digest.update(name);
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A copy of the given rows of `values`.
fn gathered(values: &[f32], rows: &[u32], row_len: usize) -> Vec<u8> {
    let mut copy = Vec::with_capacity(size_of::<f32>() * rows.len() * row_len);
    for row in rows {
        let row = &values[*row as usize * row_len..][..row_len];
        copy.extend_from_slice(bytemuck::cast_slice(row));
    }
    copy
}

/// Writes `values` to the given rows, or to all places.
fn scatter(to: &mut [f32], values: &[f32], rows: Option<&[u32]>, row_len: usize) {
    let Some(rows) = rows else { return to.copy_from_slice(values) };
    for (row, values) in rows.iter().zip(values.chunks(row_len.max(1))) {
        to[*row as usize * row_len..][..row_len].copy_from_slice(values);
    }
}

/// A new file in `dir`, which others may read as far as the user's mask permits.
fn temporary(dir: &Path) -> std::io::Result<NamedTempFile> {
    fs::create_dir_all(dir)?;
    tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(dir)
}

/// Replaces the file at `path`, in `dir`, by `file`, which is on the disk afterwards.
fn replace(dir: &Path, path: &Path, file: NamedTempFile) -> std::io::Result<()> {
    File::open(file.path())?.sync_all()?;
    file.persist(path)?;
    File::open(dir)?.sync_all()
}
