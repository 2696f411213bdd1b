//! `cargo xtask test`: all tests that this machine can run, and a table of the tests left out.
//!
//! Without `--all`, a machine with only Rust passes. With `--all`, everything that
//! `cargo xtask setup` can install must be there. It cannot install a GPU, PyTorch or the MNIST
//! files, so missing ones are only reported.

use std::process::Command;

use anyhow::{Result, ensure};
use fs_err as fs;

use crate::checkout::workspace;
use crate::machine;
use crate::shell::{cargo, read_lines};
use crate::tidy::files_below;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Fail if something was left out that `cargo xtask setup` installs
    #[arg(long)]
    pub(crate) all: bool,
}

/// Runs the tests.
pub(crate) fn run_tests(all: bool) -> Result<Report> {
    let mut report = Report::before_runs();
    if all && !report.missing.is_empty() {
        let missing = report.names_of_missing();
        println!("--all will fail: no {missing} here. `cargo xtask setup` installs it.");
    }
    // For the whole workspace, as in every build here: for a single package cargo would choose
    // other features of its dependencies, and build candle again.
    const TEST: [&str; 3] = ["test", "--no-fail-fast", "--workspace"];
    report.runs.push(Run::start("workspace", &mut cargo(&TEST))?);
    if machine::lacks_for_mpi().is_empty() {
        let mut command = cargo(&TEST);
        command.arg("--lib").args(under_mpiexec()?.iter().flat_map(|name| ["--test", name]));
        command.args(["--features", "candelabrum/mpi"]);
        report.runs.push(Run::start("with MPI", &mut command)?);
    }
    Ok(report)
}

/// The test programs in which mpiexec starts ranks. They run twice, over MPI and over the local
/// backend, and so do the unit tests. No other tests need the feature `mpi`: they start all their
/// ranks themselves.
fn under_mpiexec() -> Result<Vec<&'static str>> {
    let mut programs = Vec::new();
    for target in workspace().packages.iter().flat_map(|package| &package.targets) {
        let path = target.src_path.as_std_path();
        let source = path.parent().filter(|_| path.ends_with("main.rs")).unwrap_or(path);
        let calls = |file| fs::read_to_string(file).is_ok_and(|text| text.contains("mpiexec("));
        if target.is_test() && files_below(source)?.into_iter().any(calls) {
            programs.push(&*target.name);
        }
    }
    Ok(programs)
}

/// The results of all runs, and the parts that were not run, each with the reason.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) runs: Vec<Run>,
    /// What `cargo xtask setup` would have installed.
    missing: Vec<(&'static str, String)>,
    left_out: Vec<(&'static str, &'static str)>,
}

/// One `cargo test`: the sums of its `test result:` lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    name: &'static str,
    passed: usize,
    failed: usize,
    ignored: usize,
    succeeded: bool,
}

impl Run {
    /// Runs the tests, passes their output on immediately and reads the results from it.
    pub(crate) fn start(name: &'static str, command: &mut Command) -> Result<Run> {
        let mut run = Run { name, ..Run::default() };
        let status = read_lines(command, |line| {
            println!("{line}");
            run.add_line(line);
        })?;
        run.succeeded = status.success();
        Ok(run)
    }

    /// Adds the counts of a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    fn add_line(&mut self, line: &str) {
        let Some((_, counts)) = line.split_once("test result: ") else { return };
        let words: Vec<&str> = counts.split([' ', ';']).collect();
        let count = |what: &str| -> usize {
            let pair = words.windows(2).find(|pair| pair[1] == what);
            pair.and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
        };
        self.passed += count("passed");
        self.failed += count("failed");
        self.ignored += count("ignored");
    }

    /// Failed without a failed test: the build failed, or a test program crashed.
    fn broke_off(&self) -> bool {
        !self.succeeded && self.failed == 0
    }
}

impl Report {
    /// No runs, and what this machine lacks.
    fn before_runs() -> Self {
        let mnist = "no files at $MNIST_DIR or ../shared/data/mnist: real data was not tested";
        let pytorch = "not installed: tests compare with the golden files it made";
        let tensorboard = "not installed: its own reader did not read our event files";
        let installable =
            [("MPI", machine::lacks_for_mpi()), ("gpu-test", machine::lacks_for_softgpu())];
        let others = [
            (machine::mnist().is_some(), ("MNIST", mnist)),
            (machine::python_with_torch().is_some(), ("PyTorch", pytorch)),
            (machine::python_with("tensorboard").is_some(), ("TensorBoard", tensorboard)),
            (machine::has_gpu(), ("GPU", "none on this machine")),
        ];
        let why = |lacks: &[&str]| format!("no {}: cargo xtask setup", lacks.join(", no "));
        let missing = installable.iter().filter(|(_, lacks)| !lacks.is_empty());
        let left_out = others.iter().filter(|(is_here, _)| !is_here);
        Self {
            runs: Vec::new(),
            missing: missing.map(|(what, lacks)| (*what, why(lacks))).collect(),
            left_out: left_out.map(|(_, part)| *part).collect(),
        }
    }

    pub(crate) fn table(&self) -> String {
        let mut table = String::from("\nran\n");
        for run in &self.runs {
            let Run { name, passed, failed, ignored, .. } = run;
            let end = if run.broke_off() { "; broke off: see above" } else { "" };
            table +=
                &format!("  {name:<12} {passed} passed, {failed} failed, {ignored} ignored{end}\n");
        }
        let missing = self.missing.iter().map(|(what, why)| (*what, &**why));
        for (at, (what, why)) in missing.chain(self.left_out.iter().copied()).enumerate() {
            table += if at == 0 { "left out\n" } else { "" };
            table += &format!("  {what:<12} {why}\n");
        }
        table + "\n"
    }

    /// `N passed, N failed` over all runs. A run that broke off counts as one failure.
    pub(crate) fn closing_line(&self) -> String {
        let passed: usize = self.runs.iter().map(|run| run.passed).sum();
        let failed = self.runs.iter().map(|run| run.failed + usize::from(run.broke_off()));
        format!("{passed} passed, {} failed", failed.sum::<usize>())
    }

    fn names_of_missing(&self) -> String {
        self.missing.iter().map(|(what, _)| *what).collect::<Vec<_>>().join(", ")
    }

    /// Prints the table and the closing line, and fails if a test failed.
    pub(crate) fn finish(&self, all: bool) -> Result<()> {
        println!("{}{}", self.table(), self.closing_line());
        self.verdict(all)
    }

    /// Success, or the command's final error.
    pub(crate) fn verdict(&self, all: bool) -> Result<()> {
        let failed = self.runs.iter().filter(|run| !run.succeeded).map(|run| run.name);
        let (failed, missing) = (failed.collect::<Vec<_>>().join(", "), self.names_of_missing());
        ensure!(failed.is_empty(), "tests failed: {failed}");
        ensure!(!all || missing.is_empty(), "left out: {missing}; run `cargo xtask setup`");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn report(succeeded: bool, is_missing: bool) -> Report {
        let missing = is_missing.then(|| ("thing", "absent".to_owned())).into_iter().collect();
        let runs = vec![Run { name: "workspace", passed: 5, succeeded, ..Run::default() }];
        Report { runs, missing, left_out: vec![("GPU", "none")] }
    }

    #[test]
    fn every_test_program_that_calls_mpiexec_runs_with_mpi_too() {
        let found = BTreeSet::from_iter(under_mpiexec().unwrap());
        let known = [
            "checkpoints",
            "conformance",
            "failed_step",
            "faults",
            "interface",
            "mpiexec",
            "servers",
            "store",
            "strategies",
        ];
        assert_eq!(Vec::from_iter(found), known);
    }

    #[test]
    fn result_lines_are_summed_and_others_are_not() {
        let mut run = Run::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; \
             finished in 0.00s",
            "test 7 passed; 9 failed ... ok",
            "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            run.add_line(line);
        }
        assert_eq!(run, Run { passed: 13, failed: 2, ignored: 1, ..Run::default() });
    }

    #[test]
    fn all_fails_only_for_parts_that_setup_installs() {
        let verdict = |is_missing, all| report(true, is_missing).verdict(all);
        assert!(verdict(true, true).is_err());
        assert!(verdict(true, false).is_ok() && verdict(false, true).is_ok());
    }

    #[test]
    fn a_run_that_broke_off_counts_as_a_failure() {
        let broken = report(false, false);
        assert_eq!(broken.closing_line(), "5 passed, 1 failed");
        assert!(broken.table().contains("broke off"));
        assert!(broken.verdict(false).is_err());
    }
}
