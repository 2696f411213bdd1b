//! A small file that claims to be a large one causes an error and does not exhaust memory.
//!
//! This test is alone in its program, because it measures the memory of the whole process.

#![expect(clippy::unwrap_used, reason = "helpers of tests, outside test functions")]

#[path = "it/mnist_files.rs"]
mod mnist_files;

use std::fs;

use candelabrum_datasets::Mnist;
use mnist_files::{gzip, write_good};

/// The maximum memory of this process so far, in KiB. `None` if the system does not report it.
fn peak_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[test]
fn four_megabytes_that_claim_to_be_four_gigabytes_are_refused_after_the_header() {
    let dir = tempfile::tempdir().unwrap();
    write_good(dir.path());
    fs::remove_file(dir.path().join("train-images-idx3-ubyte")).unwrap();
    // 5,000,000 images of 28 x 28. The content really exists: consecutive gzip members are one
    // stream, and each of these is a MiB of zeros in about a KiB.
    let header = [0x803, 5_000_000, 28, 28].into_iter().flat_map(u32::to_be_bytes);
    let mut file = gzip(&header.collect::<Vec<u8>>());
    let zeros = gzip(&vec![0; 1 << 20]);
    (0..5_000_000_u64 * 28 * 28 / (1 << 20) + 1).for_each(|_| file.extend_from_slice(&zeros));
    assert!((3 << 20..32 << 20).contains(&file.len()), "{}", file.len());
    fs::write(dir.path().join("train-images-idx3-ubyte.gz"), file).unwrap();

    let before = peak_kib();
    let message = Mnist::open(dir.path()).unwrap_err().to_string();
    assert!(message.contains("train-images-idx3-ubyte.gz"), "{message}");
    assert!(message.contains("[5000000, 28, 28]") && message.contains("limit"), "{message}");
    if let (Some(before), Some(after)) = (before, peak_kib()) {
        assert!(after - before < 32 << 10, "it cost {} MiB", (after - before) >> 10);
    }
}
