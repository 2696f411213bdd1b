//! Tar files in the convention of WebDataset.
//!
//! Consecutive files with the same key are one sample. The key is the path up to the first dot of the
//! name, and the rest is the ending: `a/b.c/007.seg.png` has the key `a/b.c/007` and the ending
//! `seg.png`. All bytes from the first header of a sample to the first header of the next one are read
//! together, so the index needs no names.

use std::{collections::BTreeSet, fs::File, io, os::unix::fs::FileExt, path::Path};

use tar::{Archive, Entry, EntryType};

use crate::{error::ShardError, records::record::Parts};

/// All parts of a tar file begin at multiples of so many bytes.
const BLOCK: u64 = 512;

/// The offsets at which the samples begin, and the end of the last one. Reads the headers alone.
pub(crate) fn index(path: &Path, file: &File, bytes: u64) -> Result<Vec<u64>, ShardError> {
    let mut archive = Archive::new(file);
    // Headers with long names precede the header of a file, so it begins where the one before ends.
    let (mut start, mut end_of_samples) = (0, 0);
    let mut offsets = Vec::new();
    let mut key: Option<Vec<u8>> = None;
    let corrupt = |offset, error: io::Error| ShardError::Corrupt {
        path: path.into(),
        offset,
        reason: format!("no tar header can be read: {error}"),
    };
    for entry in archive.entries_with_seek().map_err(|error| corrupt(0, error))? {
        let entry = entry.map_err(|error| corrupt(start, error))?;
        let end = end(&entry);
        if end > bytes {
            let (path, offset) = (path.into(), start);
            return Err(ShardError::Truncated { path, offset, expected: end, got: bytes });
        }
        if entry.header().entry_type() == EntryType::GNUSparse {
            let reason = "a sparse file: pack it as an ordinary one".into();
            return Err(ShardError::Corrupt { path: path.into(), offset: start, reason });
        }
        if let Some((this, _)) = sample_file(&entry) {
            if key.as_ref() != Some(&this) {
                offsets.push(start);
                key = Some(this);
            }
            end_of_samples = end;
        }
        start = end;
    }
    let mut marker = [1; BLOCK as usize];
    let found = file.read_exact_at(&mut marker, start);
    if found.is_err() || marker.iter().any(|&byte| byte != 0) {
        return Err(ShardError::NoEnd { path: path.into(), offset: start });
    }
    offsets.push(end_of_samples);
    Ok(offsets)
}

/// The key of a sample, and the endings and places of its files in the bytes of the sample.
pub(crate) fn parts(bytes: &[u8]) -> Result<(String, Parts), String> {
    let mut archive = Archive::new(bytes);
    let mut sample: Option<Vec<u8>> = None;
    let mut parts = Vec::new();
    let mut endings = BTreeSet::new();
    for entry in archive.entries().map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        let Some((key, ending)) = sample_file(&entry) else { continue };
        let start = entry.raw_file_position();
        let place = start as usize..start.saturating_add(entry.size()) as usize;
        if place.end > bytes.len() || sample.as_ref().is_some_and(|sample| *sample != key) {
            return Err("other files than before: the shard has changed since it was opened".into());
        }
        let ending = String::from_utf8_lossy(&ending).to_lowercase();
        if !endings.insert(ending.clone()) {
            let key = String::from_utf8_lossy(&key);
            return Err(format!("sample {key:?} has several files that end in {ending:?}"));
        }
        sample = Some(key);
        parts.push((ending, place));
    }
    let key = sample.ok_or("no files where a sample was: the shard has changed")?;
    Ok((String::from_utf8_lossy(&key).into_owned(), parts))
}

/// The offset after a file in an archive.
fn end<R: io::Read>(entry: &Entry<'_, R>) -> u64 {
    let end = entry.raw_file_position().saturating_add(entry.size());
    end.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX)
}

/// The key and the ending of a file that belongs to a sample. Folders, links, hidden files, files
/// without an ending and those named `__name__` do not.
fn sample_file<R: io::Read>(entry: &Entry<'_, R>) -> Option<(Vec<u8>, Vec<u8>)> {
    if !entry.header().entry_type().is_file() {
        return None;
    }
    let path = entry.path_bytes();
    let path = path.strip_prefix(b"./").unwrap_or(&path);
    let name_at = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let dot = path[name_at..].iter().position(|&byte| byte == b'.').filter(|&dot| dot > 0)?;
    let (key, ending) = path.split_at(name_at + dot);
    let is_note = path.starts_with(b"__") && path.ends_with(b"__");
    (!is_note).then(|| (key.to_vec(), ending[1..].to_vec()))
}
