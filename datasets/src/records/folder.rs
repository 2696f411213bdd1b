//! The shards in a folder: all of them, or an error.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use crate::{
    error::{DataFault, Error, Result},
    records::format::ShardFormat,
};

/// Endings that programs give to a file until all of it has arrived.
const UNFINISHED: [&str; 8] =
    ["aria2", "crdownload", "download", "filepart", "incomplete", "part", "partial", "tmp"];

/// The shards in a folder, in the order of their names: files that end in `.tar`, `.rec`,
/// `.tfrecord` or `.tfrecords`, the last two also with the numbers that TensorFlow appends, as in
/// `train.tfrecord-00000-of-00010`. Hidden files are ignored, and so are other files, and folders.
///
/// Some of the shards can be opened by a list of their names ([`Shards::open`](crate::Shards::open)).
///
/// # Errors
/// A folder that cannot be read or has no shards, a compressed shard, one whose download is not
/// finished, and a shard that is missing among numbered ones.
pub fn shards_in(folder: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    let folder = folder.as_ref();
    let listed = std::fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect());
    let mut listed: Vec<PathBuf> = listed.map_err(Error::io("list", folder))?;
    listed.sort();
    let mut paths = Vec::new();
    for path in listed {
        if is_shard(&path)? {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        let what = "no files that end in .tar, .tfrecord, .tfrecords or .rec";
        return Err(DataFault::Missing.at(folder, what));
    }
    none_is_missing(&paths)?;
    Ok(paths)
}

/// Whether a file is a shard by its name. One that would be a shard in another state is an error.
fn is_shard(path: &Path) -> Result<bool> {
    if path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b".")) {
        return Ok(false);
    }
    let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
    match ShardFormat::by_name(path) {
        Some(Ok(_)) => return Ok(true),
        Some(Err(error)) => {
            // `a.tgz`, `a.tar.gz`, and not `a.json.gz`.
            if ending.as_encoded_bytes().starts_with(b"t") || is_shard(&path.with_extension(""))? {
                return Err(error);
            }
        }
        None => {
            let unfinished = UNFINISHED.iter().any(|known| ending == *known);
            // It may become a compressed shard.
            if unfinished && is_shard(&path.with_extension("")).unwrap_or(true) {
                let what = "an unfinished download: finish it, delete the file, or open the others \
                            by a list";
                return Err(DataFault::CutShort.at(path, what));
            }
        }
    }
    Ok(false)
}

/// Refuses shards of which each says how many there are, if there are fewer.
fn none_is_missing(paths: &[PathBuf]) -> Result<()> {
    // By the names without the number.
    let mut sets: BTreeMap<_, (&Path, BTreeSet<u64>)> = BTreeMap::new();
    for path in paths {
        if let Some(Numbered { before, number, count, after, .. }) = Numbered::from_path(path) {
            let set = sets.entry((before, count, after));
            set.or_insert((path, BTreeSet::new())).1.insert(number);
        }
    }
    for ((_, count, _), (path, numbers)) in sets {
        let missing = (0..count).find(|number| !numbers.contains(number));
        if let (Some(missing), Some(name)) = (missing, Numbered::from_path(path)) {
            let path = path.with_file_name(name.with_number(missing));
            let found = numbers.len();
            let what = format!(
                "missing, {found} of {count} such shards are there: fetch it, or open the others by \
                 a list"
            );
            return Err(DataFault::Missing.at(path, what));
        }
    }
    Ok(())
}

/// A name with `-00003-of-00010` in it.
struct Numbered<'a> {
    before: &'a str,
    number: u64,
    count: u64,
    after: &'a str,
    /// The number of digits.
    width: usize,
}

impl<'a> Numbered<'a> {
    fn from_path(path: &'a Path) -> Option<Self> {
        let (first, second) = path.file_name()?.to_str()?.rsplit_once("-of-")?;
        let (before, number) = first.rsplit_once('-')?;
        let digits = second.bytes().take_while(u8::is_ascii_digit).count();
        let (count, after) = second.split_at(digits);
        let width = number.len();
        Some(Self {
            before,
            number: number.parse().ok()?,
            count: count.parse().ok()?,
            after,
            width,
        })
    }

    fn with_number(&self, number: u64) -> String {
        let Self { before, count, after, width, .. } = self;
        format!("{before}-{number:0width$}-of-{count:0width$}{after}")
    }
}
