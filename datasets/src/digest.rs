//! SHA-256 digests as text: what ranks compare instead of data.

use std::{fs::File, io, os::unix::fs::FileExt};

use sha2::{Digest, Sha256};

/// The blocks of a file that stand for its content, and the bytes of each.
const BLOCKS: u64 = 16;
const BLOCK: u64 = 4096;

/// The SHA-256 of some bytes, in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// The SHA-256 of blocks that are spread evenly over a file of this size. Other data of the same size
/// have another digest, unless they differ in few places alone. A file of at most 64 KiB is read as a
/// whole.
///
/// To read a file that is larger than the memory would take longer than an epoch, and the time of its
/// last change is another one on each host.
pub(crate) fn sampled(file: &File, bytes: u64) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut block = [0; BLOCK as usize];
    let last = bytes.saturating_sub(BLOCK);
    let starts: Vec<u64> = if bytes <= BLOCKS * BLOCK {
        (0..bytes).step_by(BLOCK as usize).collect()
    } else {
        (1..=BLOCKS).map(|place| last - last / (BLOCKS - 1) * (BLOCKS - place)).collect()
    };
    for start in starts {
        let block = &mut block[..BLOCK.min(bytes - start) as usize];
        file.read_exact_at(block, start)?;
        hasher.update(block);
    }
    Ok(hexadecimal(&hasher.finalize()))
}

/// Bytes as a text with two digits per byte.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_in_a_small_file_or_in_most_of_a_large_one_change_the_digest() {
        let dir = tempfile::tempdir().unwrap();
        let of = |content: &[u8]| {
            let path = dir.path().join("file");
            std::fs::write(&path, content).unwrap();
            sampled(&File::open(&path).unwrap(), content.len() as u64).unwrap()
        };
        assert_eq!(of(b""), sha256(b""));
        for len in [1, 4095, 4096, 4097, 65_536] {
            let content = vec![7; len];
            assert_eq!(of(&content), sha256(&content), "{len}");
        }
        let large: Vec<u8> = (0..400_000_u32).map(|i| (i % 251) as u8).collect();
        let mut end = large.clone();
        *end.last_mut().unwrap() ^= 1;
        let mut part = large.clone();
        part[100_000..140_000].fill(0);
        assert_eq!(of(&large), of(&large));
        assert_ne!(of(&end), of(&large));
        assert_ne!(of(&part), of(&large));
    }
}
