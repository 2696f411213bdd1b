//! The examples that no other test runs. Each that trains does so on two ranks if it can.

use std::time::Duration;

use candelabrum_testkit::kill;
use rustix::process::Signal;

use crate::run::{example, output_of, refuse};

/// The number that follows the last `label`.
pub(crate) fn last_number(text: &str, label: &str) -> f64 {
    let (_, rest) = text.rsplit_once(label).unwrap_or_else(|| panic!("no `{label}`: {text}"));
    let number: String =
        rest.trim_start().chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    number.parse().unwrap_or_else(|_| panic!("no number after `{label}`: {text}"))
}

#[test]
fn custom_model_learns() {
    let text = output_of("custom_model", "");
    let first = last_number(text.lines().next().unwrap_or_default(), "training loss");
    let last = last_number(&text, "training loss");
    assert!(last < 0.7 * first, "{text}");
}

#[test]
fn workers_that_a_program_does_not_start_are_said() {
    let said = |workers| example("custom_model").args(["--workers", workers]).run().success().err;
    let note = said("2");
    assert!(note.contains("--workers 2 starts no ranks") && note.lines().count() == 1, "{note}");
    assert!(note.contains("candelabrum run --workers 2 -- "), "{note}");
    assert_eq!(said("1"), "");
}

#[test]
fn candle_nn_model_learns_on_two_ranks() {
    let options = "--dataset synthetic --workers 2 --epochs 3 --lr 0.05";
    let text = output_of("candle_nn_model", options);
    assert!(last_number(&text, "Evaluation accuracy =") > 0.6, "{text}");
}

#[test]
fn mnist_multiprocess_starts_its_own_ranks() {
    let text = output_of("mnist_multiprocess", "--dataset synthetic --epochs 1");
    assert!(last_number(&text, "Evaluation accuracy =") > 0.3, "{text}");
}

#[test]
fn a_strategy_of_ones_own_trains_two_ranks_and_is_known_by_name() {
    let options = "--dataset synthetic --workers 2 --epochs 1 --lr 0.02";
    let randomly = |own: &str| {
        output_of("custom_strategy", &format!("{options} --dist-option randomK --spars {own}"))
    };
    let text = randomly("0.5");
    assert!(last_number(&text, "Evaluation accuracy =") > 0.8, "{text}");
    assert!(last_number(&text, "a residual of norm") > 0.0, "{text}");
    // A random choice of all elements equals fp32 and leaves no residual.
    let all = randomly("1");
    let fp32 = output_of("custom_strategy", options);
    let accuracy = |text: &str| last_number(text, "Evaluation accuracy =");
    assert_eq!(accuracy(&all), accuracy(&fp32));
    assert_eq!(last_number(&all, "a residual of norm"), 0.0);

    let seeded = randomly("0.5 --strategy-option seed=7");
    let loss = |text: &str| last_number(text, "Training loss =");
    assert_ne!(loss(&seeded), loss(&text));

    let refuse = |options: &str, parts: &[&str]| refuse("custom_strategy", options, parts);
    refuse("--dist-option randomQ", &["randomQ", "sparseTopK", "randomK"]);
    refuse("--dist-option randomK --spars 7", &["spars is 7", "at most 1"]);
    let option = "--dist-option randomK --strategy-option";
    refuse(&format!("{option} sed=7"), &["`sed`", "this strategy has seed"]);
    refuse(&format!("{option} seed=x"), &["`seed=x`", "u64"]);
    refuse("--strategy-option seed=7", &["`seed`", "no options"]);
}

#[test]
fn tensor_parallel_is_the_layer_that_is_not_split() {
    for workers in [1, 2, 3] {
        let text = output_of("tensor_parallel", &format!("--workers {workers}"));
        assert!(text.starts_with(&format!("{workers} rank(s)")), "{text}");
        assert!(last_number(&text, ": ") < 1e-5, "{text}");
    }
}

#[test]
fn hybrid_parallel_trains_split_layers_on_split_data_as_one_process() {
    for options in ["--workers 4 --tensor 2", "--workers 6 --tensor 3"] {
        let text = output_of("hybrid_parallel", options);
        assert!(text.contains("2 replica(s) of a model"), "{text}");
    }
}

/// What `mpi_sgd` prints for one of its programs.
struct SgdRun {
    text: String,
    /// For each worker: rank, gradients, mean staleness, greatest staleness, longest wait.
    table: Vec<Vec<f64>>,
}

impl SgdRun {
    /// The runs of the programs, in order.
    fn all(options: &str) -> Vec<Self> {
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
    let runs = SgdRun::all("--workers 3 --steps 300");
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
        SgdRun::all(&format!("--program {program} --workers {ranks} --steps 50")).remove(0)
    };
    // Of three workers, because a sum of two numbers has one order.
    let (server, all_reduce) = (run("sync-server", 4), run("all-reduce", 3));
    assert_eq!(server.digest(), all_reduce.digest());
    assert_ne!(server.digest(), run("all-reduce", 2).digest());
}

#[test]
fn mpi_sgd_counts_staleness_and_serves_the_workers_in_turn() {
    for own in ["--slow-rank 1", ""] {
        let options = "--program async-server --workers 4 --steps 100 --verbose";
        let run = SgdRun::all(&format!("{options} {own}")).remove(0);
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
    let cases: [(&str, &[&str]); 4] = [
        ("", &["need two ranks", "`--workers 3`", "`mpiexec -n 3`"]),
        ("--workers 3 --slow-rank 3", &["--slow-rank is 3: the last rank is 2"]),
        ("--workers 3 --steps 0", &["'0' for '--steps <N>'"]),
        ("--workers 3 --program server", &["sync-server, all-reduce, async-server"]),
    ];
    for (options, parts) in cases {
        refuse("mpi_sgd", options, parts);
    }
}

#[test]
fn no_rank_of_mpi_sgd_waits_for_a_dead_one() {
    let programs = ["sync-server", "all-reduce", "async-server"];
    for (program, rank) in programs.into_iter().flat_map(|program| [(program, 0), (program, 2)]) {
        let options = ["--program", program, "--workers", "3", "--steps", "60000"];
        let program = example("mpi_sgd").args(options).args(["--slow-rank", "1"]);
        let running = program.limit(Duration::from_secs(40)).start();
        let victim = running.ranks(3)[rank];
        running.wait_for("worker(s)");
        kill(victim, Signal::KILL);
        running.finish().fails([format!("rank {rank} was killed by SIGKILL")]);
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
        let small = "--rows 100000 --steps 80 --batch-size 128 --workers 2 --servers 2 --sweep";
        let text = output_of("sparse_embedding", &format!("{small} --kvstore {kind}"));
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
    let few = "--steps 3 --batch-size 8";
    let text = output_of("sparse_embedding", &format!("{few} --rows 1000"));
    assert!(text.starts_with("local: 1 worker(s), 0 server(s)"), "{text}");
    let cases: [(&str, &[&str]); 4] = [
        ("--kvstore dist_sync", &["needs servers", "--servers"]),
        ("--kvstore dist", &["`dist`", "dist_async"]),
        ("--workers 2 --rows 5000000000", &["size of a table", "5000000000"]),
        ("--lr nan", &["lr is NaN"]),
    ];
    for (options, parts) in cases {
        refuse("sparse_embedding", &format!("{few} {options}"), parts);
    }
}
