//! `candelabrum run`: starts a program on several ranks, watches them, and starts them again.

mod args;
mod elsewhere;
mod failure;
mod hostfile;
mod launchers;
mod local_job;
mod prefix;
mod program;
mod ranks;
mod restarts;
mod settings;
mod unreachable;

use std::fs::create_dir_all;
use std::io::{IsTerminal, Write, stderr};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use candelabrum_dist::launch::{ENDING, JobEnd, Launch, Outcome, Signals, interrupted_by};

pub use args::RunArgs;

use args::{LauncherChoice, OnFailure, Workers};
use elsewhere::Elsewhere;
use failure::{Result, StartFailure};
use launchers::LauncherProgram;
use local_job::LocalJob;
use restarts::{Policy, RestartDecision, Restarts};
use settings::folder;

/// The time between two looks at the signals during a pause.
const LOOK: Duration = Duration::from_millis(10);

/// Runs the job, and returns the exit code of this program.
pub fn run(args: &RunArgs) -> ExitCode {
    match start(args) {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(failure) => {
            say(&format!("error: {failure}"));
            ExitCode::from(failure.code())
        }
    }
}

/// A job, by what starts its ranks.
enum JobPlan<'a> {
    Here(LocalJob<'a>),
    Elsewhere(Elsewhere<'a>),
}

fn start(args: &RunArgs) -> Result<i32> {
    refuse_to_be_a_rank()?;
    let mut plan = JobPlan::new(args)?;
    plan.refuse_one_of_several_nodes(args)?;
    let (workers, least) = (plan.workers(), args.min_workers);
    if least > workers {
        return Err(StartFailure::Usage(format!(
            "--min-workers is {least}, but the job begins with {workers} workers"
        )));
    }
    if args.dry_run {
        print(&plan.describe()?);
        return Ok(0);
    }
    let policy = Policy { most: args.max_restarts, pause: args.backoff, reset: args.restart_reset };
    let mut restarts = Restarts::new(policy);
    let mut signals = Signals::for_jobs()?;
    loop {
        let (attempt, start) = (restarts.all(), Instant::now());
        make_folder(args, attempt)?;
        let ended = plan.attempt(attempt, &mut signals)?;
        let reason = match &ended.outcome {
            Outcome::Success => return Ok(0),
            Outcome::Interrupted { message, .. } => {
                say(&format!("error: {message}"));
                return Ok(ended.code);
            }
            Outcome::Failed(reason) => reason.clone(),
            other => format!("the job ended with {other:?}"),
        };
        let reason = format!("{reason}{}", where_to_look(args, attempt, &ended));
        match restarts.after(ended.code, start.elapsed(), ended.saved) {
            RestartDecision::Restart { number, pause } => {
                let size = match args.on_failure {
                    OnFailure::Same => String::new(),
                    OnFailure::Shrink => plan.shrink(&ended)?,
                };
                let (most, seconds) = (args.max_restarts, pause.as_secs_f64());
                say(&format!("note: {reason}; restart {number} of {most} in {seconds} s{size}"));
                if let Some(signal) = wait(pause, &mut signals) {
                    say(&format!("error: {}", interrupted_by(signal)));
                    return Ok(128 + signal);
                }
            }
            RestartDecision::InVain if args.max_restarts > 0 => {
                let code = ended.code;
                say(&format!("error: {reason}; there is no restart after exit code {code}"));
                return Ok(code);
            }
            RestartDecision::UsedUp if attempt > 0 => {
                say(&format!("error: {reason}, after {attempt} restart(s)"));
                return Ok(ended.code);
            }
            RestartDecision::InVain | RestartDecision::UsedUp => {
                say(&format!("error: {reason}"));
                return Ok(ended.code);
            }
        }
    }
}

impl<'a> JobPlan<'a> {
    fn new(args: &'a RunArgs) -> Result<Self> {
        // In a job step, such as a shell that srun has opened, srun has started this program already.
        let is_in_allocation = Launch::is_in_slurm_allocation();
        let launcher = match args.launcher {
            LauncherChoice::Local if args.hostfile.is_some() => {
                let what = "--launcher local starts ranks on this host only: leave out --hostfile";
                return Err(StartFailure::Usage(what.to_owned()));
            }
            LauncherChoice::Local => return Ok(Self::Here(LocalJob::new(args)?)),
            LauncherChoice::Mpiexec => LauncherProgram::mpiexec()?,
            LauncherChoice::Srun => LauncherProgram::srun()?,
            LauncherChoice::Auto if is_in_allocation => LauncherProgram::srun()?,
            LauncherChoice::Auto if args.hostfile.is_some() => LauncherProgram::mpiexec()?,
            LauncherChoice::Auto => return Ok(Self::Here(LocalJob::new(args)?)),
        };
        Ok(Self::Elsewhere(Elsewhere::new(args, launcher)?))
    }

    /// A job on this host is wrong where an engine has given several nodes to it: each node would train alone. mpiexec and
    /// srun start ranks on all of them.
    fn refuse_one_of_several_nodes(&self, args: &RunArgs) -> Result<()> {
        let Self::Here(_) = self else { return Ok(()) };
        let workers = match (args.launcher, args.workers) {
            (LauncherChoice::Local, _) => Some(1),
            (_, Some(Workers::Are(workers))) => Some(workers),
            (_, Some(Workers::Auto)) => Some(self.workers().max(2)),
            (_, None) => None,
        };
        Launch::detect_for(workers)?;
        Ok(())
    }

    fn workers(&self) -> usize {
        match self {
            Self::Here(job) => job.workers(),
            Self::Elsewhere(job) => job.workers(),
        }
    }

    fn describe(&self) -> Result<String> {
        match self {
            Self::Here(job) => Ok(job.describe()),
            Self::Elsewhere(job) => job.describe(0),
        }
    }

    fn attempt(&self, attempt: usize, signals: &mut Signals) -> Result<JobEnd> {
        match self {
            Self::Here(job) => job.attempt(attempt, signals),
            Self::Elsewhere(job) => job.attempt(attempt, signals, |line| say(&format!("+ {line}"))),
        }
    }

    /// Makes the job smaller, and returns its new size in words.
    fn shrink(&mut self, ended: &JobEnd) -> Result<String> {
        let lost = match self {
            Self::Here(job) => {
                job.shrink();
                Vec::new()
            }
            Self::Elsewhere(job) => job.shrink(ended)?,
        };
        let without = match lost.is_empty() {
            true => String::new(),
            false => format!(", without {}", lost.join(" and ")),
        };
        Ok(format!(" with {} worker(s){without}", self.workers()))
    }
}

/// Ranks that are launchers would start as many jobs as there are ranks.
fn refuse_to_be_a_rank() -> Result<()> {
    // What engines say of several nodes depends on the plan.
    let launch = Launch::detect_for(Some(1))?;
    if launch.world_size == 1 {
        return Ok(());
    }
    Err(StartFailure::Usage(format!(
        "this `candelabrum run` is itself one of {} ranks, and each of them would start a job: start \
         it once, without mpiexec, srun or torchrun",
        launch.world_size
    )))
}

fn make_folder(args: &RunArgs, attempt: usize) -> Result<()> {
    let Some(log_dir) = &args.log_dir else { return Ok(()) };
    let folder = folder(log_dir, attempt);
    create_dir_all(&folder).map_err(|error| {
        StartFailure::Usage(format!("--log-dir: cannot make {}: {error}", folder.display()))
    })
}

/// The file with the output of the rank that failed.
fn where_to_look(args: &RunArgs, attempt: usize, ended: &JobEnd) -> String {
    let (Some(log_dir), Some(rank)) = (&args.log_dir, ended.rank) else { return String::new() };
    let file = folder(log_dir, attempt).join(format!("rank-{rank}.err"));
    format!(" (see {})", file.display())
}

/// Waits, unless a signal asks this program to end.
fn wait(pause: Duration, signals: &mut Signals) -> Option<i32> {
    let end = Instant::now() + pause;
    loop {
        while let Some(signal) = signals.next_arrived() {
            if ENDING.contains(&signal) {
                return Some(signal);
            }
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::sleep(left.min(LOOK));
    }
}

fn say(line: &str) {
    // On a terminal a rank's progress bar may be in this line: return to its start and clear it.
    let clear = if stderr().is_terminal() { "\r\x1b[2K" } else { "" };
    // After SIGHUP the terminal may be gone.
    drop(writeln!(stderr(), "{clear}{line}"));
}

#[expect(clippy::print_stdout, reason = "what the user asked for")]
fn print(line: &str) {
    println!("{line}");
}
