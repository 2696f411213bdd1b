//! IDX files, plain or gzipped: the format of MNIST and similar datasets.
//!
//! A file consists of a big-endian header (two zero bytes, the element type (0x08: unsigned byte),
//! the number of dimensions, one 32-bit size for each dimension) and the elements, last dimension
//! fastest. Before the reader decodes elements, it compares the header's sizes with the caller's
//! [`Limits`] and with the size of the file. So a corrupt or hostile file causes an error and does
//! not exhaust the machine's memory: the reader never holds more than the limit.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek},
    path::Path,
};

use flate2::bufread::MultiGzDecoder;

use crate::error::{DataFault, Error, Result};

const IMAGES: u32 = 0x0000_0803;
const LABELS: u32 = 0x0000_0801;

/// Deflate cannot shrink data by more than a factor of 1032.
const MAX_DEFLATE_RATIO: u128 = 1032;

/// The limits of a header. A file whose header exceeds them is refused before its elements are
/// decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of bytes of elements.
    pub bytes: u64,
    /// The rows and columns that every image must have. `None` accepts any size.
    pub image_size: Option<[usize; 2]>,
}

impl Default for Limits {
    /// At most 1 GiB, with images of any size.
    fn default() -> Self {
        Self { bytes: 1 << 30, image_size: None }
    }
}

/// The images of an IDX file of rank 3.
#[derive(Clone, PartialEq, Eq)]
pub struct IdxImages {
    /// The number of images.
    pub count: usize,
    /// The number of rows of pixels in an image.
    pub rows: usize,
    /// The number of columns of pixels in an image.
    pub columns: usize,
    /// Pixels, image by image and row by row: `count * rows * columns` bytes.
    pub pixels: Vec<u8>,
}

impl std::fmt::Debug for IdxImages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IdxImages({} of {} x {})", self.count, self.rows, self.columns)
    }
}

/// Reads a file of images (magic number 0x00000803). The content shows whether it is gzipped.
///
/// # Errors
/// Each has the file's name: missing, not a file, empty, wrong magic number, a size outside `limits` or larger than the file can hold, truncated,
/// trailing bytes, damaged gzip.
pub fn read_images(path: &Path, limits: &Limits) -> Result<IdxImages> {
    let mut file = IdxFile::new(path)?;
    let dims = file.header(IMAGES, "images of unsigned bytes (rank 3)")?;
    let [count, rows, columns] = dims.map(|dim| dim as usize);
    if let Some(expected) = limits.image_size.filter(|&size| size != [rows, columns]) {
        let [height, width] = expected;
        let what =
            format!("images of {rows} x {columns} pixels, this dataset has {height} x {width}");
        return Err(DataFault::Mismatch.at(path, what));
    }
    let pixels = file.elements(&dims, limits.bytes)?;
    Ok(IdxImages { count, rows, columns, pixels })
}

/// Reads a file of labels (magic number 0x00000801). The content shows whether it is gzipped.
///
/// # Errors
/// Those of [`read_images`].
pub fn read_labels(path: &Path, limits: &Limits) -> Result<Vec<u8>> {
    let mut file = IdxFile::new(path)?;
    let dims: [u32; 1] = file.header(LABELS, "labels of unsigned bytes (rank 1)")?;
    file.elements(&dims, limits.bytes)
}

/// A regular file that is not empty. Gzipped content is unpacked while it is read.
struct IdxFile<'a> {
    path: &'a Path,
    bytes: u64,
    gzipped: bool,
    reader: Box<dyn Read>,
}

impl<'a> IdxFile<'a> {
    fn new(path: &'a Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(Error::io("open", path))?;
        if !metadata.is_file() {
            return Err(Error::no_file(path));
        }
        if metadata.len() == 0 {
            return Err(DataFault::CutShort.at(path, "the file is empty, fetch it again"));
        }
        let mut file = File::open(path).map_err(Error::io("open", path))?;
        let mut start = Vec::new();
        file.by_ref().take(2).read_to_end(&mut start).map_err(Error::io("read", path))?;
        file.rewind().map_err(Error::io("read", path))?;
        let gzipped = is_gzip(&start);
        let buffered = BufReader::new(file);
        let reader: Box<dyn Read> =
            if gzipped { Box::new(MultiGzDecoder::new(buffered)) } else { Box::new(buffered) };
        Ok(Self { path, bytes: metadata.len(), gzipped, reader })
    }

    /// The dimensions, outermost first, of a header that must begin with `magic`.
    fn header<const RANK: usize>(&mut self, magic: u32, what: &'static str) -> Result<[u32; RANK]> {
        let needed = header_bytes(RANK);
        let header = self.up_to(needed)?;
        let mut words = header.as_chunks::<4>().0.iter().map(|&word| u32::from_be_bytes(word));
        let mut next = || words.next().ok_or_else(|| self.truncated(needed, header.len()));
        let found = next()?;
        let path = self.path;
        if found != magic {
            let what = format!(
                "magic number {found:#010x}, expected {magic:#010x} for {what}: not such a file"
            );
            return Err(DataFault::Unsupported.at(path, what));
        }
        let mut dims = [0; RANK];
        for dim in &mut dims {
            *dim = next()?;
        }
        if dims.contains(&0) {
            let what = format!("the header gives dimensions {dims:?}, none may be zero");
            return Err(DataFault::Corrupt.at(path, what));
        }
        Ok(dims)
    }

    /// The elements after a header with these dimensions. They must be the rest of the file.
    fn elements(&mut self, dims: &[u32], limit: u64) -> Result<Vec<u8>> {
        let claimed: u128 = dims.iter().map(|&dim| u128::from(dim)).product();
        let path = self.path;
        let claims = || format!("the header claims {dims:?} = {claimed} bytes");
        if claimed > u128::from(limit) {
            let what = format!("{}, the limit is {limit}", claims());
            return Err(DataFault::Unsupported.at(path, what));
        }
        let file_bytes = self.bytes;
        let ratio = if self.gzipped { MAX_DEFLATE_RATIO } else { 1 };
        if claimed > u128::from(file_bytes) * ratio {
            let what = format!(
                "{}, a file of {file_bytes} bytes cannot hold that: the header is corrupt or the \
                 file was cut short",
                claims()
            );
            return Err(DataFault::Corrupt.at(path, what));
        }
        let (header, claimed) = (header_bytes(dims.len()), claimed as u64); // at most `limit`
        // One more byte than needed: it detects trailing bytes, and reaching the end checks gzip's
        // CRC.
        let mut elements = self.up_to(claimed + 1)?;
        let got = elements.len() as u64;
        if got < claimed {
            return Err(self.truncated(header + claimed, header as usize + elements.len()));
        }
        if got > claimed {
            let expected = header + claimed;
            let what = format!(
                "bytes follow after the {expected} that the header announces: the file is corrupt"
            );
            return Err(DataFault::Corrupt.at(path, what));
        }
        elements.shrink_to_fit();
        Ok(elements)
    }

    /// The next bytes. There are fewer than `count` only at the end of the file.
    fn up_to(&mut self, count: u64) -> Result<Vec<u8>> {
        // Allocates memory for all bytes at once. Unwritten memory costs nothing, but a growing
        // vector would be copied and take up to twice as much.
        let mut bytes = Vec::with_capacity(count as usize);
        self.reader.by_ref().take(count).read_to_end(&mut bytes).map_err(|source| {
            if self.gzipped && is_decoding_error(&source) {
                let what =
                    format!("damaged or truncated gzip stream ({source}), fetch the file again");
                DataFault::Corrupt.at(self.path, what)
            } else {
                Error::Io { operation: "read", path: self.path.into(), source }
            }
        })?;
        Ok(bytes)
    }

    fn truncated(&self, expected: u64, got: usize) -> Error {
        let what = format!(
            "{got} bytes where {expected} are needed: the file was cut short, fetch it again"
        );
        DataFault::CutShort.at(self.path, what)
    }
}

/// The size of the magic number and one word for each dimension.
fn header_bytes(rank: usize) -> u64 {
    4 + 4 * rank as u64
}

/// Whether `content` begins like a gzip stream.
pub(crate) fn is_gzip(content: &[u8]) -> bool {
    content.starts_with(&[0x1f, 0x8b])
}

fn is_decoding_error(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | InvalidInput | InvalidData)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    /// An IDX file in memory.
    fn idx(magic: u32, dims: &[u32], elements: &[u8]) -> Vec<u8> {
        let header = std::iter::once(&magic).chain(dims).flat_map(|word| word.to_be_bytes());
        header.chain(elements.iter().copied()).collect()
    }

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    /// Writes `content` to a new file and reads it as images.
    fn images(content: &[u8]) -> Result<IdxImages> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("digits-idx3-ubyte");
        std::fs::write(&path, content).unwrap();
        read_images(&path, &Limits::default())
    }

    /// The message of the error, which must be one line and name the file.
    fn message(content: &[u8]) -> String {
        let message = images(content).unwrap_err().to_string();
        assert!(message.contains("digits-idx3-ubyte: "), "{message}");
        assert!(!message.contains('\n'), "{message}");
        message
    }

    #[test]
    fn plain_and_gzipped_files_read_the_same_whatever_their_name() {
        let plain = idx(IMAGES, &[2, 2, 3], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let expected = IdxImages { count: 2, rows: 2, columns: 3, pixels: (1..=12).collect() };
        assert_eq!(images(&plain).unwrap(), expected);
        assert_eq!(images(&gzip(&plain)).unwrap(), expected);
    }

    #[test]
    fn a_gzip_of_several_members_is_one_file() {
        let plain = idx(IMAGES, &[1, 2, 2], &[1, 2, 3, 4]);
        let (head, tail) = plain.split_at(17);
        let content = [gzip(head), gzip(tail)].concat();
        assert_eq!(images(&content).unwrap().pixels, [1, 2, 3, 4]);
    }

    #[test]
    fn an_empty_file_names_the_file() {
        assert!(message(b"").contains("empty"));
        assert!(message(&gzip(b"")).contains("0 bytes where 16"));
    }

    #[test]
    fn a_header_cut_short_says_how_many_bytes_were_there() {
        assert!(message(&idx(IMAGES, &[2, 2], &[])).contains("12 bytes where 16"));
        assert!(message(b"\0\0").contains("2 bytes where 16"));
    }

    #[test]
    fn a_wrong_magic_number_shows_both_numbers() {
        let labels_for_images = message(&idx(LABELS, &[4, 0, 0], &[1, 2, 3, 4]));
        assert!(labels_for_images.contains("0x00000801"), "{labels_for_images}");
        assert!(labels_for_images.contains("0x00000803"), "{labels_for_images}");
        assert!(message(b"<!DOCTYPE html><html>").contains("0x3c21444f"));
    }

    #[test]
    fn a_truncated_file_and_trailing_bytes_are_errors() {
        let whole = idx(IMAGES, &[2, 2, 2], &[0; 8]);
        // A plain file that is too short by less than its header is still longer than the claimed
        // length.
        assert!(message(&whole[..whole.len() - 1]).contains("23 bytes where 24"));
        assert!(message(&[&whole[..], b"x"].concat()).contains("bytes follow after the 24"));
        assert!(message(&gzip(&whole[..whole.len() - 1])).contains("23 bytes where 24"));
        assert!(message(&gzip(&[&whole[..], b"x"].concat())).contains("bytes follow"));
    }

    #[test]
    fn a_truncated_gzip_names_the_file() {
        let noise: Vec<u8> = (0..1000_u32).map(|i| ((i * i) >> 3) as u8).collect();
        let whole = gzip(&idx(IMAGES, &[10, 10, 10], &noise));
        for length in [3, 12, whole.len() / 2, whole.len() - 9, whole.len() - 1] {
            assert!(message(&whole[..length]).contains("gzip"), "cut at {length}");
        }
    }

    #[test]
    fn a_damaged_gzip_is_found_by_its_checksum() {
        let mut content = gzip(&idx(IMAGES, &[2, 2, 2], &[7; 8]));
        let crc = content.len() - 8;
        content[crc] ^= 1;
        assert!(message(&content).contains("gzip"));
        let trailing = [gzip(&idx(IMAGES, &[2, 2, 2], &[7; 8])), b"garbage".to_vec()].concat();
        assert!(message(&trailing).contains("gzip"));
    }

    #[test]
    fn a_header_that_claims_the_impossible_is_refused_before_anything_is_allocated() {
        let huge = u32::MAX;
        for content in [
            idx(IMAGES, &[4_000_000_000, 28, 28], &[0; 100]),
            idx(IMAGES, &[huge, huge, huge], &[0; 100]),
            gzip(&idx(IMAGES, &[4_000_000_000, 28, 28], &[0; 100])),
            gzip(&idx(IMAGES, &[huge, huge, huge], &[0; 100])),
        ] {
            assert!(message(&content).contains("header"), "{}", message(&content));
        }
        assert!(message(&idx(IMAGES, &[0, 28, 28], &[])).contains("zero"));
    }

    #[test]
    fn a_directory_and_a_missing_file_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let message = read_labels(dir.path(), &Limits::default()).unwrap_err().to_string();
        assert!(message.contains(": a directory or another thing"), "{message}");
        let missing = dir.path().join("nothing-here");
        let message = read_labels(&missing, &Limits::default()).unwrap_err().to_string();
        assert!(message.contains("nothing-here: cannot open"), "{message}");
    }

    #[test]
    fn labels_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("labels");
        std::fs::write(&path, gzip(&idx(LABELS, &[3], &[5, 0, 4]))).unwrap();
        assert_eq!(read_labels(&path, &Limits::default()).unwrap(), [5, 0, 4]);
    }
}
