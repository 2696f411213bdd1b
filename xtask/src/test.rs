//! `cargo xtask test`: all tests that this machine can run, and a table of the tests left out.
//!
//! Without `--all`, a machine with only Rust passes. With `--all`, everything that
//! `cargo xtask setup` can install must be there. It cannot install a GPU, PyTorch or the MNIST
//! files, so missing ones are only reported.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::machine;
use crate::shell::{cargo, display};

/// The test programs in which mpiexec starts ranks. They run twice, over MPI and over the local
/// backend, and so do the unit tests. No other tests need the feature `mpi`: they start all their
/// ranks themselves.
const UNDER_MPIEXEC: [&str; 6] =
    ["conformance", "failed_step", "faults", "interface", "mpiexec", "strategies"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Fail if something was left out that `cargo xtask setup` installs
    #[arg(long)]
    pub(crate) all: bool,
}

/// Runs the tests, prints the table and the closing line, and fails if a test failed.
pub(crate) fn run(args: &Args) -> Result<()> {
    let report = run_and_report(args)?;
    println!("{}", report.closing_line());
    report.verdict(args)
}

/// Runs the tests and prints the table.
pub(crate) fn run_and_report(args: &Args) -> Result<Report> {
    let mut report = Report { runs: Vec::new(), left_out: left_out() };
    let lacks = machine::lacks_for_mpi();
    if args.all && !lacks.is_empty() {
        println!(
            "--all will fail: no {} here. `cargo xtask setup` installs it.",
            lacks.join(", no ")
        );
    }
    report.runs.push(Run::start("workspace", cargo(&["test", "--no-fail-fast", "--workspace"]))?);
    if lacks.is_empty() {
        // For the whole workspace, as in every build here: for a single package cargo would choose
        // other features of its dependencies, and build candle again.
        let mut command = cargo(&["test", "--no-fail-fast", "--workspace", "--lib"]);
        command.args(UNDER_MPIEXEC.iter().flat_map(|name| ["--test", name]));
        command.args(["--features", "candelabrum/mpi"]);
        report.runs.push(Run::start("with MPI", command)?);
    }
    print!("{}", report.table());
    Ok(report)
}

/// The results of all runs.
#[derive(Debug)]
pub(crate) struct Report {
    runs: Vec<Run>,
    left_out: Vec<LeftOut>,
}

/// One `cargo test`.
#[derive(Debug)]
pub(crate) struct Run {
    name: &'static str,
    tally: Tally,
    succeeded: bool,
}

/// The sums of the `test result:` lines.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tally {
    passed: usize,
    failed: usize,
    ignored: usize,
}

/// A part that was not run.
#[derive(Debug)]
struct LeftOut {
    what: &'static str,
    why: String,
    /// Whether `cargo xtask setup` would have installed the missing part.
    setup_installs: bool,
}

fn left_out() -> Vec<LeftOut> {
    let mut list = Vec::new();
    let mut add = |what, why: String, setup_installs| {
        list.push(LeftOut { what, why, setup_installs });
    };
    let lacks = machine::lacks_for_mpi();
    if !lacks.is_empty() {
        add("MPI", format!("no {}: cargo xtask setup", lacks.join(", no ")), true);
    }
    let lacks = machine::lacks_for_softgpu();
    if !lacks.is_empty() {
        add("gpu-test", format!("no {}: cargo xtask setup", lacks.join(", no ")), true);
    }
    if machine::mnist().is_none() {
        let why = "no files at $MNIST_DIR or ../shared/data/mnist: real data was not tested";
        add("MNIST", why.into(), false);
    }
    if machine::python_with_torch().is_none() {
        let why = "not installed: tests compare with the golden files it made";
        add("PyTorch", why.into(), false);
    }
    if !machine::has_gpu() {
        add("GPU", "none on this machine".into(), false);
    }
    list
}

impl Run {
    /// Runs the tests, passes their output on immediately and reads the results from it.
    fn start(name: &'static str, command: Command) -> Result<Run> {
        Run::start_as(name, &display(&command), command)
    }

    /// As [`Run::start`], but announced by this text.
    pub(crate) fn start_as(name: &'static str, shown: &str, mut command: Command) -> Result<Run> {
        println!("$ {shown}");
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start `{shown}`"))?;
        let pipe = child.stdout.take().expect("stdout was asked for");
        let mut tally = Tally::default();
        let mut line = Vec::new();
        let mut reader = BufReader::new(pipe);
        while reader.read_until(b'\n', &mut line)? > 0 {
            io::stdout().write_all(&line)?;
            tally.add_line(&String::from_utf8_lossy(&line));
            line.clear();
        }
        let succeeded = child.wait()?.success();
        Ok(Run { name, tally, succeeded })
    }

    /// Failed without a failed test: the build failed, or a test program crashed.
    fn broke_off(&self) -> bool {
        !self.succeeded && self.tally.failed == 0
    }
}

impl Tally {
    /// Adds the counts of a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    fn add_line(&mut self, line: &str) {
        let Some((_, counts)) = line.split_once("test result: ") else { return };
        let count = |what| -> usize {
            let words: Vec<_> = counts.split([' ', ';']).collect();
            let place = words.iter().position(|&word| word == what);
            place.and_then(|i| words[i.checked_sub(1)?].parse().ok()).unwrap_or(0)
        };
        self.passed += count("passed");
        self.failed += count("failed");
        self.ignored += count("ignored");
    }
}

impl Report {
    /// These runs only, with nothing left out.
    pub(crate) fn of(runs: Vec<Run>) -> Report {
        Report { runs, left_out: Vec::new() }
    }

    /// Adds the other report's runs, so that the closing line counts them.
    pub(crate) fn add(&mut self, other: Report) {
        self.runs.extend(other.runs);
    }

    pub(crate) fn table(&self) -> String {
        let mut table = String::from("\nran\n");
        for run in &self.runs {
            let Tally { passed, failed, ignored } = run.tally;
            let end = if run.broke_off() { "; broke off: see above" } else { "" };
            let counts = format!("{passed} passed, {failed} failed, {ignored} ignored{end}");
            table += &format!("  {:<12} {counts}\n", run.name);
        }
        if !self.left_out.is_empty() {
            table += "left out\n";
        }
        for LeftOut { what, why, .. } in &self.left_out {
            table += &format!("  {what:<12} {why}\n");
        }
        table + "\n"
    }

    /// `N passed, N failed` over all runs. A run that broke off counts as one failure.
    pub(crate) fn closing_line(&self) -> String {
        let passed: usize = self.runs.iter().map(|run| run.tally.passed).sum();
        let failed: usize = self.runs.iter().map(|run| run.tally.failed).sum();
        let broken = self.runs.iter().filter(|run| run.broke_off()).count();
        format!("{passed} passed, {} failed", failed + broken)
    }

    /// Success, or the command's final error.
    pub(crate) fn verdict(&self, args: &Args) -> Result<()> {
        let failed: Vec<_> = self.runs.iter().filter(|run| !run.succeeded).collect();
        if !failed.is_empty() {
            let names: Vec<_> = failed.iter().map(|run| run.name).collect();
            bail!("tests failed: {}", names.join(", "));
        }
        let installable = self.left_out.iter().filter(|item| item.setup_installs);
        let missing: Vec<_> = installable.map(|item| item.what).collect();
        if args.all && !missing.is_empty() {
            bail!("left out: {}; run `cargo xtask setup`", missing.join(", "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::checkout::repo_root;
    use crate::tidy::collect_files;

    fn report(tally: Tally, succeeded: bool, setup_installs: bool) -> Report {
        let left_out = vec![LeftOut { what: "thing", why: "absent".into(), setup_installs }];
        Report { runs: vec![Run { name: "workspace", tally, succeeded }], left_out }
    }

    #[test]
    fn every_test_program_that_calls_mpiexec_runs_with_mpi_too() {
        let root = repo_root();
        let mut found = BTreeSet::new();
        for folder in ["tests", "crates/dist/tests"].map(|folder| root.join(folder)) {
            let mut files = Vec::new();
            collect_files(&folder, &mut files).unwrap();
            for file in files {
                let text = fs::read_to_string(&file).unwrap_or_default();
                if text.contains("mpiexec(") {
                    let program = file.strip_prefix(&folder).unwrap().iter().next().unwrap();
                    found.insert(
                        Path::new(program).file_stem().unwrap().to_str().unwrap().to_owned(),
                    );
                }
            }
        }
        assert_eq!(found.into_iter().collect::<Vec<_>>(), UNDER_MPIEXEC);
    }

    #[test]
    fn result_lines_are_summed_and_others_are_not() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; \
             finished in 0.00s",
            "test 7 passed; 9 failed ... ok",
            "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            tally.add_line(line);
        }
        assert_eq!(tally, Tally { passed: 13, failed: 2, ignored: 1 });
    }

    #[test]
    fn all_fails_only_for_what_setup_installs() {
        let all = Args { all: true };
        assert!(report(Tally::default(), true, true).verdict(&all).is_err());
        assert!(report(Tally::default(), true, true).verdict(&Args { all: false }).is_ok());
        assert!(report(Tally::default(), true, false).verdict(&all).is_ok());
    }

    #[test]
    fn a_run_that_broke_off_counts_as_a_failure() {
        let tally = Tally { passed: 5, failed: 0, ignored: 0 };
        let broken = report(tally, false, false);
        assert_eq!(broken.closing_line(), "5 passed, 1 failed");
        assert!(broken.table().contains("broke off"));
        assert!(broken.verdict(&Args { all: false }).is_err());
    }
}
