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
use super::signals::Signals;
use super::{RankEnvironment, ancestors, vars};
use crate::{Error, Result};

/// Starts `workers` copies of this program, each a rank, and waits for all of them.
///
/// The copies have this process's arguments. Their environment has in addition the place of each
/// rank ([`super::Launch::detect`]). `threads` limits the compute threads of each rank. [`Job::run`] says
/// what happens when a rank fails, and when a signal arrives. Afterwards these signals have their earlier
/// effect again. [`Job::of_this_program`] has more settings.
///
/// # Errors
/// Those of [`Job::run`].
pub fn spawn(workers: usize, threads: usize) -> Result<Outcome> {
    let job = Job::of_this_program()?.ranks(workers, &RankEnvironment::new(threads));
    Ok(job.run(&mut Signals::for_jobs()?)?.outcome)
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
