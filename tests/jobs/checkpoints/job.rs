//! A job of the program: its start, its end, its result.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use candelabrum_testkit::{EndedProgram, Program, Running};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::program::ARGS;

/// The deadline of a job. It is generous, because it measures nothing.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A directory with the checkpoints and the notes of one run, however often it is started.
pub(crate) struct Place {
    dir: TempDir,
    /// Its options, which spaces divide.
    options: String,
    saves: bool,
}

/// What a run ends with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// The digests of all ranks' parameters, and the losses of all epochs.
    pub(crate) text: String,
}

impl Place {
    /// A run with these options, which spaces divide.
    pub(crate) fn new(options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("notes")).unwrap();
        Self { dir, options: options.to_owned(), saves: true }
    }

    pub(crate) fn without_checkpoints(self) -> Self {
        Self { saves: false, ..self }
    }

    pub(crate) fn checkpoints(&self) -> PathBuf {
        self.dir.path().join("checkpoints")
    }

    pub(crate) fn notes(&self) -> PathBuf {
        self.dir.path().join("notes")
    }

    /// The program with the run's options and `more`.
    pub(crate) fn program(&self, more: &str) -> Program {
        Program::test("checkpoints::rank_main").env(ARGS, self.args(more)).limit(LIMIT)
    }

    /// The options of the run and `more`, as the program reads them.
    pub(crate) fn args(&self, more: &str) -> String {
        let mut args = format!("{} {more}", self.options);
        let report = self.notes().join("report");
        let paths = [
            ("--checkpoint-dir", self.checkpoints()),
            ("--notes", self.notes()),
            ("--report", report),
        ];
        for (name, path) in paths {
            if name == "--checkpoint-dir" && !self.saves {
                continue;
            }
            if !args.split(' ').any(|arg| arg == name) {
                args += &format!(" {name} {}", path.display());
            }
        }
        args
    }

    pub(crate) fn start(&self, more: &str) -> Running {
        self.program(more).start()
    }

    /// Starts the program, and waits for its end.
    pub(crate) fn run(&self, more: &str) -> EndedProgram {
        self.program(more).run()
    }

    /// Starts the program, which must succeed.
    pub(crate) fn succeed(&self, more: &str) -> Outcome {
        self.run(more).success();
        self.outcome()
    }

    pub(crate) fn outcome(&self) -> Outcome {
        Outcome { text: fs::read_to_string(self.notes().join("result")).unwrap() }
    }

    /// The samples of each step, of all ranks together and in their order. A step that was trained again must
    /// have had the same samples.
    pub(crate) fn global_batches(&self, ranks: usize) -> BTreeMap<u64, Vec<u32>> {
        let mut all = BTreeMap::<u64, Vec<u32>>::new();
        for rank in 0..ranks {
            let text = fs::read_to_string(self.notes().join(format!("seen-{rank}"))).unwrap();
            for line in text.lines() {
                let (step, samples) = line.split_once(' ').unwrap();
                let samples: Vec<u32> = serde_json::from_str(samples).unwrap();
                all.entry(step.parse().unwrap()).or_default().extend(samples);
            }
        }
        for samples in all.values_mut() {
            samples.sort_unstable();
            samples.dedup();
        }
        all
    }

    /// The names of all checkpoints, the newest first.
    pub(crate) fn steps(&self) -> Vec<String> {
        let names = fs::read_dir(self.checkpoints()).unwrap();
        let mut names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name.starts_with("step-"));
        names.sort_by(|a, b| b.cmp(a));
        names
    }
}

/// Sends a signal to the rank whose number was noted, if it lives.
pub(crate) fn kill_rank(notes: &Path, rank: usize) -> bool {
    let pid = fs::read_to_string(notes.join(format!("pid-{rank}"))).ok();
    let pid = pid.and_then(|text| Pid::from_raw(text.parse().ok()?));
    pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
}
