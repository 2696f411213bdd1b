//! What the tests found: passed, failed, left out.

use anyhow::{Result, ensure};

use super::jobs::JobOutcome;
use crate::machine;
use crate::setup::models;

/// The results of all runs, and the parts that were not run, each with the reason.
#[derive(Debug, Default)]
pub(crate) struct TestReport {
    pub(crate) runs: Vec<ProgramRun>,
    /// What `cargo xtask setup` would have installed.
    missing: Vec<(&'static str, String)>,
    left_out: Vec<(&'static str, &'static str)>,
}

/// The programs that the summary names as the slowest.
const SLOWEST: usize = 8;

/// One program: the sums of its `test result:` lines.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ProgramRun {
    name: String,
    passed: usize,
    failed: usize,
    ignored: usize,
    pub(super) succeeded: bool,
    seconds: f64,
    /// What a program printed that did not succeed, or did not in its first run.
    output: String,
}

impl ProgramRun {
    pub(super) fn new(outcome: &JobOutcome) -> Self {
        let JobOutcome { job, output, status, seconds } = outcome;
        let (name, seconds) = (job.name.clone(), *seconds);
        let succeeded = status.is_some_and(|status| status.success());
        let mut run = Self { name, succeeded, seconds, ..Self::default() };
        output.lines().for_each(|line| run.add_line(line));
        if !succeeded {
            run.output = match status {
                Some(status) => format!("{output}{status}\n"),
                None => format!("{output}killed: it did not end\n"),
            };
        }
        run
    }

    /// Adds the counts of a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    fn add_line(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        let words: Vec<&str> = counts.split([' ', ';']).collect();
        let count = |what: &str| -> usize {
            let pair = words.windows(2).find(|pair| pair[1] == what);
            pair.and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
        };
        self.passed += count("passed");
        self.failed += count("failed");
        self.ignored += count("ignored");
    }

    /// Failed without a failed test: the program crashed or did not end.
    fn broke_off(&self) -> bool {
        !self.succeeded && self.failed == 0
    }

    /// The line of the program, after its output if it failed.
    pub(super) fn line(&self) -> String {
        let Self { name, passed, failed, ignored, succeeded, seconds, output } = self;
        let word = if *succeeded { "ok    " } else { "FAILED" };
        let mut line = String::new();
        if !succeeded {
            line += &format!("{name} failed:\n{output}");
        }
        line += &format!("{word} {seconds:>6.1} s  {name}: {passed} passed");
        for (count, word) in [(failed, "failed"), (ignored, "ignored")] {
            if *count > 0 {
                line += &format!(", {count} {word}");
            }
        }
        line
    }
}

impl TestReport {
    /// No runs, and what this machine lacks.
    pub(super) fn before_runs() -> Self {
        let mnist = "no files at $MNIST_DIR or ../shared/data/mnist: real data was not tested";
        let pytorch = "not installed: tests compare with the golden files it made";
        let tensorboard = "not installed: its own reader did not read our event files";
        let transformers = "not installed: it did not open the folders that we save";
        let pretrained = "not here: cargo xtask setup --models";
        let installable =
            [("MPI", machine::lacks_for_mpi()), ("gpu-test", machine::lacks_for_softgpu())];
        let others = [
            (machine::mnist().is_some(), ("MNIST", mnist)),
            (machine::python_with_torch().is_some(), ("PyTorch", pytorch)),
            (machine::python_with("tensorboard").is_some(), ("TensorBoard", tensorboard)),
            (machine::python_with("peft").is_some(), ("transformers", transformers)),
            (models::are_here(), ("real models", pretrained)),
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

    /// Says before the tests that `--all` will fail.
    pub(super) fn warn(&self, all: bool) {
        if all && !self.missing.is_empty() {
            let missing = self.names_of_missing();
            println!("--all will fail: no {missing} here. `cargo xtask setup` installs it.");
        }
    }

    /// The slowest programs, what failed, and what was left out.
    pub(crate) fn table(&self) -> String {
        let mut table = String::from("\nslowest\n");
        let mut runs: Vec<&ProgramRun> = self.runs.iter().collect();
        runs.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        for run in runs.iter().take(SLOWEST) {
            table += &format!("  {:>6.1} s  {}\n", run.seconds, run.name);
        }
        for run in self.runs.iter().filter(|run| !run.succeeded || !run.output.is_empty()) {
            let word = if run.succeeded { "passed alone only" } else { "failed" };
            let tests = run.output.lines().filter(|line| line.ends_with(" ... FAILED"));
            let tests: Vec<&str> = tests.filter_map(|line| line.split(' ').nth(1)).collect();
            let what =
                if tests.is_empty() { "broke off: see above".to_owned() } else { tests.join(", ") };
            table += &format!("{word}\n  {}: {what}\n", run.name);
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

    /// Takes the place of the earlier run of the same program.
    pub(super) fn replace(&mut self, mut run: ProgramRun) {
        let Some(earlier) =
            self.runs.iter_mut().find(|earlier| earlier.name == run.name && !earlier.succeeded)
        else {
            return;
        };
        if run.succeeded {
            run.output = std::mem::take(&mut earlier.output);
        }
        *earlier = run;
    }

    pub(super) fn has_tests(&self) -> bool {
        self.runs.iter().any(|run| run.passed + run.failed > 0 || run.broke_off())
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
        let failed = self.runs.iter().filter(|run| !run.succeeded).map(|run| &*run.name);
        let (failed, missing) = (failed.collect::<Vec<_>>().join(", "), self.names_of_missing());
        ensure!(failed.is_empty(), "tests failed: {failed}");
        ensure!(!all || missing.is_empty(), "left out: {missing}; run `cargo xtask setup`");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(succeeded: bool, is_missing: bool) -> TestReport {
        let missing = is_missing.then(|| ("thing", "absent".to_owned())).into_iter().collect();
        let runs =
            vec![ProgramRun { name: "nn".into(), passed: 5, succeeded, ..ProgramRun::default() }];
        TestReport { runs, missing, left_out: vec![("GPU", "none")] }
    }

    #[test]
    fn result_lines_are_summed_and_others_are_not() {
        let mut run = ProgramRun::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; \
             finished in 0.00s",
            "test 7 passed; 9 failed ... ok",
            "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            run.add_line(line);
        }
        assert_eq!(run, ProgramRun { passed: 13, failed: 2, ignored: 1, ..ProgramRun::default() });
    }

    #[test]
    fn all_fails_only_for_parts_that_setup_installs() {
        let verdict = |is_missing, all| report(true, is_missing).verdict(all);
        assert!(verdict(true, true).is_err());
        assert!(verdict(true, false).is_ok() && verdict(false, true).is_ok());
    }

    #[test]
    fn a_program_that_passes_alone_passes_and_is_named() {
        let mut report = report(false, false);
        report.runs[0].output = "test slow::one ... FAILED\n".to_owned();
        report.replace(ProgramRun {
            name: "nn".into(),
            passed: 6,
            succeeded: true,
            ..ProgramRun::default()
        });
        assert_eq!(report.closing_line(), "6 passed, 0 failed");
        assert!(
            report.table().contains("passed alone only\n  nn: slow::one"),
            "{}",
            report.table()
        );
        assert!(report.verdict(true).is_ok());
    }

    #[test]
    fn a_program_that_broke_off_counts_as_a_failure() {
        let broken = report(false, false);
        assert_eq!(broken.closing_line(), "5 passed, 1 failed");
        assert!(broken.table().contains("nn: broke off"));
        assert!(broken.verdict(false).is_err());
    }
}
