//! MXNet's RecordIO: a magic number, a length, the bytes, zeros up to a multiple of 4.
//!
//! ```text
//! u32 0xced7230a | u32 part << 29 | length | bytes | 0 to 3 zeros
//! ```
//!
//! All numbers have the least significant byte first. A record is one piece (part 0), unless its bytes have
//! the magic number in them at a multiple of 4. Then the record is cut there, the number is left out, and
//! the pieces are a first (1), middle (2) and last one (3). So a magic number at a multiple of 4 always
//! begins a piece. The format has no checksums.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use sha2::{Digest, Sha256};

use crate::{
    error::{DataFault, DataPlace, Error, Result},
    records::contents::{Contents, cut_short},
};

const MAGIC: u32 = 0xced7_230a;

/// Bytes before the content of a piece.
const BEFORE: u64 = 8;

/// The header of a piece.
struct RecordPiece {
    part: u32,
    len: u64,
}

impl RecordPiece {
    fn new(before: [u8; BEFORE as usize]) -> Result<Self, String> {
        let (words, _) = before.as_chunks::<4>();
        let [magic, word] = [words[0], words[1]].map(u32::from_le_bytes);
        if magic != MAGIC {
            return Err(format!(
                "magic number {magic:#010x}, expected {MAGIC:#010x}: the file is damaged or has \
                 another format"
            ));
        }
        Ok(Self { part: word >> 29, len: (word & ((1 << 29) - 1)).into() })
    }

    /// The bytes of the piece with its header and its zeros.
    fn bytes(&self) -> u64 {
        BEFORE + self.len.next_multiple_of(4)
    }

    /// Whether the piece ends a record, of which some pieces came before.
    fn ends_record(&self, is_open: bool) -> Result<bool, String> {
        match (self.part, is_open) {
            (0, false) | (3, true) => Ok(true),
            (1, false) | (2, true) => Ok(false),
            (part, false) => Err(format!("part {part} of a record that has not begun")),
            (part, true) => Err(format!("part {part} inside a record that has not ended")),
        }
    }
}

/// The offsets of the records. Reads the headers alone. If there is a file `.idx` beside this one, it must
/// name the same records.
pub(crate) fn index(path: &Path, file: &File, bytes: u64) -> Result<Contents> {
    let mut reader = BufReader::new(file);
    let (mut offset, mut offsets, mut digest) = (0, vec![0], Sha256::new());
    let (mut start, mut is_open) = (0, false);
    while offset < bytes {
        let corrupt = |reason: String| DataFault::Corrupt.at(DataPlace::byte(path, offset), reason);
        if bytes - offset < BEFORE {
            return Err(cut_short(path, start, offset + BEFORE, bytes));
        }
        let mut before = [0; BEFORE as usize];
        reader.read_exact(&mut before).map_err(|error| corrupt(error.to_string()))?;
        let piece = RecordPiece::new(before).map_err(corrupt)?;
        is_open = !piece.ends_record(is_open).map_err(corrupt)?;
        let end = offset + piece.bytes();
        if end > bytes {
            return Err(cut_short(path, start, end, bytes));
        }
        // Less than 2^30.
        let skipped = reader.seek_relative((piece.bytes() - BEFORE) as i64);
        skipped.map_err(|error| corrupt(error.to_string()))?;
        digest.update(before);
        offset = end;
        if !is_open {
            offsets.push(offset);
            start = offset;
        }
    }
    if is_open {
        let what = format!("the record at byte {start} has no last part: it was cut short");
        return Err(DataFault::CutShort.at(path, what));
    }
    check_index_beside(path, &offsets, bytes)?;
    Ok(Contents { offsets: offsets.into(), left_out: 0, digest: digest.finalize().into() })
}

/// Compares the file `.idx` beside a file of records, if there is one, with the offsets of the records, the
/// last of which is the end of the file. A line of it is a number, a tab, and an offset.
fn check_index_beside(path: &Path, offsets: &[u64], bytes: u64) -> Result<()> {
    let beside = path.with_extension("idx");
    if !beside.exists() {
        return Ok(());
    }
    let content = std::fs::read(&beside).map_err(Error::io("read", &beside))?;
    let content = String::from_utf8_lossy(&content);
    let (starts, name) = (&offsets[..offsets.len() - 1], path.display());
    let mut named = BTreeSet::new();
    for (line, number) in content.lines().zip(1..) {
        let wrong = |what: String| DataFault::Mismatch.at(DataPlace::line(&beside, number), what);
        let offset =
            line.split_once('\t').and_then(|(_, offset)| offset.trim().parse::<u64>().ok());
        let offset = offset.ok_or_else(|| {
            wrong(format!("{line:?} is not a number, a tab and an offset: make the index again"))
        })?;
        if offset >= bytes {
            return Err(wrong(format!("byte {offset} is outside {name}, which has {bytes} bytes")));
        }
        if starts.binary_search(&offset).is_err() {
            return Err(wrong(format!("no record of {name} begins at byte {offset}")));
        }
        named.insert(offset);
    }
    if named.len() != starts.len() {
        let (named, records) = (named.len(), starts.len());
        let what = format!(
            "names {named} of the {records} records of {name}: make the index again, or delete it"
        );
        return Err(DataFault::Mismatch.at(&beside, what));
    }
    Ok(())
}

/// The content of a record, from all its pieces with their headers.
pub(crate) fn content(record: &[u8]) -> Result<Vec<u8>, String> {
    let (mut content, mut rest) = (Vec::with_capacity(record.len()), record);
    let mut is_open = false;
    loop {
        const CHANGED: &str =
            "another length than before: the file has changed since it was opened";
        let (&before, after) = rest.split_first_chunk::<{ BEFORE as usize }>().ok_or(CHANGED)?;
        let piece = RecordPiece::new(before)?;
        if is_open {
            content.extend_from_slice(&MAGIC.to_le_bytes());
        }
        content.extend_from_slice(after.get(..piece.len as usize).ok_or(CHANGED)?);
        is_open = !piece.ends_record(is_open)?;
        rest = rest.get(piece.bytes() as usize..).ok_or(CHANGED)?;
        if !is_open {
            return if rest.is_empty() { Ok(content) } else { Err(CHANGED.to_owned()) };
        }
    }
}
