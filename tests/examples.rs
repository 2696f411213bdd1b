//! The examples that no other test runs. Each that trains does so on two ranks if it can.
//!
//! Where no GPU is visible the tests on a GPU pass and say that they were left out.
//! `REQUIRE_GPUS=1` makes that a failure.

#![expect(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used, reason = "a test")]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use candelabrum::nn::ops::bf16_instructions;
use candelabrum::prelude::Device;
use common::{Running, assert_one_line_error, example, few_digits, wait_for_ranks};
use png::{ColorType, Decoder, Encoder};
use rustix::process::{Pid, Signal, kill_process};
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
fn workers_that_a_program_does_not_start_are_said() {
    let said = |options: &[&str]| {
        let mut command = Command::new(example("custom_model"));
        command.args(options).stdin(Stdio::null());
        let (output, _) = Running::start(command).finish(Duration::from_secs(120));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let note = said(&["--workers", "2"]);
    assert!(note.contains("--workers 2 starts no ranks") && note.lines().count() == 1, "{note}");
    assert!(note.contains("candelabrum run --workers 2 -- "), "{note}");
    assert_eq!(said(&["--workers", "1"]), "");
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

/// What `mpi_sgd` prints for one of its programs.
struct SgdRun {
    text: String,
    /// For each worker: rank, gradients, mean staleness, greatest staleness, longest wait.
    table: Vec<Vec<f64>>,
}

impl SgdRun {
    /// The runs of the programs, in order.
    fn all(options: &[&str]) -> Vec<Self> {
        let text = output_of("mpi_sgd", options);
        let run = |text: &str| Self { text: text.to_owned(), table: rows_below(text, "rank ") };
        text.split_terminator("\n\n").map(run).collect()
    }

    fn digest(&self) -> &str {
        self.text.rsplit_once("parameters ").unwrap().1
    }

    /// Without training, all digits have the same score, and the accuracy is 0.1.
    fn assert_learnt(&self) {
        assert!(last_number(&self.text, "accuracy") > 0.5, "{}", self.text);
    }
}

#[test]
fn mpi_sgd_learns_by_each_program() {
    let runs = SgdRun::all(&["--workers", "3", "--steps", "300"]);
    let names =
        ["sync-server: 2 worker(s)", "all-reduce: 3 worker(s)", "async-server: 2 worker(s)"];
    assert_eq!(runs.len(), names.len());
    for (run, name) in runs.iter().zip(names) {
        assert!(run.text.starts_with(name), "{}", run.text);
        run.assert_learnt();
    }
    // The first eight updates.
    let printed = |run: &SgdRun| run.text.matches("\nupdate ").count();
    assert_eq!(runs.iter().map(printed).collect::<Vec<_>>(), [8 * 2, 8 * 3, 8]);
    let row = |rank| [rank, 300.0, 0.0, 0.0, 0.0];
    assert_eq!(runs[0].table, [1.0, 2.0].map(row));
    assert_eq!(runs[1].table, [0.0, 1.0, 2.0].map(row));
    let line = |update, rank| format!("\nupdate {update}: rank {rank}, staleness 0, wait 0");
    for update in 0..8 {
        let [zero, one, two] = [0, 1, 2].map(|rank| line(update, rank));
        assert!(runs[0].text.contains(&format!("{one}{two}\n")), "{}", runs[0].text);
        assert!(runs[1].text.contains(&format!("{zero}{one}{two}\n")), "{}", runs[1].text);
    }
}

#[test]
fn mpi_sgd_has_the_same_parameters_with_a_server_and_by_an_all_reduce() {
    let run = |program, ranks| {
        SgdRun::all(&["--program", program, "--workers", ranks, "--steps", "50"]).remove(0)
    };
    // Of three workers, because a sum of two numbers has one order.
    let (server, all_reduce) = (run("sync-server", "4"), run("all-reduce", "3"));
    assert_eq!(server.digest(), all_reduce.digest());
    assert_ne!(server.digest(), run("all-reduce", "2").digest());
}

#[test]
fn mpi_sgd_counts_staleness_and_serves_the_workers_in_turn() {
    for own in [&["--slow-rank", "1"][..], &[]] {
        let options =
            ["--program", "async-server", "--workers", "4", "--steps", "100", "--verbose"];
        let run = SgdRun::all(&[&options[..], own].concat()).remove(0);
        let labels = ["update ", "rank ", "staleness ", "wait "];
        let services: Vec<[usize; 4]> = (run.text.lines())
            .filter(|line| line.starts_with("update "))
            .map(|line| labels.map(|label| last_number(line, label) as usize))
            .collect();
        assert_eq!(services.len(), 300, "{}", run.text);
        // When each worker got its parameters follows from the order of the services.
        let mut received = [0; 4];
        for (updates, [update, rank, staleness, wait]) in services.iter().enumerate() {
            assert_eq!(*update, updates, "{}", run.text);
            assert_eq!(*staleness, updates - received[*rank], "{}", run.text);
            // No gradient waits for two of another worker.
            assert!(*wait <= 2, "{}", run.text);
            received[*rank] = updates + 1;
        }
        assert_eq!(run.table.len(), 3, "{}", run.text);
        for (row, rank) in run.table.iter().zip(1..) {
            let own = || services.iter().filter(|service| service[1] == rank);
            let (count, sum) = (own().count(), own().map(|service| service[2]).sum::<usize>());
            let most = |number: usize| own().map(|service| service[number]).max().unwrap();
            let counts = [rank, count, most(2), most(3)].map(|number| number as f64);
            assert_eq!([row[0], row[1], row[3], row[4]], counts, "{}", run.text);
            assert!((row[2] - sum as f64 / count as f64).abs() < 1e-3, "{}", run.text);
        }
        // Three gradients are under way until the last three, so each waits for two on average.
        let sum: usize = services.iter().map(|service| service[2]).sum();
        assert_eq!(sum, 297 * 2 + 2 + 1, "{}", run.text);
        // One of them at least: on a busy machine another one may hardly run.
        let is_fast = |row: &Vec<f64>| row[1] > run.table[0][1];
        assert!(own.is_empty() || run.table[1..].iter().any(is_fast), "{}", run.text);
        run.assert_learnt();
    }
}

#[test]
fn mpi_sgd_says_what_is_missing() {
    let cases: [(&[&str], &[&str]); 4] = [
        (&[], &["need two ranks", "`--workers 3`", "`mpiexec -n 3`"]),
        (&["--workers", "3", "--slow-rank", "3"], &["--slow-rank is 3: the last rank is 2"]),
        (&["--workers", "3", "--steps", "0"], &["'0' for '--steps <N>'"]),
        (&["--workers", "3", "--program", "server"], &["sync-server, all-reduce, async-server"]),
    ];
    for (options, parts) in cases {
        let mut command = Command::new(example("mpi_sgd"));
        command.args(options).stdin(Stdio::null());
        let (output, _) = Running::start(command).finish(Duration::from_secs(20));
        assert_one_line_error(&output, parts);
    }
}

#[test]
fn no_rank_of_mpi_sgd_waits_for_a_dead_one() {
    let programs = ["sync-server", "all-reduce", "async-server"];
    for (program, rank) in programs.into_iter().flat_map(|program| [(program, 0), (program, 2)]) {
        let mut command = Command::new(example("mpi_sgd"));
        let options = ["--program", program, "--workers", "3", "--steps", "60000"];
        command.args(options).args(["--slow-rank", "1"]).stdin(Stdio::null());
        let running = Running::start(command);
        let (_, process) = wait_for_ranks(&running, 3)[rank];
        running.wait_for("worker(s)", Duration::from_secs(20));
        kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
        let (output, _) = running.finish(Duration::from_secs(20));
        assert_one_line_error(&output, &[&format!("rank {rank} was killed by SIGKILL")]);
    }
}

/// The lines of numbers below the one that begins with `title`.
fn rows_below(text: &str, title: &str) -> Vec<Vec<f64>> {
    let rows = text.lines().skip_while(|line| !line.starts_with(title)).skip(1);
    let row = |line: &str| {
        let numbers = line.split_whitespace().map(|number| number.parse().ok());
        numbers.collect::<Option<Vec<f64>>>()
    };
    rows.map_while(row).collect()
}

#[test]
fn sparse_embedding_learns_and_its_traffic_is_that_of_the_rows_it_touches() {
    for kind in ["dist_sync", "dist_async"] {
        let small = ["--rows", "100000", "--steps", "80", "--batch-size", "128", "--kvstore", kind];
        let ranks = ["--workers", "2", "--servers", "2", "--sweep"];
        let text = output_of("sparse_embedding", &[&small[..], &ranks].concat());
        let losses = text.lines().filter(|line| line.starts_with("step"));
        let losses: Vec<f64> = losses.map(|line| last_number(line, "loss")).collect();
        assert_eq!(losses.len(), 10, "{text}");
        assert!(losses[9] < 0.75 * losses[0], "{text}");

        let traffic = rows_below(&text, "pages");
        let pages: Vec<f64> = traffic.iter().map(|row| row[0]).collect();
        assert_eq!(pages, [128.0, 64.0, 256.0, 1024.0, 4096.0], "{text}");
        for row in &traffic {
            // A pull has the number and the 16 elements of a row, and a push has both again.
            assert!((136.0..138.0).contains(&row[4]), "{text}");
        }
        assert!(traffic[4][1] > 10.0 * traffic[1][1], "{text}");

        assert_eq!(text.matches("\nworker ").count(), 2, "{text}");
        let held = text.lines().filter(|line| line.starts_with("server "));
        let held: Vec<f64> =
            held.map(|line| line.split_whitespace().last().unwrap().parse().unwrap()).collect();
        assert_eq!(held.len(), 2, "{text}");
        assert!(held.iter().all(|rows| (10_000.0..=50_000.0).contains(rows)), "{text}");
    }
}

#[test]
fn sparse_embedding_runs_in_one_process_and_says_what_is_missing() {
    let few = ["--steps", "3", "--batch-size", "8"];
    let text = output_of("sparse_embedding", &[&few[..], &["--rows", "1000"]].concat());
    assert!(text.starts_with("local: 1 worker(s), 0 server(s)"), "{text}");
    let refuse = |options: &[&str], parts: &[&str]| {
        let mut command = Command::new(example("sparse_embedding"));
        command.args(few).args(options);
        let (output, _) = Running::start(command).finish(Duration::from_secs(30));
        assert_one_line_error(&output, parts);
    };
    refuse(&["--kvstore", "dist_sync"], &["needs servers", "--servers"]);
    refuse(&["--kvstore", "dist"], &["`dist`", "dist_async"]);
    refuse(&["--workers", "2", "--rows", "5000000000"], &["size of a table", "5000000000"]);
    refuse(&["--lr", "nan"], &["lr is NaN"]);
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

/// Trains an epoch in each precision, alone and on two ranks. The accuracy and the training loss must be
/// those of f32 up to these differences.
fn check_half_precision(options: &[&str], accuracy: f64, loss: f64) {
    for workers in ["1", "2"] {
        let trained = |precision| {
            let mut command = Command::new(example("mnist_dist"));
            command.args(options).args(["--epochs", "1", "--threads", "1", "--workers", workers]);
            // Two GPUs, as far as the software GPU counts.
            command.args(["--precision", precision]).env("SOFTGPU_COUNT", "2");
            let (output, took) = Running::start(command).finish(Duration::from_secs(300));
            let text = String::from_utf8_lossy(&output.stdout);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{precision} {options:?}: {stderr}");
            let results =
                ["Evaluation accuracy =", "Training loss ="].map(|l| last_number(&text, l));
            println!("{precision}, {workers} workers: {results:?} after {took:?}");
            results
        };
        let exact = trained("f32");
        for half in ["bf16", "f16"] {
            let rounded = trained(half);
            // The difference of two printed numbers of exactly this size may be a bit larger.
            let apart = (rounded[0] - exact[0]).abs();
            assert!(apart <= accuracy + 1e-9, "{half}: {rounded:?}, {exact:?}");
            assert!((rounded[1] / exact[1] - 1.0).abs() <= loss, "{half}: {rounded:?}, {exact:?}");
            let computes_in_f32 = half == "bf16" && options.contains(&"cpu");
            assert!(rounded != exact || (computes_in_f32 && bf16_instructions().is_none()));
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
    let options = ["--data-dir", data, "--batch-size", "4", "--epochs", "1", "--threads", "1"];
    for precision in ["f32", "bf16", "f16"] {
        let own =
            ["--precision", precision, "--device", "cpu", "--report", report.to_str().unwrap()];
        let text = output_of("mnist_dist", &[&options[..], &own].concat());
        let described = match (precision, bf16_instructions()) {
            ("bf16", Some(name)) => format!("f32 with products in bf16 ({name})"),
            ("bf16", None) => {
                "f32, as this processor has no instructions for products in bf16".to_owned()
            }
            _ => precision.to_owned(),
        };
        assert!(text.contains(&format!("on cpu in {described}, threads 1")), "{text}");
        let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        assert_eq!(report["precision"], described);
    }
}

/// A picture of 8 bits for each number.
#[derive(Clone)]
struct Picture {
    width: usize,
    height: usize,
    color: ColorType,
    bytes: Vec<u8>,
}

impl Picture {
    /// Any numbers.
    fn some(width: usize, height: usize, color: ColorType) -> Self {
        let count = (width * height * color.samples()) as u32;
        let bytes = (0..count).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        Self { width, height, color, bytes }
    }

    fn read(path: &Path) -> Self {
        let file = fs::File::open(path).unwrap();
        let mut reader = Decoder::new(std::io::BufReader::new(file)).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        let (width, height) = (info.width as usize, info.height as usize);
        Self { width, height, color: info.color_type, bytes }
    }

    fn write(&self, path: &Path) {
        let file = fs::File::create(path).unwrap();
        let mut encoder = Encoder::new(file, self.width as u32, self.height as u32);
        encoder.set_color(self.color);
        encoder.write_header().unwrap().write_image_data(&self.bytes).unwrap();
    }

    /// The numbers of a pixel without alpha.
    fn colors(&self) -> usize {
        if self.color.samples() < 3 { 1 } else { 3 }
    }

    /// The result of these filters with zeros around the picture.
    fn filtered(&self, filters: &[&[f64]]) -> Self {
        let (samples, side) = (self.color.samples(), filters[0].len().isqrt());
        let mut result = self.clone();
        for (at, byte) in result.bytes.iter_mut().enumerate() {
            let (pixel, color) = (at / samples, at % samples);
            if color >= self.colors() {
                continue;
            }
            let sum = |filter: &&[f64]| -> f64 {
                let term = |(i, weight): (usize, &f64)| {
                    let y = (pixel / self.width + i / side).checked_sub(side / 2);
                    let x = (pixel % self.width + i % side).checked_sub(side / 2);
                    let y = y.filter(|y| *y < self.height)?;
                    let x = x.filter(|x| *x < self.width)?;
                    let byte = self.bytes[(y * self.width + x) * samples + color];
                    Some(weight * f64::from(byte))
                };
                filter.iter().enumerate().filter_map(term).sum()
            };
            let squares: f64 = filters.iter().map(|filter| sum(filter).powi(2)).sum();
            // One filter keeps its sign.
            let value = if filters.len() == 1 { sum(&filters[0]) } else { squares.sqrt() };
            *byte = value.round().clamp(0.0, 255.0) as u8;
        }
        result
    }

    /// Asserts that the pictures differ by rounding only.
    fn assert_close(&self, other: &Self, what: &str) {
        let size = |picture: &Self| (picture.width, picture.height, picture.color);
        assert_eq!(size(self), size(other), "{what}");
        let mut pairs = self.bytes.iter().zip(&other.bytes);
        assert!(pairs.all(|(a, b)| a.abs_diff(*b) <= 1), "{what}");
        if let Some(alpha) = (self.colors()..self.color.samples()).next() {
            let alphas = |picture: &Self| -> Vec<u8> {
                picture.bytes.iter().skip(alpha).step_by(self.color.samples()).copied().collect()
            };
            assert_eq!(alphas(self), alphas(other), "{what}");
        }
    }
}

/// What `convolve` makes of a picture, and what it prints.
fn convolved(picture: &Picture, options: &[&str], variables: &[(&str, &str)]) -> (Picture, String) {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("input.png"), dir.path().join("output.png"));
    picture.write(&input);
    let mut command = Command::new(example("convolve"));
    command.arg("--input").arg(&input).arg("--output").arg(&output);
    command.args(options).args(["--rounds", "1"]).envs(variables.iter().copied());
    let (ended, _) = Running::start(command).finish(Duration::from_secs(60));
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{options:?} {variables:?}: {stderr}");
    (Picture::read(&output), String::from_utf8_lossy(&ended.stdout).into_owned())
}

/// Pictures smaller and larger than a tile and a filter, of every kind of colours.
fn pictures() -> [Picture; 5] {
    [
        Picture::some(1, 1, ColorType::Grayscale),
        Picture::some(7, 5, ColorType::Rgba),
        Picture::some(33, 40, ColorType::GrayscaleAlpha),
        Picture::some(70, 3, ColorType::Rgb),
        Picture::some(64, 96, ColorType::Grayscale),
    ]
}

const FILTERS: [&[&str]; 5] = [
    &["--filter", "gaussian", "--radius", "8"],
    &["--filter", "gaussian"],
    &["--filter", "box", "--radius", "2"],
    &["--filter", "sharpen"],
    &["--filter", "sobel"],
];

#[test]
fn convolve_filters_pictures_with_zeros_around_them() {
    let sharpen: &[f64] = &[0.0, -1.0, 0.0, -1.0, 5.0, -1.0, 0.0, -1.0, 0.0];
    let across: &[f64] = &[-1.0, 0.0, 1.0, -2.0, 0.0, 2.0, -1.0, 0.0, 1.0];
    let down: &[f64] = &[-1.0, -2.0, -1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 1.0];
    let mean: &[f64] = &[1.0 / 25.0; 25];
    let curve = |radius: i32| -> Vec<f64> {
        let bell = |at: i32| (-2.0 * (f64::from(at) / f64::from(radius)).powi(2)).exp();
        let sum: f64 = (-radius..=radius).map(bell).sum();
        let row = |y| (-radius..=radius).map(move |x| bell(x) * bell(y) / (sum * sum));
        (-radius..=radius).flat_map(row).collect()
    };
    let (eight, three) = (curve(8), curve(3));
    let filters: [&[&[f64]]; 5] = [&[&eight], &[&three], &[mean], &[sharpen], &[across, down]];
    for picture in pictures() {
        for (options, filters) in FILTERS.iter().zip(filters) {
            let (result, text) =
                convolved(&picture, &[*options, &["--device", "cpu"]].concat(), &[]);
            result.assert_close(&picture.filtered(filters), &format!("{options:?}"));
            assert!(text.contains("direct loop") && text.contains("ops::conv2d"), "{text}");
        }
    }
}

#[test]
fn convolve_has_a_picture_of_its_own() {
    let text = output_of("convolve", &["--device", "cpu", "--rounds", "2"]);
    assert!(text.starts_with("512 x 384 pixels (Rgb) on cpu, Gaussian filter\nradius 3"), "{text}");
    assert!(last_number(&text, "ops::conv2d") > 0.0, "{text}");
}

#[test]
fn convolve_says_what_is_wrong_with_a_file_or_an_option() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (whole, cut, text) = (path("whole.png"), path("cut.png"), path("text.png"));
    Picture::some(40, 40, ColorType::Rgb).write(Path::new(&whole));
    fs::write(&cut, &fs::read(&whole).unwrap()[..300]).unwrap();
    fs::write(&text, "no picture").unwrap();
    let nowhere = path("no/where.png");
    let cases: [(&[&str], &[&str]); 7] = [
        (&["--input", &cut], &["read the picture", &cut, "unexpected end of file"]),
        (&["--input", &text], &["read the picture", &text, "Invalid PNG signature"]),
        (&["--input", &nowhere], &["read the picture", &nowhere, "No such file"]),
        (&["--output", &nowhere], &["write the picture", &nowhere, "No such file"]),
        (&["--radius", "0"], &["--radius is 0: it must be from 1 to 8"]),
        (&["--filter", "box", "--radius", "9"], &["--radius is 9: it must be from 1 to 8"]),
        (&["--filter", "sobel", "--radius", "2"], &["--radius is 2: it must be 1"]),
    ];
    for (options, parts) in cases {
        let mut command = Command::new(example("convolve"));
        command.args(options).args(["--device", "cpu"]);
        let (output, _) = Running::start(command).finish(Duration::from_secs(20));
        assert_one_line_error(&output, parts);
        assert_eq!(output.status.code(), Some(1), "{options:?}");
    }
}

#[test]
fn convolve_makes_the_same_pictures_on_a_gpu() {
    if !has_gpu() {
        return;
    }
    // The program itself compares its contenders. Each picture and each filter meets every setting.
    let settings: [&[(&str, &str)]; 3] =
        [&[], &[("SOFTGPU_CHECK", "1")], &[("SOFTGPU_REVERSE", "1")]];
    for (i, picture) in pictures().iter().enumerate() {
        for (j, filter) in FILTERS.into_iter().enumerate() {
            let (on_cpu, _) = convolved(picture, &[filter, &["--device", "cpu"]].concat(), &[]);
            let (options, variables) =
                ([filter, &["--device", "cuda"]].concat(), settings[(i + j) % settings.len()]);
            let (on_gpu, text) = convolved(picture, &options, variables);
            on_gpu.assert_close(&on_cpu, &format!("{options:?} {variables:?}"));
            let names = ["tiled kernel", "untiled kernel", "cuDNN"];
            assert!(names.iter().all(|name| text.contains(name)), "{text}");
        }
    }
}
