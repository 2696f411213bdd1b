//! Programs with tests, side by side.
//!
//! Most long programs wait: for a deadline to pass, for a process to end. They run beside those that compute.

use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fs_err as fs;

use crate::checkout::target_folder;

/// After this time a program is killed.
const LIMIT: Duration = Duration::from_secs(1200);

/// How a program may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobLane {
    /// Beside programs that compute.
    Waits,
    Computes,
}

/// A program that runs tests.
#[derive(Debug)]
pub(crate) struct TestJob {
    pub(crate) name: String,
    /// The name of the program alone.
    pub(crate) target: String,
    pub(crate) command: Command,
    pub(crate) lane: JobLane,
}

/// What became of a job, which can be run again.
#[derive(Debug)]
pub(crate) struct JobOutcome {
    pub(crate) job: TestJob,
    pub(crate) output: String,
    /// `None` if the program did not end in time.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) seconds: f64,
}

const LANES: usize = 2;

/// Runs the jobs of each lane in their order, both lanes at the same time, and gives each outcome to `each` when it is
/// there. A lane without jobs takes those of the other.
pub(crate) fn run(jobs: Vec<TestJob>, mut each: impl FnMut(JobOutcome)) -> Result<()> {
    let folder = target_folder().join("test-output");
    fs::create_dir_all(&folder)?;
    let (waiting, computing): (VecDeque<TestJob>, VecDeque<TestJob>) =
        jobs.into_iter().partition(|job| job.lane == JobLane::Waits);
    let lanes = Mutex::new([waiting, computing]);
    let (send, outcomes) = mpsc::channel();
    thread::scope(|scope| {
        for own in 0..LANES {
            let (send, lanes, folder) = (send.clone(), &lanes, &folder);
            scope.spawn(move || {
                let next = || {
                    let mut lanes = lanes.lock().unwrap_or_else(PoisonError::into_inner);
                    let other = (own + 1) % LANES;
                    lanes[own].pop_front().or_else(|| lanes[other].pop_front())
                };
                while let Some(job) = next() {
                    if send.send(run_job(job, folder)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        outcomes.into_iter().try_for_each(|outcome| outcome.map(&mut each))
    })
}

fn run_job(mut job: TestJob, folder: &Path) -> Result<JobOutcome> {
    let file = job.name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    let path = folder.join(format!("{file}.txt"));
    let output = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let start = Instant::now();
    let command = job.command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut child = command.spawn().with_context(|| format!("cannot start {}", job.name))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > LIMIT {
            break None;
        }
        thread::sleep(Duration::from_millis(10));
    };
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    let output = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
    Ok(JobOutcome { job, output, status, seconds: start.elapsed().as_secs_f64() })
}
