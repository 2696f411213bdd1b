//! The start of ranks on this host that are copies of this program, and the tie of a rank to its
//! launcher.

use std::thread::Builder;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, kill_process, pidfd_open,
    set_parent_process_death_signal,
};

use super::ended::Outcome;
use super::job::Job;
use super::signals::{INT, Signals, TERM};
use super::variables::seconds;
use super::watch::Grace;
use super::{RankEnvironment, ancestors, vars};
use crate::{Error, Result};

/// Starts `workers` copies of this program, each a rank, and waits for all of them.
///
/// The copies have this process's arguments. Their environment has in addition the place of each
/// rank ([`super::Launch::detect`]). If a rank fails, the launcher ends the others. If this process
/// dies from any signal, its ranks die too. `threads` limits the compute threads of each rank.
/// Until all copies have ended, SIGINT and SIGTERM end the copies instead of this process: the copies
/// get SIGTERM, and have 2 seconds, or as many as CANDELABRUM_GRACE says, before they are killed.
/// Afterwards these signals have their earlier effect again.
///
/// # Errors
/// A number of workers out of range, a CANDELABRUM_GRACE that is not a number of seconds, a process
/// that cannot be started, or a process for which another part of this program has waited. The
/// failure of a rank is not an error but [`Outcome::Failed`].
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
    let to_save = seconds(vars::GRACE)?;
    let grace = Grace { to_save: to_save.unwrap_or(Grace::default().to_save), ..Grace::default() };
    let job = Job::of_this_program()?.ranks(ranks, environment).grace(grace);
    let job = job.forward(INT, TERM).forward(TERM, TERM);
    Ok(job.run(&mut Signals::watch(&[INT, TERM])?)?.outcome)
}

/// Makes this process die when its launcher dies, if it has one.
///
/// A program may stand between the launcher and this process: a shell, numactl. A signal that asks for the end of
/// the job also reaches that program, which may die at once while this process saves its work. So such a process
/// follows the launcher and not its parent.
pub(crate) fn follow_parent() -> Result<()> {
    let Some(launcher) = std::env::var(vars::PARENT).ok().and_then(|text| text.parse::<i32>().ok())
    else {
        return Ok(());
    };
    let failed = |error: Errno| Error::io("follow the launcher", error);
    let process = Pid::from_raw(launcher).filter(|pid| getppid() != Some(*pid));
    match process.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(launcher)) => {
            let follow = move || {
                // The end of a process is something to read. An interrupted wait is tried again.
                while poll(&mut [PollFd::new(&launcher, PollFlags::IN)], None) == Err(Errno::INTR) {
                }
                // A process may always send signals to itself.
                kill_process(getpid(), Signal::KILL).ok();
            };
            let thread = Builder::new().name("candelabrum-launcher".to_owned()).spawn(follow);
            thread.map_err(|error| Error::io("follow the launcher", error))?;
        }
        // A launcher that has died is noticed below. Kernels before 5.3 have no such descriptors.
        _ => set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?,
    }
    // The launcher may have died before the lines above.
    if !ancestors::has_ancestor(launcher) {
        return Err(Error::Launch { what: "the launcher has died".to_owned() });
    }
    Ok(())
}
