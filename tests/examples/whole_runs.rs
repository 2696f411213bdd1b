//! The examples of whole runs: a table, a text, two models against each other, a body from a file. Each
//! learns on one rank and on two, and a run that continues is the run that nobody stopped.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use candelabrum::prelude::*;
use candelabrum_testkit::{kill, until};
use candle_core::safetensors;
use rustix::process::Signal;
use serde_json::Value;

use crate::run::{example, output_of, refuse};

/// The report of an example's run with these options.
pub(crate) fn report_of(name: &str, options: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.json");
    output_of(name, &format!("{options} --report {}", path.display()));
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A number of the last epoch.
pub(crate) fn last(report: &Value, pointer: &str) -> f64 {
    let epoch = report["epochs"].as_array().unwrap().last().unwrap();
    epoch.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer}: {epoch}"))
}

/// Each run, on one rank and on two, and again with an end after the first epoch. Returns the reports.
pub(crate) fn runs_and_continues(name: &str, options: &str, epochs: u64) -> [Value; 2] {
    [1, 2].map(|ranks| {
        let options = format!("{options} --workers {ranks} --threads 1");
        let whole = report_of(name, &format!("{options} --epochs {epochs}"));
        let dir = tempfile::tempdir().unwrap();
        let saved = format!("{options} --checkpoint-dir {}", dir.path().display());
        let part = report_of(name, &format!("{saved} --epochs 1"));
        let digests = "parameters_sha256";
        assert_ne!(part[digests], whole[digests], "{name} on {ranks} rank(s)");
        let continued = report_of(name, &format!("{saved} --epochs {epochs}"));
        let numbers = continued["epochs"].as_array().unwrap().iter();
        assert_eq!(numbers.filter_map(|epoch| epoch["epoch"].as_u64()).max(), Some(epochs - 1));
        assert_eq!(continued[digests], whole[digests], "{name} on {ranks} rank(s)");
        assert_eq!(whole["world_size"], ranks);
        whole
    })
}

#[test]
fn a_regression_learns_its_table() {
    for report in runs_and_continues("regression", "", 10) {
        // 1 is the variance of the targets.
        assert!(last(&report, "/measures/evaluation~1mse") < 0.1, "{report}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rooms.csv");
    let rows: String =
        (0..200).map(|i| format!("{},{},{}\n", i % 20, i % 3, 1000 * (i % 20) + 5000)).collect();
    fs::write(&path, format!("area,rooms,price\n{rows}")).unwrap();
    let table = format!("--table {}", path.display());
    let small = format!("{table} --target price --workers 2 --batch-size 8 --epochs 12");
    let text = output_of("regression", &small);
    assert!(text.contains("160 training and 40 test rows"), "{text}");
    let report = report_of("regression", &small);
    assert!(last(&report, "/measures/evaluation~1mse") < 0.05, "{report}");

    fs::write(&path, "a,b\n1,2\n3,x\n").unwrap();
    for (table, target, part) in [
        (&*table, "--target b", "line 3, column \"b\": \"x\" is no finite number"),
        (&*table, "--target c", "no column \"c\"; the header has a, b"),
        ("--table /no/such/table.csv", "--target b", "/no/such/table.csv"),
        (&*table, "", "--target <COLUMN>"),
    ] {
        refuse("regression", &format!("{table} {target}"), &[part]);
    }
}

#[test]
fn a_language_model_learns_its_text_and_writes() {
    for report in runs_and_continues("char_lm", "--write 20", 3) {
        let first = report["epochs"][0]["eval_loss"].as_f64().unwrap();
        assert!(last(&report, "/eval_loss") < 0.8 * first, "{report}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text");
    fs::write(&path, "ab".repeat(2000)).unwrap();
    let from = format!("--text {}", path.display());
    let text = output_of("char_lm", &format!("{from} --window 16 --write 30 --epochs 3"));
    assert!(text.ends_with("ababababababababababababababababa\n".get(3..).unwrap()), "{text}");

    fs::write(path, "short").unwrap();
    refuse("char_lm", &from, &["4 tokens", "no window of 64"]);
    refuse("char_lm", "--text /no/such/text", &["/no/such/text"]);
}

#[test]
fn a_recurrent_language_model_learns_its_text_and_goes_on_with_it() {
    for report in runs_and_continues("char_rnn", "--window 20", 6) {
        let first = report["epochs"][0]["eval_loss"].as_f64().unwrap();
        assert!(last(&report, "/eval_loss") < 0.8 * first, "{report}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text");
    fs::write(&path, "abcd".repeat(1000)).unwrap();
    for cell in ["rnn", "gru", "lstm"] {
        let small = "--layers 2 --hidden 16 --window 16 --start cda --epochs 4";
        let options = format!("--text {} --cell {cell} {small}", path.display());
        let text = output_of("char_rnn", &options);
        assert!(text.trim_end().ends_with("cdabcdabcdabcdabcdabcdab"), "{cell}: {text}");
        assert!(text.contains(" bits per character"), "{text}");
    }
    refuse("char_rnn", "--cell fish", &["expected rnn, gru or lstm"]);
    refuse("char_rnn", "--start 0", &["--start"]);
    refuse("char_rnn", "--text /no/such/text", &["/no/such/text"]);
}

#[test]
fn two_models_against_each_other_find_the_distribution() {
    let distance = "/measures/evaluation~1distance";
    // A rate at which nothing is learnt.
    let before = report_of("gan", "--lr 1e-9 --epochs 1");
    for report in runs_and_continues("gan", "", 6) {
        let (before, after) = (last(&before, distance), last(&report, distance));
        assert!(after < 0.15 && after < 0.3 * before, "{before}: {report}");
        // Both models are in the digest.
        let digest = report["parameters_sha256"][0].as_str().unwrap();
        assert_eq!(digest.split(' ').count(), 2, "{digest}");
    }
    for options in ["--uneven", "--workers 2 --kvstore dist_sync"] {
        refuse("gan", options, &["neither --uneven nor --kvstore"]);
    }
}

#[test]
fn a_new_head_learns_on_a_frozen_body() {
    for report in runs_and_continues("finetune", "--dataset synthetic", 2) {
        assert!(last(&report, "/eval_accuracy") > 0.9, "{report}");
    }

    let dir = tempfile::tempdir().unwrap();
    let (weights, saved) = (dir.path().join("weights.safetensors"), dir.path().join("saved"));
    let tensor = |dims: &[usize]| {
        let numbers = (0..dims.iter().product()).map(|i: usize| ((i * 37) % 101) as f32 / 500.0);
        Tensor::from_iter(numbers, &Device::Cpu).unwrap().reshape(dims).unwrap()
    };
    let body = tensor(&[64, 128]);
    let file: HashMap<&str, Tensor> = [
        ("encoder.hidden1.weight", tensor(&[128, 784])),
        ("encoder.hidden2.weight", body.clone()),
        ("head.weight", tensor(&[10, 64])),
        ("pooler.weight", tensor(&[4])),
    ]
    .into();
    safetensors::save(&file, &weights).unwrap();
    let digits = format!("--dataset synthetic --workers 2 --weights {}", weights.display());
    let rename = format!("--rename encoder=body --epochs 1 --checkpoint-dir {}", saved.display());
    let text = output_of("finetune", &format!("{digits} {rename}"));
    for part in [
        "2 parameters loaded; not in the file: `body.hidden1.bias`",
        "not in the model: `pooler.weight`",
        "of another shape: `head.weight` is [2, 64], `head.weight` [10, 64]",
        "4 of 6 parameters are frozen",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The body in the checkpoint is the one of the file.
    let step = fs::read_dir(saved).unwrap().map(|entry| entry.unwrap().path());
    let step = step.filter(|path| path.is_dir()).max().unwrap();
    let trained = safetensors::load(step.join("parameters.safetensors"), &Device::Cpu).unwrap();
    let kept = trained.iter().find(|(name, _)| name.ends_with("body.hidden2.weight")).unwrap().1;
    let bits = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(bits(kept), bits(&body));

    refuse("finetune", &digits, &["no weight of the body", "--rename"]);
    let missing = "--dataset synthetic --weights /no/such/file";
    refuse("finetune", missing, &["/no/such/file", "cannot be read"]);
    refuse("finetune", "--rename x", &["FROM=TO"]);
}

#[test]
fn a_run_whose_rank_is_killed_goes_on_as_if_nothing_had_happened() {
    for (name, epochs) in [("regression", 150), ("char_lm", 6), ("gan", 25)] {
        let options = format!("--workers 2 --threads 1 --epochs {epochs}");
        let whole = report_of(name, &options);
        let dir = tempfile::tempdir().unwrap();
        let saved = format!("--checkpoint-dir {} --checkpoint-every 7", dir.path().display());
        let options = format!("{options} {saved}");
        let running = example(name).args(options.split(' ')).start();
        let victim = running.ranks(2)[1];
        let is_whole = |path: &Path| path.join("checkpoint.json").is_file();
        until("a checkpoint", || {
            let mut all = fs::read_dir(dir.path()).unwrap();
            all.any(|entry| is_whole(&entry.unwrap().path())).then_some(())
        });
        kill(victim, Signal::KILL);
        running.finish().says(["rank 1 was killed by SIGKILL"]);
        let continued = report_of(name, &options);
        assert_eq!(continued["parameters_sha256"], whole["parameters_sha256"], "{name}");
    }
}

#[test]
fn a_network_of_the_users_choice_learns_digits_in_color() {
    let options = "--dataset synthetic --network cnn --lr 0.02";
    for report in runs_and_continues("cifar_dist", options, 2) {
        assert!(last(&report, "/eval_accuracy") > 0.5, "{report}");
    }
    refuse("cifar_dist", "--classes 11", &["--classes 11", "10 or 100"]);
    refuse("cifar_dist", "--network vgg12", &["vgg12", "vgg11"]);
}

#[test]
fn a_network_of_the_users_own_tells_the_images_of_a_folder_apart() {
    for report in runs_and_continues("image_folder", "", 12) {
        assert!(last(&report, "/eval_accuracy") > 0.9, "{report}");
    }
    let empty = tempfile::tempdir().unwrap();
    let folder = empty.path().to_str().unwrap();
    fs::create_dir(empty.path().join("cat")).unwrap();
    refuse("image_folder", &format!("--data-dir {folder}"), &[folder]);
    refuse("image_folder", "--data-dir /no/such/folder", &["/no/such/folder"]);
}

#[test]
fn texts_and_documents_are_told_apart() {
    for name in ["text_gru", "han"] {
        for report in runs_and_continues(name, "--lr 0.01", 6) {
            assert!(last(&report, "/eval_accuracy") > 0.9, "{name}: {report}");
        }
    }
    refuse("text_gru", "--class good=/no/such/file", &["/no/such/file"]);
    refuse("text_gru", "--class good", &["expected NAME=FILE"]);
    refuse("han", "--data-dir /no/such/folder", &["/no/such/folder"]);
}

#[test]
fn each_of_these_examples_has_less_than_120_lines() {
    for name in [
        "regression",
        "char_lm",
        "char_rnn",
        "gan",
        "finetune",
        "large_batch",
        "resnet_imagenet",
        "text_gru",
        "han",
        "cifar_dist",
        "image_folder",
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.rs"));
        let lines = fs::read_to_string(path).unwrap().lines().count();
        assert!(lines < 120, "{name} has {lines} lines");
    }
}

/// The memory of a step of the language model with these options, from the log.
fn memory_of(options: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let common = "--profile-memory --epochs 1 --write 1 --threads 1 --log-dir";
    let output = output_of("char_lm", &format!("{common} {} {options}", log.display()));
    assert!(output.contains("Memory of rank 0 in step"), "{output}");
    let events = fs::read_to_string(log.join("metrics.jsonl")).unwrap();
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut memories = events.filter(|event| event["event"] == "memory");
    let memory = memories.next().expect("an event");
    assert_eq!(memories.next(), None);
    memory
}

/// The bytes of a part, or of a layer.
fn amount(amounts: &Value, name: &str) -> u64 {
    let amounts = amounts.as_array().unwrap();
    let amount = amounts.iter().find(|amount| amount["name"] == name);
    amount.map_or(0, |amount| amount["bytes"].as_u64().unwrap())
}

#[test]
fn a_run_shows_where_its_memory_is() {
    const ELEMENTS: u64 = 105_728;
    let sum = |amounts: &Value| {
        let amounts = amounts.as_array().unwrap().iter();
        amounts.map(|amount| amount["bytes"].as_u64().unwrap()).sum::<u64>()
    };
    let saved = |memory: &Value| amount(&memory["parts"], "saved for the backward pass");
    let check = |memory: &Value, step: u64| {
        assert_eq!(memory["step"], step, "{memory}");
        // Everything that was allocated at the peak belongs to one part.
        assert_eq!(memory["peak"], sum(&memory["parts"]), "{memory}");
        assert_eq!(saved(memory), sum(&memory["layers"]), "{memory}");
        assert!(memory["peak"].as_u64() < memory["process"].as_u64(), "{memory}");
    };
    let whole = memory_of("--limit-train-batches 5");
    check(&whole, 3);
    let parts = &whole["parts"];
    assert_eq!(amount(parts, "parameters"), 4 * ELEMENTS);
    // Buckets end where a cache line ends.
    let gradients = amount(parts, "gradients");
    assert!((4 * ELEMENTS..4 * ELEMENTS + 1024).contains(&gradients), "{gradients}");
    assert_eq!(amount(parts, "state of the optimizer"), 8 * ELEMENTS);
    assert!(amount(&whole["layers"], "blocks.1.up") > 0, "{whole}");

    // The operations of evaluations between the steps do not count.
    let rest = |memory: &Value| amount(&memory["parts"], "data and all else");
    let small = "--window 8 --width 8 --batch-size 1 --max-steps 3";
    let evaluated = memory_of(&format!("{small} --evaluate-every 1"));
    check(&evaluated, 3);
    assert!(rest(&evaluated) < rest(&memory_of(small)) + 100_000, "{evaluated}");

    let again = memory_of("--limit-train-batches 5 --recompute all");
    check(&again, 3);
    // 16 windows of 64 characters of 64 features.
    assert_eq!(amount(&again["layers"], "blocks.1"), 4 * 16 * 64 * 64);
    assert!(saved(&again) < saved(&whole) / 3, "{again}");

    // One step, and micro-batches: the memory of one of them.
    let small = memory_of("--max-steps 1 --accumulate 2 --batch-size 8");
    check(&small, 1);
    assert!(saved(&small) < saved(&whole) * 6 / 10, "{small}");

    let shared = memory_of("--workers 2 --shard optimizer --max-steps 4");
    check(&shared, 3);
    assert!(amount(&shared["parts"], "state of the optimizer") < 8 * ELEMENTS, "{shared}");
    assert_eq!(shared["ranks"].as_array().map(Vec::len), Some(2));

    // Parameters in 16 bits have masters in 32.
    let half = memory_of("--precision f16 --max-steps 3 --batch-size 4");
    check(&half, 3);
    assert_eq!(amount(&half["parts"], "parameters"), 6 * ELEMENTS);

    // The second rank has no sample, and so nothing to measure.
    let alone = memory_of("--epoch-size 1 --uneven --workers 2");
    check(&alone, 1);
    assert_eq!(alone["ranks"][1], 0, "{alone}");

    let store = memory_of("--workers 2 --kvstore dist_sync --max-steps 4");
    check(&store, 3);
    assert_eq!(amount(&store["parts"], "state of the optimizer"), 0);
}
