//! Bad files and bad options: the program soon exits with a code other than 0 and prints one line
//! that names the cause.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::run::example;

const LIMIT: Duration = Duration::from_secs(10);

/// Runs `mnist_dist` with options that it must refuse. A launcher that starts failed jobs again does not start one with
/// the exit code 2 again.
#[track_caller]
fn refuse(options: &str, parts: &[&str]) {
    example("mnist_dist")
        .args(options.split_whitespace())
        .limit(LIMIT)
        .run()
        .fails(parts)
        .expect(2);
}

/// Runs `mnist_dist` with data that it cannot train on.
#[track_caller]
fn fail(options: &str, parts: &[&str]) {
    example("mnist_dist")
        .args(options.split_whitespace())
        .limit(LIMIT)
        .run()
        .fails(parts)
        .expect(1);
}

#[test]
fn options_out_of_range_are_refused() {
    let cases: [(&str, &[&str]); 29] = [
        ("--batch-size 0", &["--batch-size", "at least 1"]),
        ("--batch-size 20000", &["20000", "12000"]),
        ("--workers 0", &["--workers", "from 1 to 256"]),
        ("--workers 100000", &["--workers", "from 1 to 256"]),
        ("--servers 0 --kvstore dist_sync", &["--servers", "at least 1"]),
        ("--workers 2 --servers 2", &["--servers is 2", "--kvstore dist_sync"]),
        ("--kvstore dist_device", &["--kvstore", "dist_device", "dist_sync, dist_async"]),
        ("--kvstore dist_sync", &["no worker", "--workers 1 --kvstore dist_sync"]),
        ("--kvstore dist_async --servers 3", &["3 server(s)", "no worker"]),
        ("--kvstore dist_sync --shard optimizer", &["--shard is optimizer", "servers"]),
        ("--kvstore dist_sync --dist-option partialUpdate", &["--dist-option", "average"]),
        ("--kvstore dist_async --clip 1", &["--clip", "each gradient is an update"]),
        ("--dist-option 2bit --spars 0", &["spars is 0", "2bit"]),
        (
            "--workers 256 --kvstore dist_sync",
            &["--workers plus --servers is 257", "from 1 to 256"],
        ),
        ("--dist-option fp8", &["fp8", "sparseTopK"]),
        ("--dist-option sparseTopK --spars 1.5", &["spars is 1.5", "at most 1"]),
        ("--dist-option sparseTopK --spars nan", &["spars is NaN", "at most 1"]),
        ("--dist-option sparseTopK --spars 0", &["spars is 0", "above 0"]),
        ("--dist-option sparseThreshold --spars inf", &["spars is inf", "magnitude"]),
        ("--dist-option sparseThreshold --spars -1", &["spars is -1", "magnitude"]),
        ("--lr -1", &["lr", "-1", "at least 0"]),
        ("--threshold 0", &["--threshold", "0", "at least 1"]),
        ("--on-overflow ignore", &["on-overflow", "ignore", "error or skip"]),
        ("--precision f8", &["--precision", "f8", "f32, bf16, f16, tf32"]),
        ("--corr perhaps", &["--corr", "perhaps", "true", "false"]),
        ("--report /nonexistent/report.json", &["/nonexistent/report.json"]),
        // A batch larger than a rank's share is rejected on all ranks at once.
        ("--workers 2 --batch-size 7000", &["7000", "6000"]),
        ("--device cpu --precision tf32", &["--precision is tf32", "TF32 needs a GPU"]),
        ("--device cpu --precision tf32 --workers 2", &["--precision is tf32", "TF32 needs a GPU"]),
    ];
    for (options, parts) in cases {
        refuse(&format!("--dataset synthetic {options}"), parts);
    }
    refuse("--dataset imagenet", &["imagenet", "synthetic"]);
}

#[test]
fn a_loss_that_is_no_number_stops_every_rank() {
    for workers in ["", "--workers 2"] {
        let diverge = format!("--dataset synthetic --lr 1e20 --epochs 1 {workers}");
        fail(&diverge, &["not finite", "rank 0"]);
    }
}

#[test]
fn broken_files_are_named() {
    let cases: [(&str, Spoil<'_>, &[&str]); 7] = [
        ("truncated gzip", &|d| truncated_gzip(d), &["train-images-idx3-ubyte.gz"]),
        (
            "wrong magic",
            &|d| write(d, TRAIN_IMAGES, &idx(0x0000_0999, &[20, 28, 28], 20 * 784)),
            &[TRAIN_IMAGES, "magic"],
        ),
        (
            "other count",
            &|d| write(d, TRAIN_LABELS, &idx(0x801, &[19], 19)),
            &[TRAIN_IMAGES, TRAIN_LABELS, "20", "19"],
        ),
        (
            "label of 17",
            &|d| {
                let mut labels = idx(0x801, &[20], 20);
                labels[8 + 5] = 17;
                write(d, TRAIN_LABELS, &labels);
            },
            &[TRAIN_LABELS, "17"],
        ),
        ("empty file", &|d| write(d, TRAIN_LABELS, &[]), &[TRAIN_LABELS, "empty"]),
        (
            "a directory",
            &|d| {
                fs::remove_file(d.join(TRAIN_LABELS)).unwrap();
                fs::create_dir(d.join(TRAIN_LABELS)).unwrap();
            },
            &[TRAIN_LABELS, "directory"],
        ),
        (
            "truncated",
            &|d| write(d, TRAIN_IMAGES, &idx(0x803, &[20, 28, 28], 19 * 784)),
            &[TRAIN_IMAGES],
        ),
    ];
    for (name, spoil, parts) in cases {
        let dir = good_files();
        spoil(dir.path());
        println!("{name}");
        for workers in ["", "--workers 2"] {
            let dir = dir.path().display();
            fail(&format!("--data-dir {dir} --batch-size 4 {workers}"), parts);
        }
    }
    fail("--data-dir /nonexistent", &["no such folder", "/nonexistent"]);
}

/// Damages a directory of good files in one place.
type Spoil<'a> = &'a dyn Fn(&Path);

const TRAIN_IMAGES: &str = "train-images-idx3-ubyte";
const TRAIN_LABELS: &str = "train-labels-idx1-ubyte";

/// Twenty digits for training and for testing.
fn good_files() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for part in ["train", "t10k"] {
        let images = idx(0x803, &[20, 28, 28], 20 * 784);
        write(dir.path(), &format!("{part}-images-idx3-ubyte"), &images);
        write(dir.path(), &format!("{part}-labels-idx1-ubyte"), &idx(0x801, &[20], 20));
    }
    dir
}

fn idx(magic: u32, dims: &[u32], bytes: usize) -> Vec<u8> {
    let mut file = magic.to_be_bytes().to_vec();
    file.extend(dims.iter().flat_map(|dim| dim.to_be_bytes()));
    file.resize(file.len() + bytes, 3);
    file
}

fn write(dir: &Path, name: &str, bytes: &[u8]) {
    fs::write(dir.join(name), bytes).unwrap();
}

fn truncated_gzip(dir: &Path) {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&fs::read(dir.join(TRAIN_IMAGES)).unwrap()).unwrap();
    let packed = packed.finish().unwrap();
    fs::remove_file(dir.join(TRAIN_IMAGES)).unwrap();
    write(dir, &format!("{TRAIN_IMAGES}.gz"), &packed[..packed.len() / 2]);
}
