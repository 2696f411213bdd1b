//! The start of ranks on this host that are copies of this program.

use super::RankEnvironment;
use super::ended::Outcome;
use super::job::Job;
use super::signals::Signals;
use crate::Result;

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
