//! Tar files in the convention of WebDataset.
//!
//! Consecutive files with the same key are one sample. The key is the path up to the first dot of the
//! name, and the rest is the ending: `a/b.c/007.seg.png` has the key `a/b.c/007` and the ending
//! `seg.png`. All bytes from the first header of a sample to the first header of the next one are read
//! together, so the index needs no names.
//!
//! What is in the archive is a part of a sample, is counted, or is an error. Behind the last file there
//! are zeros, and no more than a tar program writes: more of them, or anything else, means that samples
//! are missing.

use std::{
    collections::{BTreeSet, HashSet},
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::Path,
};

use sha2::{Digest, Sha256};
use tar::{Archive, Entry, EntryType, Header};

use crate::{
    error::{DataFault, DataPlace, Error, Result},
    records::{
        contents::{Contents, cut_short},
        record::RecordParts,
        tar_name::TarName,
    },
};

/// All parts of a tar file begin at multiples of so many bytes.
const BLOCK: u64 = 512;

/// The most bytes of the headers of one file, with its long names.
const HEADERS: u64 = 1 << 20;

/// What the headers say of the samples. Reads the headers alone.
///
/// # Cost
/// Some 40 bytes of memory for each sample, until it returns.
pub(crate) fn index(
    path: &Path,
    file: &File,
    bytes: u64,
    blocking_factor: u32,
) -> Result<Contents> {
    let mut archive = Archive::new(Headers { file, left: HEADERS });
    // Headers with long names precede the header of a file, so it begins where the one before ends.
    let (mut start, mut end_of_samples) = (0, 0);
    let (mut offsets, mut left_out, mut digest) = (Vec::new(), 0, Sha256::new());
    let (mut key, mut endings) = (None, BTreeSet::new());
    // Digests of all keys so far, because the keys themselves could be a kilobyte each.
    let mut keys = HashSet::new();
    let corrupt = |offset, reason| DataFault::Corrupt.at(DataPlace::byte(path, offset), reason);
    let unreadable = |offset, error: io::Error| -> Error {
        corrupt(offset, format!("no tar header can be read: {error}"))
    };
    for entry in archive.entries_with_seek().map_err(|error| unreadable(0, error))? {
        let mut entry = entry.map_err(|error| unreadable(start, error))?;
        let end = end(&entry);
        let member = member(&mut entry).map_err(|reason| {
            let what = format!("{:?} {reason}", String::from_utf8_lossy(&entry.path_bytes()));
            DataFault::Unsupported.at(DataPlace::byte(path, start), what)
        })?;
        if end > bytes {
            return Err(cut_short(path, start, end, bytes));
        }
        match member {
            Member::Nothing => {}
            Member::LeftOut => left_out += 1,
            Member::Part { key: this, ending } => {
                for piece in [&this, &ending] {
                    digest.update((piece.len() as u64).to_le_bytes());
                    digest.update(piece);
                }
                digest.update(entry.size().to_le_bytes());
                let shown = || String::from_utf8_lossy(&this).into_owned();
                if key.as_ref() != Some(&this) {
                    if !keys.insert(Sha256::digest(&this)) {
                        let what = format!(
                            "the files of sample {:?} are not adjacent: pack them with \
                             tar --sort=name",
                            shown()
                        );
                        return Err(corrupt(start, what));
                    }
                    endings.clear();
                    offsets.push(start);
                }
                let ending = readable(&ending);
                if !endings.insert(ending.clone()) {
                    return Err(corrupt(start, several(&shown(), &ending)));
                }
                key = Some(this);
                end_of_samples = end;
            }
        }
        start = end;
    }
    check_end(path, file, start, bytes, blocking_factor)?;
    offsets.push(end_of_samples);
    Ok(Contents { offsets: offsets.into(), left_out, digest: digest.finalize().into() })
}

/// The key of a sample, and the endings and places of its files in the bytes of the sample.
pub(crate) fn parts(bytes: &[u8]) -> Result<(String, RecordParts), String> {
    let mut archive = Archive::new(bytes);
    let mut sample: Option<Vec<u8>> = None;
    let mut parts = Vec::new();
    let mut endings = BTreeSet::new();
    for entry in archive.entries().map_err(|error| error.to_string())? {
        let mut entry = entry.map_err(|error| error.to_string())?;
        let member = member(&mut entry).map_err(|reason| {
            format!("{:?} {reason}", String::from_utf8_lossy(&entry.path_bytes()))
        })?;
        let Member::Part { key, ending } = member else { continue };
        let start = entry.raw_file_position();
        let place = start as usize..start.saturating_add(entry.size()) as usize;
        if place.end > bytes.len() || sample.as_ref().is_some_and(|sample| *sample != key) {
            return Err("other files than before: the shard has changed since it was opened".into());
        }
        let ending = readable(&ending);
        if !endings.insert(ending.clone()) {
            return Err(several(&String::from_utf8_lossy(&key), &ending));
        }
        sample = Some(key);
        parts.push((ending, place));
    }
    let key = sample.ok_or("no files where a sample was: the shard has changed")?;
    Ok((String::from_utf8_lossy(&key).into_owned(), parts))
}

/// What a member of an archive is to the samples.
enum Member {
    /// A file of a sample.
    Part { key: Vec<u8>, ending: Vec<u8> },
    /// A file, or a link, that belongs to no sample.
    LeftOut,
    /// A folder or a label, which has no content.
    Nothing,
}

/// What a member is, or why it cannot be used.
fn member<R: Read>(entry: &mut Entry<'_, R>) -> Result<Member, &'static str> {
    let kind = entry.header().entry_type();
    check_pax(entry, kind.is_pax_global_extensions())?;
    let path = entry.path_bytes();
    let path = path.strip_prefix(b"./").unwrap_or(&path);
    let is_file = matches!(kind, EntryType::Regular | EntryType::Continuous);
    let refused = match kind {
        EntryType::Regular | EntryType::Continuous => {
            "has no ending, so it belongs to no sample: name the files of a sample KEY.ENDING, or \
             take this one out of the archive"
        }
        EntryType::Directory | EntryType::XGlobalHeader => return Ok(Member::Nothing),
        EntryType::Link => {
            "is a hard link: pack with tar --hard-dereference, which stores the file itself"
        }
        EntryType::Symlink => {
            "is a symbolic link: pack with tar --dereference --hard-dereference, which stores the file itself"
        }
        EntryType::Char | EntryType::Block => "is a device: take it out of the archive",
        EntryType::Fifo => "is a pipe: take it out of the archive",
        EntryType::GNUSparse => return Err(SPARSE),
        other => {
            return match other.as_byte() {
                b'V' | b'D' => Ok(Member::Nothing), // the label of an archive, the list of a folder
                b'M' => Err("is the rest of a file in another volume: join the volumes"),
                _ => Err("has an unknown type: pack the files with another program"),
            };
        }
    };
    match TarName::from_path(path) {
        // Old programs mark a folder by its name alone.
        TarName::NoEnding if is_file && path.ends_with(b"/") && entry.size() == 0 => {
            Ok(Member::Nothing)
        }
        TarName::NoEnding if is_file => Err(refused),
        TarName::NoEnding | TarName::ForOthers => Ok(Member::LeftOut),
        TarName::Part { key, ending } if is_file => {
            Ok(Member::Part { key: key.to_vec(), ending: ending.to_vec() })
        }
        TarName::Part { .. } => Err(refused),
    }
}

const SPARSE: &str = "is a sparse file: pack it as an ordinary one, without tar --sparse";

/// Refuses what an extended header says and this reader, or the one below it, would not notice.
fn check_pax<R: Read>(entry: &mut Entry<'_, R>, is_for_all: bool) -> Result<(), &'static str> {
    const UNREADABLE: &str = "has a PAX header that cannot be read: pack the file again";
    for record in entry.pax_extensions().map_err(|_| UNREADABLE)?.into_iter().flatten() {
        let record = record.map_err(|_| UNREADABLE)?;
        let key = record.key_bytes();
        if key.starts_with(b"GNU.sparse.") {
            return Err(SPARSE);
        }
        if is_for_all && matches!(key, b"path" | b"size" | b"linkpath") {
            return Err("is a PAX header that changes all members: pack the files without it");
        }
        if key == b"size" && record.value().ok().and_then(|size| size.parse::<u64>().ok()).is_none()
        {
            return Err(UNREADABLE);
        }
    }
    Ok(())
}

/// Checks that nothing but zeros is behind the last member, and not more than a tar program writes.
fn check_end(path: &Path, file: &File, end: u64, bytes: u64, blocking_factor: u32) -> Result<()> {
    let mut buffer = vec![0; 1 << 16];
    let mut offset = end;
    while offset < bytes {
        let read = file.read_at(&mut buffer, offset).map_err(|error| {
            let what = format!("the end of the archive cannot be read: {error}");
            DataFault::Corrupt.at(DataPlace::byte(path, offset), what)
        })?;
        if let Some(place) = buffer[..read].iter().position(|&byte| byte != 0) {
            let offset = offset + place as u64;
            let block = offset - (offset - end) % BLOCK;
            let what = if is_header(file, block) {
                format!(
                    "another tar file begins at byte {block}, behind the end of the first one: join \
                     them with tar --concatenate, or make each a shard of its own"
                )
            } else {
                format!(
                    "byte {offset} is not zero, behind the end of the archive at byte {end}: the \
                     file is damaged, fetch or pack it again"
                )
            };
            return Err(DataFault::Corrupt.at(path, what));
        }
        if read == 0 {
            break;
        }
        offset += read as u64;
    }
    let (zeros, most) = (offset - end, BLOCK * (u64::from(blocking_factor) + 1));
    let what = if zeros < 2 * BLOCK {
        format!(
            "no 1024 bytes of zeros at byte {end}, with which a tar file ends: it was cut short, \
             fetch or pack it again"
        )
    } else if zeros > most {
        format!(
            "{zeros} bytes of zeros from byte {end} to the end, a tar program writes at most \
             {most}: fetch it again, its end has not arrived (or name its \
             ShardOptions::blocking_factor, if it was packed with tar -b)"
        )
    } else {
        return Ok(());
    };
    Err(DataFault::CutShort.at(path, what))
}

/// Whether there is a header of a tar file at this place.
fn is_header(file: &File, offset: u64) -> bool {
    let mut header = Header::new_old();
    if file.read_exact_at(header.as_mut_bytes(), offset).is_err() {
        return false;
    }
    let found = header.cksum().ok();
    header.set_cksum();
    found.is_some() && found == header.cksum().ok()
}

/// The offset after a file in an archive.
fn end<R: Read>(entry: &Entry<'_, R>) -> u64 {
    let end = entry.raw_file_position().saturating_add(entry.size());
    end.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX)
}

/// An ending as it is compared.
fn readable(ending: &[u8]) -> String {
    String::from_utf8_lossy(ending).to_lowercase()
}

fn several(key: &str, ending: &str) -> String {
    format!("sample {key:?} has several files that end in {ending:?}")
}

/// A file of which only so much is read between two seeks. The reader of the archive seeks to every
/// header, and takes the length of a long name from there.
struct Headers<'a> {
    file: &'a File,
    left: u64,
}

impl Read for Headers<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::Error::other("a name or header of more than 1 MiB"));
        }
        let most = to.len().min(self.left as usize); // at most 1 MiB
        let read = self.file.read(&mut to[..most])?;
        self.left -= read as u64;
        Ok(read)
    }
}

impl Seek for Headers<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.left = HEADERS;
        self.file.seek(to)
    }
}
