//! Half precision: as accurate as f32 on the CPU and on a GPU, and named in what a run says.
//!
//! Where no GPU is visible the tests on a GPU pass and say that they were left out.
//! `REQUIRE_GPUS=1` makes that a failure.

use std::fs;
use std::time::Duration;

use candelabrum::datasets::Mnist;
use candelabrum::nn::ops::bf16_instructions;
use candelabrum::prelude::Device;
use serde_json::Value;
use tempfile::TempDir;

use crate::learning::last_number;
use crate::run::{example, output_of};

/// A folder with MNIST's files, in which the digits are synthetic.
pub(crate) fn few_digits(train: usize, test: usize) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let digits = Mnist::synthetic(0, train, test).expect("digits");
    for (part, data) in [("train", digits.train), ("t10k", digits.test)] {
        let header = |magic: u32, dims: &[u32]| -> Vec<u8> {
            [magic, data.len() as u32].iter().chain(dims).flat_map(|n| n.to_be_bytes()).collect()
        };
        let (mut images, mut labels) = (header(0x803, &[28, 28]), header(0x801, &[]));
        for (image, label) in (0..data.len()).filter_map(|index| data.get(index)) {
            images.extend_from_slice(image);
            labels.push(label as u8);
        }
        for (what, bytes) in [("images-idx3", images), ("labels-idx1", labels)] {
            let path = dir.path().join(format!("{part}-{what}-ubyte"));
            fs::write(path, bytes).expect("the test's directory");
        }
    }
    dir
}

pub(crate) fn has_gpu() -> bool {
    let opened = Device::new_cuda_with_stream(0);
    if let Err(error) = &opened {
        let required = std::env::var_os("REQUIRE_GPUS").is_some();
        assert!(!required, "REQUIRE_GPUS is set, but there is no GPU: {error}");
        eprintln!("left out: no GPU here");
    }
    opened.is_ok()
}

/// Trains an epoch in each precision, alone and on two ranks. The accuracy and the training loss must be
/// those of f32 up to these differences.
fn check_half_precision(options: &[&str], accuracy: f64, loss: f64) {
    for workers in ["1", "2"] {
        let trained = |precision| {
            let program = example("mnist_dist").args(options);
            let program = program.args(["--epochs", "1", "--threads", "1", "--workers", workers]);
            // Two GPUs, as far as the software GPU counts.
            let program = program.args(["--precision", precision]).env("SOFTGPU_COUNT", "2");
            let ended = program.limit(Duration::from_secs(300)).run().success();
            let results =
                ["Evaluation accuracy =", "Training loss ="].map(|l| last_number(&ended.out, l));
            println!("{precision}, {workers} workers: {results:?} after {:?}", ended.took);
            results
        };
        let exact = trained("f32");
        for half in ["bf16", "f16"] {
            let rounded = trained(half);
            // The difference of two printed numbers of exactly this size may be a bit larger.
            let apart = (rounded[0] - exact[0]).abs();
            assert!(apart <= accuracy + 1e-9, "{half}: {rounded:?}, {exact:?}");
            assert!((rounded[1] / exact[1] - 1.0).abs() <= loss, "{half}: {rounded:?}, {exact:?}");
            assert!(rounded != exact, "{half}: nothing is rounded");
        }
    }
}

#[test]
fn half_precision_learns_as_much_as_f32() {
    let data = few_digits(3000, 1000);
    let data = data.path().to_str().unwrap();
    let options = ["--data-dir", data, "--device", "cpu", "--batch-size", "8", "--lr", "0.01"];
    check_half_precision(&options, 0.01, 0.05);
}

/// Too few images to learn from: for 400 of them the software GPU needs half a minute. So this compares
/// losses, and `gpu precision` has a smaller network learn.
#[test]
fn half_precision_has_the_losses_of_f32_on_a_gpu() {
    if has_gpu() {
        let data = few_digits(64, 32);
        let data = data.path().to_str().unwrap();
        let options = ["--data-dir", data, "--device", "cuda", "--batch-size", "8"];
        check_half_precision(&options, 1.0, 0.01);
    }
}

#[test]
fn the_precision_is_in_the_opening_line_and_in_the_report() {
    let (data, dir) = (few_digits(16, 4), tempfile::tempdir().unwrap());
    let (data, report) = (data.path().to_str().unwrap(), dir.path().join("report.json"));
    let options = format!("--data-dir {data} --batch-size 4 --epochs 1 --threads 1 --device cpu");
    for precision in ["f32", "bf16", "f16"] {
        let own = format!("--precision {precision} --report {}", report.display());
        let text = output_of("mnist_dist", &format!("{options} {own}"));
        let described = match (precision, bf16_instructions()) {
            ("bf16", Some(name)) => format!("f32 with products in bf16 ({name})"),
            ("bf16", None) => {
                "f32 with products in bf16 (computed in f32, so not faster)".to_owned()
            }
            _ => precision.to_owned(),
        };
        assert!(text.contains(&format!("on cpu in {described}, threads 1")), "{text}");
        let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        assert_eq!(report["precision"], described);
    }
}
