//! The start of ranks on this host. Each rank is a copy of this program, and the launcher watches
//! all of them until they have ended.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::rand::{GetRandomFlags, getrandom};

use super::report::{Report, Reports};
use super::signals::Signals;
use super::{RankEnvironment, dmlc, vars};
use crate::{Error, Result};

/// The most ranks that [`spawn`] starts on one host.
pub const MAX_WORKERS: usize = 256;

/// The time between two checks of the children.
const LOOK: Duration = Duration::from_millis(10);

/// After the failure of a rank, the other ranks have this long to notice it and report.
const GRACE: Duration = Duration::from_secs(2);

/// The end of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Every rank succeeded.
    Success,
    /// A rank failed. The line names the rank and the reason.
    Failed(String),
    /// This signal asked the launcher to stop, and the launcher has stopped the ranks.
    Interrupted(i32),
}

/// Starts `workers` copies of this program, each a rank, and waits for all of them.
///
/// The copies have this process's arguments. Their environment has in addition the place of each
/// rank ([`super::Launch::detect`]). If a rank fails, the launcher ends the others. If this process
/// dies from any signal, its ranks die too. `threads` limits the compute threads of each rank.
/// Until all copies have ended, SIGINT and SIGTERM end the copies instead of this process.
/// Afterwards these signals have their earlier effect again.
///
/// # Errors
/// A number of workers out of range, a process that cannot be started, or a process for which
/// another part of this program has waited. The failure of a rank is not an error but
/// [`Outcome::Failed`].
pub fn spawn(workers: usize, threads: usize) -> Result<Outcome> {
    spawn_with(workers, &RankEnvironment::new(threads))
}

/// As [`spawn`], with all settings of the ranks' environment, for `ranks` copies, servers included.
///
/// If some ranks are servers, each rank also gets the variables by which scripts for MXNet learn
/// their role: DMLC_ROLE, DMLC_NUM_WORKER and DMLC_NUM_SERVER.
///
/// # Errors
/// Those of [`spawn`], no rank besides the servers, and a network interface that this host does not
/// have.
pub fn spawn_with(ranks: usize, environment: &RankEnvironment) -> Result<Outcome> {
    let servers = environment.servers;
    if ranks == 0 || ranks > MAX_WORKERS {
        return Err(Error::Setting {
            setting: if servers == 0 { "--workers" } else { "--workers plus --servers" },
            value: ranks.to_string(),
            range: "from 1 to 256 on one host",
        });
    }
    if servers >= ranks {
        return Err(Error::Setting {
            setting: "the number of servers",
            value: servers.to_string(),
            range: "less than the number of ranks",
        });
    }
    let mut variables = environment.variables()?;
    let signals = Signals::watch()?;
    let reports = Reports::open()?;
    variables.extend([
        (vars::WORLD_SIZE, ranks.to_string()),
        (vars::SERVERS, servers.to_string()),
        (vars::JOB, unique_job()?),
        (vars::PARENT, std::process::id().to_string()),
        (vars::REPORTS, reports.path()),
    ]);
    let mut children = Ranks::default();
    for rank in 0..ranks {
        let own = dmlc::of_rank(rank, ranks, servers);
        children.start(rank, &[&variables[..], &own].concat())?;
    }
    children.watch(reports, &signals)
}

/// A word that cannot be guessed, so that no other user can take the names of the job's sockets.
fn unique_job() -> Result<String> {
    let mut bytes = [0_u8; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|error| Error::io("draw the name of the job", error))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// The child processes. Dropping this value kills them.
#[derive(Default)]
struct Ranks(Vec<Rank>);

struct Rank {
    child: Child,
    /// `None` while it runs.
    ended: Option<ExitStatus>,
}

impl Ranks {
    fn start(&mut self, rank: usize, variables: &[(&str, String)]) -> Result<()> {
        let what = || format!("start rank {rank}");
        let program = std::env::current_exe().map_err(|error| Error::io(what(), error))?;
        let child = Command::new(program)
            .args(std::env::args_os().skip(1))
            .env(vars::RANK, rank.to_string())
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| Error::io(what(), error))?;
        self.0.push(Rank { child, ended: None });
        Ok(())
    }

    fn watch(&mut self, mut reports: Reports, signals: &Signals) -> Result<Outcome> {
        let mut heard: Vec<Report> = Vec::new();
        let mut died = None;
        let mut ending: Option<Instant> = None;
        loop {
            heard.extend(reports.take());
            self.look()?;
            if let Some(signal) = signals.caught() {
                self.end(Signal::TERM);
                self.wait_until(Instant::now() + GRACE)?;
                return Ok(Outcome::Interrupted(signal));
            }
            // A death by signal is a cause only before the launcher starts to kill.
            if died.is_none() && ending.is_none_or(|at| Instant::now() < at) {
                died = self.killed();
            }
            if self.0.iter().all(|rank| rank.ended.is_some()) {
                heard.extend(reports.take());
                return Ok(self.outcome(died, &heard));
            }
            if self.0.iter().any(Rank::failed) || !heard.is_empty() {
                let at = *ending.get_or_insert_with(|| Instant::now() + GRACE);
                if Instant::now() >= at {
                    self.end(Signal::KILL);
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Polls the ranks that have not ended.
    fn look(&mut self) -> Result<()> {
        let mut result = Ok(());
        let running = self.0.iter_mut().enumerate().filter(|(_, rank)| rank.ended.is_none());
        for (index, rank) in running {
            match rank.child.try_wait() {
                Ok(ended) => rank.ended = ended,
                Err(error) => {
                    // The process's number may belong to another process by now, which must not be
                    // killed.
                    rank.ended = Some(ExitStatus::default());
                    result = Err(Error::io(format!("wait for rank {index}"), error));
                }
            }
        }
        result
    }

    fn end(&self, signal: Signal) {
        for rank in self.0.iter().filter(|rank| rank.ended.is_none()) {
            if let Some(pid) = i32::try_from(rank.child.id()).ok().and_then(Pid::from_raw) {
                // The rank may have ended in the meantime.
                let _ = kill_process(pid, signal);
            }
        }
    }

    fn wait_until(&mut self, deadline: Instant) -> Result<()> {
        while Instant::now() < deadline && self.0.iter().any(|rank| rank.ended.is_none()) {
            std::thread::sleep(LOOK);
            self.look()?;
        }
        Ok(())
    }

    /// The first rank that a signal has ended, and the signal.
    fn killed(&self) -> Option<(usize, i32)> {
        let signal = |rank: &Rank| rank.ended.and_then(|status| status.signal());
        self.0.iter().enumerate().find_map(|(i, rank)| Some((i, signal(rank)?)))
    }

    /// The outcome of a job that has ended. Of all failures it names the cause: first a death by
    /// signal, then a rank's own error, then an exit code. Consequences of another rank's failure
    /// come last.
    fn outcome(&self, died: Option<(usize, i32)>, reports: &[Report]) -> Outcome {
        if let Some((rank, signal)) = died {
            let name = signal_name(signal);
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
        // A rank that failed without a report (a panic, an exit) is the cause of the other ranks'
        // failures.
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
        // The remaining ranks are ended even if this check fails.
        drop(self.look());
        self.end(Signal::KILL);
        for rank in &mut self.0 {
            if rank.ended.is_none() {
                drop(rank.child.wait());
            }
        }
    }
}

/// A signal's name, or its number where it has none.
fn signal_name(signal: i32) -> String {
    let named = nix::sys::signal::Signal::try_from(signal);
    named.map_or_else(|_| format!("signal {signal}"), |named| named.as_str().to_owned())
}

/// Makes the kernel kill this process when its launcher dies, if it has one.
pub(crate) fn follow_parent() -> Result<()> {
    let Some(parent) = std::env::var(vars::PARENT).ok().and_then(|text| text.parse::<i32>().ok())
    else {
        return Ok(());
    };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Error::io("follow the launcher", error))?;
    // The launcher may have died before the line above.
    let now = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if now != parent {
        return Err(Error::Launch { what: "the launcher has died".to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_the_system_has_forgotten_is_an_error_and_is_not_killed() {
        let child = Command::new("true").spawn().expect("a process");
        // Another part of the program waits for the child.
        let wait = rustix::process::WaitOptions::empty();
        rustix::process::waitpid(Some(Pid::from_child(&child)), wait).expect("it ends");
        let mut ranks = Ranks(vec![Rank { child, ended: None }]);
        let message = ranks.look().expect_err("it is not there").to_string();
        assert!(message.contains("wait for rank 0"), "{message}");
        assert!(ranks.0.iter().all(|rank| rank.ended.is_some()));
        ranks.look().expect("it is asked for once");
    }
}
