//! `cargo xtask test`: the tests that this machine can run, and a table of the tests left out.
//!
//! Without `--all`, a machine with only Rust passes. With `--all`, everything that
//! `cargo xtask setup` can install must be there. It cannot install a GPU, PyTorch or the MNIST
//! files, so missing ones are only reported.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};

use self::build::{TestBuild, TestProgram};
use self::jobs::{JobLane, TestJob};
use self::report::{ProgramRun, TestReport};
use self::selection::Selection;

pub(crate) mod build;
mod jobs;
pub(crate) mod report;
mod selection;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the packages, test programs or their modules of these names (nn, jobs, hooks), or else the tests with such a part in their names
    #[arg(value_name = "NAME", conflicts_with_all = ["all", "changed"])]
    names: Vec<String>,
    /// Only what the changes since a commit touch
    #[arg(long, value_name = "COMMIT", num_args = 0..=1, default_missing_value = "HEAD", require_equals = true)]
    changed: Option<String>,
    /// Fail if something was left out that `cargo xtask setup` installs
    #[arg(long, conflicts_with = "changed")]
    all: bool,
}

/// The programs that run on a GPU, and of each the tests with one of these in their names, or all. Tests that need a
/// GPU say so where there is none.
const ON_A_GPU: [(&str, &[&str]); 5] = [
    ("gpu", &[]),
    // Over the other backends, ranks that see a GPU would take it.
    ("conformance", &["nccl"]),
    ("ops", &["composites", "on_a_gpu"]),
    ("softgpu", &[]),
    ("examples", &["on_a_gpu"]),
];

/// Hides GPUs, the first variable those of a real driver, the second one that of the software GPU. The third one makes
/// programs not say so.
const NO_GPU: [(&str, &str); 3] =
    [("CUDA_VISIBLE_DEVICES", ""), ("SOFTGPU_COUNT", "0"), ("CANDELABRUM_DEVICE", "cpu")];

/// The programs without tests for machines without a GPU.
const ONLY_ON_A_GPU: [&str; 2] = ["gpu", "softgpu"];

/// The programs that mostly wait, the longest first. More tests of them run at a time than the machine has cores.
const WAITS: [&str; 6] = ["gpu", "conformance", "jobs", "store", "run", "commands"];

/// The longest of the others, the longest first.
const LONG: [&str; 5] = ["it", "examples", "bench-player", "law", "ops"];

const THREADS_OF_WAITING: &str = "4";

/// What is to be tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TestPart {
    WithoutGpu,
    OnGpu,
    All,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let build = TestBuild::of_this_machine()?;
    let selection = match &args.changed {
        Some(commit) => Some(Selection::changed_since(commit)?),
        None => Some(Selection::named(&args.names)).filter(|_| !args.names.is_empty()),
    };
    let report = match selection {
        Some(selection) if selection.is_empty() => {
            println!("no change touches a test");
            return Ok(());
        }
        Some(selection) => run_selection(&build, &selection)?,
        None => run_part(&build, TestPart::WithoutGpu, args.all)?,
    };
    report.finish(args.all)
}

/// Builds and runs the tests of this part.
pub(crate) fn run_part(build: &TestBuild, part: TestPart, all: bool) -> Result<TestReport> {
    let mut report = TestReport::before_runs();
    report.warn(all);
    let only = (part == TestPart::OnGpu).then(|| ON_A_GPU.map(|(name, _)| name.to_owned()).into());
    let programs = programs(build, only.as_ref())?;
    let mut jobs = Vec::new();
    if part != TestPart::OnGpu {
        jobs.extend(programs.iter().filter_map(|program| without_gpu(build, program, &[])));
        jobs.push(doc_tests(build));
    }
    if part != TestPart::WithoutGpu && build.has_software_gpu() {
        jobs.extend(on_gpu(build, &programs, &[]));
    }
    run_jobs(jobs, part != TestPart::OnGpu, &mut report)?;
    Ok(report)
}

/// Builds and runs what was selected.
fn run_selection(build: &TestBuild, selection: &Selection) -> Result<TestReport> {
    let mut jobs = Vec::new();
    for program in programs(build, selection.to_build().as_ref())? {
        let Some(filters) = selection.of(&program) else { continue };
        jobs.extend(without_gpu(build, &program, &filters));
        if build.has_software_gpu() && ONLY_ON_A_GPU.contains(&&*program.target) {
            jobs.extend(on_gpu(build, &[program], &filters));
        }
    }
    let mut report = TestReport::default();
    run_jobs(jobs, selection.to_build().is_none(), &mut report)?;
    ensure!(report.has_tests(), "no package, program or test has such a name");
    Ok(report)
}

fn programs(build: &TestBuild, names: Option<&BTreeSet<String>>) -> Result<Vec<TestProgram>> {
    println!("\n== build of the tests");
    let start = Instant::now();
    let programs = build.programs(names)?;
    println!("{} programs in {:.1} s", programs.len(), start.elapsed().as_secs_f64());
    Ok(programs)
}

fn without_gpu(build: &TestBuild, program: &TestProgram, filters: &[&str]) -> Option<TestJob> {
    if ONLY_ON_A_GPU.contains(&&*program.target) {
        return None;
    }
    let waits = WAITS.contains(&&*program.target);
    let mut command = command(build, program);
    command.args(filters).envs(NO_GPU);
    if waits {
        command.args(["--test-threads", THREADS_OF_WAITING]);
    }
    let lane = if waits { JobLane::Waits } else { JobLane::Computes };
    Some(TestJob { name: name(program), target: program.target.clone(), command, lane })
}

fn on_gpu(build: &TestBuild, programs: &[TestProgram], filters: &[&str]) -> Vec<TestJob> {
    let mut jobs = Vec::new();
    for (target, only) in ON_A_GPU {
        for program in programs.iter().filter(|program| program.target == target) {
            let mut command = command(build, program);
            command.args(only).args(filters).env("REQUIRE_GPUS", "1");
            let name = format!("{} on the software GPU", name(program));
            jobs.push(TestJob { name, target: target.to_owned(), command, lane: JobLane::Waits });
        }
    }
    jobs
}

fn doc_tests(build: &TestBuild) -> TestJob {
    let mut command = build.test(&["--doc", "--no-fail-fast"]);
    command.envs(NO_GPU);
    let name = "examples in the documentation".to_owned();
    TestJob { target: name.clone(), name, command, lane: JobLane::Computes }
}

fn name(program: &TestProgram) -> String {
    let TestProgram { package, target, .. } = program;
    if program.has_unit_tests {
        format!("{package}, unit tests")
    } else {
        format!("{package}::{target}")
    }
}

/// The program as cargo would run it.
fn command(build: &TestBuild, program: &TestProgram) -> Command {
    let mut command = Command::new(&program.path);
    build.prepare(&mut command);
    command.current_dir(&program.folder);
    command
}

/// Runs the jobs, the long ones first, and prints a line for each, with the output of those that fail. Programs that
/// fail run once more, alone. Tests that start
/// examples build them first, unless everything is built.
fn run_jobs(mut jobs: Vec<TestJob>, all_is_built: bool, report: &mut TestReport) -> Result<()> {
    for job in jobs.iter_mut().filter(|_| all_is_built) {
        job.command.env("CANDELABRUM_PROGRAMS_ARE_BUILT", "1");
    }
    let rank = |job: &TestJob| {
        let is_it = |name: &&str| job.target == **name;
        WAITS.iter().chain(&LONG).position(is_it).unwrap_or(usize::MAX)
    };
    jobs.sort_by_key(rank);
    let count = jobs.len();
    println!("\n== {count} programs with tests");
    let mut failed = Vec::new();
    jobs::run(jobs, |outcome| {
        let run = ProgramRun::new(&outcome);
        println!("[{}/{count}] {}", report.runs.len() + 1, run.line());
        if !run.succeeded {
            failed.push(outcome.job);
        }
        report.runs.push(run);
    })?;
    // A test may be too slow beside others. The report says so.
    for job in failed {
        println!("again, alone: {}", job.name);
        jobs::run(vec![job], |outcome| {
            let run = ProgramRun::new(&outcome);
            println!("{}", run.line());
            report.replace(run);
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkout::workspace;

    #[test]
    fn the_tables_name_programs() {
        let targets = workspace().packages.iter().flat_map(|package| &package.targets);
        let known: BTreeSet<&str> = targets.map(|target| &*target.name).collect();
        let on_a_gpu = ON_A_GPU.map(|(name, _)| name);
        for name in [&on_a_gpu[..], &ONLY_ON_A_GPU, &WAITS, &LONG].concat() {
            assert!(known.contains(name), "{name}");
        }
    }
}
