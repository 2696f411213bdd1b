//! The examples that no other test runs. Each that trains does so on two ranks if it can.
//!
//! Where no GPU is visible the tests on a GPU pass and say that they were left out.
//! `REQUIRE_GPUS=1` makes that a failure.

#![expect(clippy::print_stderr, clippy::unwrap_used, reason = "tests report and panic")]

mod common;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use candelabrum::prelude::Device;
use common::{Running, assert_one_line_error, example, few_digits, mnist_dist};
use serde_json::Value;

/// The output of an example, which must succeed.
fn output_of(name: &str, options: &[&str]) -> String {
    let mut command = Command::new(example(name));
    command.args(options).env_remove("MNIST_DIR").stdin(Stdio::null());
    let (output, _) = Running::start(command).finish(Duration::from_secs(120));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The number that follows the last `label`.
fn last_number(text: &str, label: &str) -> f64 {
    let (_, rest) = text.rsplit_once(label).unwrap_or_else(|| panic!("no `{label}`: {text}"));
    let number: String =
        rest.trim_start().chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    number.parse().unwrap_or_else(|_| panic!("no number after `{label}`: {text}"))
}

#[test]
fn custom_model_learns() {
    let text = output_of("custom_model", &[]);
    let first = last_number(text.lines().next().unwrap_or_default(), "training loss");
    let last = last_number(&text, "training loss");
    assert!(last < 0.7 * first, "{text}");
}

#[test]
fn candle_nn_model_learns_on_two_ranks() {
    let options = ["--dataset", "synthetic", "--workers", "2", "--epochs", "3", "--lr", "0.05"];
    let text = output_of("candle_nn_model", &options);
    assert!(last_number(&text, "Evaluation accuracy =") > 0.6, "{text}");
}

#[test]
fn mnist_multiprocess_starts_its_own_ranks() {
    let text = output_of("mnist_multiprocess", &["--dataset", "synthetic", "--epochs", "1"]);
    assert!(last_number(&text, "Evaluation accuracy =") > 0.3, "{text}");
}

#[test]
fn a_strategy_of_ones_own_trains_two_ranks_and_is_known_by_name() {
    let options = ["--dataset", "synthetic", "--workers", "2", "--epochs", "1", "--lr", "0.02"];
    let randomly = |spars| {
        let own = ["--dist-option", "randomK", "--spars", spars];
        output_of("custom_strategy", &[&options[..], &own].concat())
    };
    let text = randomly("0.5");
    assert!(last_number(&text, "Evaluation accuracy =") > 0.8, "{text}");
    assert!(last_number(&text, "a residual of norm") > 0.0, "{text}");
    // A random choice of all elements equals fp32 and leaves no residual.
    let all = randomly("1");
    let fp32 = output_of("custom_strategy", &options);
    let accuracy = |text: &str| last_number(text, "Evaluation accuracy =");
    assert_eq!(accuracy(&all), accuracy(&fp32));
    assert_eq!(last_number(&all, "a residual of norm"), 0.0);

    let seven = ["--dist-option", "randomK", "--spars", "0.5", "--strategy-option", "seed=7"];
    let seeded = output_of("custom_strategy", &[&options[..], &seven].concat());
    let loss = |text: &str| last_number(text, "Training loss =");
    assert_ne!(loss(&seeded), loss(&text));

    let refuse = |options: &[&str], parts: &[&str]| {
        let mut command = Command::new(example("custom_strategy"));
        command.args(options);
        let (output, _) = Running::start(command).finish(Duration::from_secs(10));
        assert_one_line_error(&output, parts);
    };
    refuse(&["--dist-option", "randomQ"], &["randomQ", "sparseTopK", "randomK"]);
    let own = ["--dist-option", "randomK"];
    refuse(&[&own[..], &["--spars", "7"]].concat(), &["spars is 7", "at most 1"]);
    let option = |text| ["--strategy-option", text];
    refuse(&[&own[..], &option("sed=7")].concat(), &["`sed`", "this strategy has seed"]);
    refuse(&[&own[..], &option("seed=x")].concat(), &["`seed=x`", "u64"]);
    refuse(&option("seed=7"), &["`seed`", "no options"]);
}

fn has_gpu() -> bool {
    let opened = Device::new_cuda_with_stream(0);
    if let Err(error) = &opened {
        let required = std::env::var_os("REQUIRE_GPUS").is_some();
        assert!(!required, "REQUIRE_GPUS is set, but there is no GPU: {error}");
        eprintln!("left out: no GPU here");
    }
    opened.is_ok()
}

/// The accuracy after an epoch in this precision, which the report and the opening line name.
fn accuracy(precision: &str, options: &[&str]) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let mut command = mnist_dist(options);
    command.args(["--precision", precision, "--epochs", "1", "--batch-size", "8"]);
    command.args(["--threads", "1", "--report"]).arg(&report);
    // Two GPUs, as far as the software GPU counts.
    command.env("SOFTGPU_COUNT", "2");
    let (output, took) = Running::start(command).finish(Duration::from_secs(300));
    let (stdout, stderr) = (output.stdout.as_slice(), output.stderr.as_slice());
    let (stdout, stderr) = (String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
    assert!(output.status.success(), "{precision} {options:?}: {stderr}");
    assert!(stdout.contains(&format!(" in {precision}, threads 1")), "{stdout}");
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(report["precision"], precision);
    let accuracy = report["epochs"][0]["eval_accuracy"].as_f64().unwrap();
    println!("{precision} {options:?}: accuracy {accuracy} after {took:?}; {stderr}");
    accuracy
}

fn check_half_precision(data: &str, device: &str) {
    for workers in ["1", "2"] {
        let options =
            ["--data-dir", data, "--device", device, "--workers", workers, "--lr", "0.01"];
        let exact = accuracy("f32", &options);
        assert!(exact > 0.8, "{workers} workers on {device}: {exact}");
        for half in ["bf16", "f16"] {
            let rounded = accuracy(half, &options);
            assert!((rounded - exact).abs() <= 0.01, "{half}, {workers} on {device}: {rounded}");
        }
    }
}

#[test]
fn half_precision_learns_as_much_as_f32() {
    let data = few_digits(3000, 1000);
    check_half_precision(data.path().to_str().unwrap(), "cpu");
}

#[test]
fn half_precision_learns_as_much_as_f32_on_a_gpu() {
    if has_gpu() {
        let data = few_digits(400, 200);
        check_half_precision(data.path().to_str().unwrap(), "cuda");
    }
}
