//! Small MNIST directories, good and bad.

use std::{fs, io::Write, path::Path};

use flate2::{Compression, write::GzEncoder};

pub(crate) fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// An IDX file of `count` images.
pub(crate) fn images(count: u32, rows: u32, columns: u32) -> Vec<u8> {
    let header = [0x803, count, rows, columns].into_iter().flat_map(u32::to_be_bytes);
    header.chain((0..count * rows * columns).map(|i| i as u8)).collect()
}

/// An IDX file of labels.
pub(crate) fn labels(labels: &[u8]) -> Vec<u8> {
    let header = [0x801, labels.len() as u32].into_iter().flat_map(u32::to_be_bytes);
    header.chain(labels.iter().copied()).collect()
}

/// Four good files: 3 training and 2 test images.
pub(crate) fn write_good(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join("train-images-idx3-ubyte"), images(3, 28, 28)).unwrap();
    fs::write(dir.join("train-labels.idx1-ubyte"), labels(&[5, 0, 9])).unwrap();
    fs::write(dir.join("t10k-images-idx3-ubyte.gz"), gzip(&images(2, 28, 28))).unwrap();
    fs::write(dir.join("t10k-labels.idx1-ubyte.gz"), gzip(&labels(&[7, 2]))).unwrap();
}
