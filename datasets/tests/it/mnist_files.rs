//! Small MNIST directories, good and bad.

#![allow(dead_code, reason = "every test binary uses its own part")]
#![allow(clippy::allow_attributes, reason = "`expect` would fail where all of it is used")]

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

/// The names of the four files that [`write_good`] writes, and the SHA-256 of their content.
pub(crate) const GOOD: [(&str, &str); 4] = [
    ("train-images-idx3-ubyte", "3b19e3258efc6ccde6e6e90f9c9d5e185d5c8bde3bddf41340c7dfbcaeaa6214"),
    ("train-labels-idx1-ubyte", "426dc2e9e7eea081ebaf345cde82a628112f5fc54a1e6b128e8b394a879f3a18"),
    ("t10k-images-idx3-ubyte", "efef388bd39fc0c5e2c9bca13e24d9c762163f943a740d716804fd76869b25b3"),
    ("t10k-labels-idx1-ubyte", "ccde9e37761edb216f68e4cda3e7e1a07cc7abea3580be5ea61f98b64667576c"),
];

/// Four good files, by name: 3 training and 2 test images.
pub(crate) fn good_files() -> [(&'static str, Vec<u8>); 4] {
    let [a, b, c, d] = GOOD.map(|(name, _)| name);
    [(a, images(3, 28, 28)), (b, labels(&[5, 0, 9])), (c, images(2, 28, 28)), (d, labels(&[7, 2]))]
}

/// Writes these files under names of several kinds.
pub(crate) fn write_good(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    let [(_, train_images), (_, train_labels), (_, test_images), (_, test_labels)] = good_files();
    fs::write(dir.join("train-images-idx3-ubyte"), train_images).unwrap();
    fs::write(dir.join("train-labels.idx1-ubyte"), train_labels).unwrap();
    fs::write(dir.join("t10k-images-idx3-ubyte.gz"), gzip(&test_images)).unwrap();
    fs::write(dir.join("t10k-labels.idx1-ubyte.gz"), gzip(&test_labels)).unwrap();
}
