//! The start of ranks on this host that are copies of this program, and the tie of a rank to its
//! launcher.

use rustix::process::Signal;

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

/// Makes the kernel kill this process when its launcher dies, if it has one.
///
/// A program may stand between the launcher and this process: a shell, numactl. The launcher has made
/// it die with itself, and this process dies with it.
pub(crate) fn follow_parent() -> Result<()> {
    let Some(launcher) = std::env::var(vars::PARENT).ok().and_then(|text| text.parse::<i32>().ok())
    else {
        return Ok(());
    };
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Error::io("follow the launcher", error))?;
    // The launcher may have died before the line above.
    if !ancestors::has_ancestor(launcher) {
        return Err(Error::Launch { what: "the launcher has died".to_owned() });
    }
    Ok(())
}
