//! Starting ranks on this host: this very program again, once per rank, watched until all end.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};

use super::report::{Ear, Report};
use super::{RankEnvironment, vars};
use crate::{Error, Result};

/// The most ranks that [`spawn`] starts on one host.
pub const MAX_WORKERS: usize = 256;

/// Between two looks at the children.
const LOOK: Duration = Duration::from_millis(10);

/// Once a rank has failed the others have this long to notice by themselves and say so.
const GRACE: Duration = Duration::from_secs(2);

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Every rank succeeded.
    Success,
    /// A rank failed; one line that names it and its reason.
    Failed(String),
    /// The launcher was asked to stop by this signal, and the ranks with it.
    Interrupted(i32),
}

/// Starts `workers` copies of this program, each a rank, and waits for all of them.
///
/// The copies have this process's arguments and one thing more in their environment: their place
/// ([`super::Launch::detect`]). When one fails the others are ended; when this process dies, by
/// whatever signal, so do they. `threads` bounds the compute threads of each.
///
/// # Errors
/// A number of workers that makes no sense, or a process that cannot be started. What goes wrong
/// in a rank is no error here but [`Outcome::Failed`].
pub fn spawn(workers: usize, threads: usize) -> Result<Outcome> {
    spawn_with(workers, &RankEnvironment::new(threads))
}

/// [`spawn`], with all that the ranks' environment can say.
///
/// # Errors
/// Those of [`spawn`], and a network interface that this host does not have.
pub fn spawn_with(workers: usize, environment: &RankEnvironment) -> Result<Outcome> {
    if workers == 0 || workers > MAX_WORKERS {
        return Err(Error::Setting {
            setting: "--workers",
            value: workers.to_string(),
            range: "from 1 to 256 on one host",
        });
    }
    let variables = environment.variables()?;
    let signal = catch_signals()?;
    let job = unique_job();
    let ear = Ear::open(&job)?;
    let mut ranks = Ranks::default();
    for rank in 0..workers {
        ranks.start(rank, workers, &variables, &job)?;
    }
    Ok(ranks.watch(&ear, &signal))
}

/// Another word for every job.
fn unique_job() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}-{:x}", std::process::id(), now.as_nanos())
}

/// The number of the last signal that asks to stop; 0 before.
fn catch_signals() -> Result<Arc<AtomicUsize>> {
    let caught = Arc::new(AtomicUsize::new(0));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let number = signal as usize;
        signal_hook::flag::register_usize(signal, Arc::clone(&caught), number)
            .map_err(|error| Error::io("catch signals", error))?;
    }
    Ok(caught)
}

/// The children; dropped, they are killed.
#[derive(Default)]
struct Ranks(Vec<Rank>);

struct Rank {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Ranks {
    fn start(
        &mut self,
        rank: usize,
        workers: usize,
        variables: &[(&str, String)],
        job: &str,
    ) -> Result<()> {
        let what = || format!("start rank {rank}");
        let program = std::env::current_exe().map_err(|error| Error::io(what(), error))?;
        let child = Command::new(program)
            .args(std::env::args_os().skip(1))
            .env(vars::RANK, rank.to_string())
            .env(vars::WORLD_SIZE, workers.to_string())
            .env(vars::JOB, job)
            .env(vars::PARENT, std::process::id().to_string())
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| Error::io(what(), error))?;
        self.0.push(Rank { child, ended: None });
        Ok(())
    }

    fn watch(&mut self, ear: &Ear, signal: &AtomicUsize) -> Outcome {
        let mut reports: Vec<Report> = Vec::new();
        let mut died = None;
        let mut ending: Option<Instant> = None;
        loop {
            reports.extend(ear.reports());
            self.look();
            let caught = signal.load(Ordering::Relaxed);
            if caught != 0 {
                self.end(Signal::TERM);
                self.wait_until(Instant::now() + GRACE);
                return Outcome::Interrupted(caught as i32);
            }
            // A death is a cause only before we begin to kill.
            if died.is_none() && ending.is_none_or(|at| Instant::now() < at) {
                died = self.killed();
            }
            if self.0.iter().all(|rank| rank.ended.is_some()) {
                reports.extend(ear.reports());
                return self.outcome(died, &reports);
            }
            if self.0.iter().any(Rank::failed) || !reports.is_empty() {
                let at = *ending.get_or_insert_with(|| Instant::now() + GRACE);
                if Instant::now() >= at {
                    self.end(Signal::KILL);
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    fn look(&mut self) {
        for rank in &mut self.0 {
            if rank.ended.is_none() {
                rank.ended = rank.child.try_wait().unwrap_or_default();
            }
        }
    }

    fn end(&self, signal: Signal) {
        for rank in self.0.iter().filter(|rank| rank.ended.is_none()) {
            if let Some(pid) = i32::try_from(rank.child.id()).ok().and_then(Pid::from_raw) {
                // It may have ended in the meantime.
                let _ = kill_process(pid, signal);
            }
        }
    }

    fn wait_until(&mut self, deadline: Instant) {
        while Instant::now() < deadline && self.0.iter().any(|rank| rank.ended.is_none()) {
            std::thread::sleep(LOOK);
            self.look();
        }
    }

    /// The first rank that a signal ended, and which.
    fn killed(&self) -> Option<(usize, i32)> {
        let signal = |rank: &Rank| rank.ended.and_then(|status| status.signal());
        self.0.iter().enumerate().find_map(|(i, rank)| Some((i, signal(rank)?)))
    }

    /// The cause rather than its echoes: a death by signal, a rank's own error, an exit code.
    fn outcome(&self, died: Option<(usize, i32)>, reports: &[Report]) -> Outcome {
        if let Some((rank, signal)) = died {
            let name = Named(signal);
            return Outcome::Failed(format!("rank {rank} was killed by {name}"));
        }
        if let Some(first) = reports.iter().find(|report| !report.echo) {
            let everywhere = reports.iter().filter(|r| !r.echo && r.message == first.message);
            let message = &first.message;
            return Outcome::Failed(match everywhere.count() {
                count if count == self.0.len() => message.clone(),
                _ => format!("rank {}: {message}", first.rank),
            });
        }
        let failed =
            |(i, rank): (usize, &Rank)| Some((i, rank.ended.filter(|status| !status.success())?));
        let silent =
            |&&(i, _): &&(usize, ExitStatus)| reports.iter().all(|report| report.rank != i);
        // A rank that failed without a word (a panic, an exit) is the cause of the others' echoes.
        let ended: Vec<(usize, ExitStatus)> =
            self.0.iter().enumerate().filter_map(failed).collect();
        if let Some((rank, status)) = ended.iter().find(silent).or(ended.first()) {
            let echo = reports.first().map(|report| format!(": {}", report.message));
            let echo = echo.unwrap_or_default();
            return Outcome::Failed(format!("rank {rank} ended with {status}{echo}"));
        }
        Outcome::Success
    }
}

impl Rank {
    fn failed(&self) -> bool {
        self.ended.is_some_and(|status| !status.success())
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.look();
        self.end(Signal::KILL);
        for rank in &mut self.0 {
            if rank.ended.is_none() {
                drop(rank.child.wait());
            }
        }
    }
}

/// A signal by name where it has a common one.
struct Named(i32);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match signal_hook::low_level::signal_name(self.0) {
            Some(name) => f.write_str(name),
            None => write!(f, "signal {}", self.0),
        }
    }
}

/// Ties this process's life to its launcher's, if it has one.
pub(crate) fn follow_parent() -> Result<()> {
    let Some(parent) = std::env::var(vars::PARENT).ok().and_then(|text| text.parse::<i32>().ok())
    else {
        return Ok(());
    };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Error::io("follow the launcher", error))?;
    // It may have died before the line above.
    let now = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if now != parent {
        return Err(Error::Launch { what: "the launcher has died".to_owned() });
    }
    Ok(())
}
