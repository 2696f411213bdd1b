//! TensorFlow's record format: a length, its checksum, the bytes, their checksum.
//!
//! ```text
//! u64 length | u32 masked CRC-32C of the length | bytes | u32 masked CRC-32C of the bytes
//! ```
//!
//! All numbers have the least significant byte first. The mask makes checksums of data that contain
//! checksums differ.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    ops::Range,
    path::Path,
};

use sha2::{Digest, Sha256};

use crate::{
    error::{DataFault, DataPlace, Result},
    records::contents::{Contents, cut_short},
};

/// Bytes before the content of a record.
const BEFORE: u64 = 12;
/// Bytes after the content of a record.
const AFTER: u64 = 4;

/// What is written before and after the content of a record.
pub(crate) fn frame(content: &[u8]) -> ([u8; BEFORE as usize], [u8; AFTER as usize]) {
    let mut before = [0; BEFORE as usize];
    let (length, checksum) = before.split_at_mut(8);
    length.copy_from_slice(&(content.len() as u64).to_le_bytes());
    checksum.copy_from_slice(&masked_checksum(length).to_le_bytes());
    (before, masked_checksum(content).to_le_bytes())
}

/// The offsets of the records. Reads the lengths and the checksums alone. The digest of the latter
/// changes with every content, although no content is read.
pub(crate) fn index(path: &Path, file: &File, bytes: u64) -> Result<Contents> {
    let mut reader = BufReader::new(file);
    let (mut offset, mut offsets, mut digest) = (0, vec![0], Sha256::new());
    while offset < bytes {
        let truncated = |expected| cut_short(path, offset, expected, bytes);
        let corrupt = |reason: String| DataFault::Corrupt.at(DataPlace::byte(path, offset), reason);
        if bytes - offset < BEFORE + AFTER {
            return Err(truncated(offset + BEFORE + AFTER));
        }
        let mut before = [0; BEFORE as usize];
        reader.read_exact(&mut before).map_err(|error| corrupt(error.to_string()))?;
        let length = length(&before).map_err(|reason| corrupt(reason.into()))?;
        let end = (offset + BEFORE + AFTER).saturating_add(length);
        if end > bytes {
            return Err(truncated(end));
        }
        let mut after = [0; AFTER as usize];
        // The file is longer than this, and no file is longer than an i64 can say.
        let skipped = reader.seek_relative(length as i64);
        skipped
            .and_then(|()| reader.read_exact(&mut after))
            .map_err(|error| corrupt(error.to_string()))?;
        digest.update(before);
        digest.update(after);
        offset = end;
        offsets.push(offset);
    }
    Ok(Contents { offsets: offsets.into(), left_out: 0, digest: digest.finalize().into() })
}

/// The place of the content in the bytes of a record, after a check of both checksums.
pub(crate) fn content(record: &[u8]) -> Result<Range<usize>, &'static str> {
    let (before, after) = record.split_first_chunk::<{ BEFORE as usize }>().ok_or("no record")?;
    let length = usize::try_from(length(before)?).map_err(|_| "no such length")?;
    let (content, checksum) = after.split_at_checked(length).ok_or("another length than before")?;
    if checksum != masked_checksum(content).to_le_bytes() {
        return Err("wrong checksum: the record is damaged, fetch the file again");
    }
    Ok(BEFORE as usize..BEFORE as usize + length)
}

fn length(before: &[u8; BEFORE as usize]) -> Result<u64, &'static str> {
    let (length, checksum) = before.split_at(8);
    if checksum != masked_checksum(length).to_le_bytes() {
        return Err("wrong checksum of a length: the file is damaged or has another format");
    }
    Ok(length.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

fn masked_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Writes one record.
pub(crate) fn write(to: &mut impl io::Write, content: &[u8]) -> io::Result<()> {
    let (before, after) = frame(content);
    to.write_all(&before)?;
    to.write_all(content)?;
    to.write_all(&after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_bytes_that_tensorflow_writes() {
        // Computed in Python with google-crc32c and TensorFlow's mask.
        let mut written = Vec::new();
        write(&mut written, b"hello").unwrap();
        let text: String = written.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "0500000000000000eab2043e68656c6c6fbb1f1c19");
        assert_eq!(content(&written), Ok(12..17));
    }

    #[test]
    fn every_damaged_byte_is_found() {
        let mut record = Vec::new();
        write(&mut record, b"some content").unwrap();
        for place in 0..record.len() {
            let mut damaged = record.clone();
            damaged[place] ^= 4;
            assert!(content(&damaged).is_err(), "byte {place}");
            assert!(content(&record[..place]).is_err(), "{place} bytes");
        }
    }
}
