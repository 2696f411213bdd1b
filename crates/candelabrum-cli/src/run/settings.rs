//! What every attempt to run a job has in common: signals, grace, variables, files.

use std::path::{Path, PathBuf};

use candelabrum_dist::launch::{Job, vars};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use super::args::{RunArgs, StopSignal};

/// Gives a job its signals, its grace, and the number of the attempt.
pub(super) fn prepared(job: Job, args: &RunArgs, attempt: usize) -> Job {
    let job = match stop_signal(args) {
        Some(stop) => job.forward(SIGTERM, stop).forward(SIGHUP, stop),
        None => job,
    };
    job.grace(args.grace).variable(vars::RESTART, attempt.to_string())
}

/// The signal that the user wants the ranks to get instead of SIGTERM.
pub(super) fn stop_signal(args: &RunArgs) -> Option<i32> {
    Some(match args.stop_signal? {
        StopSignal::Term => SIGTERM,
        StopSignal::Int => SIGINT,
        StopSignal::Usr1 => SIGUSR1,
        StopSignal::Usr2 => SIGUSR2,
    })
}

/// The variables that the ranks get from the user's options.
pub(super) fn variables(args: &RunArgs) -> Vec<(&'static str, String)> {
    let device = args.device.map(|device| (vars::DEVICE, device.to_string()));
    let threads = args.threads.map(|threads| (vars::THREADS, threads.to_string()));
    device.into_iter().chain(threads).collect()
}

/// The folder of an attempt's output.
pub(super) fn folder(log_dir: &Path, attempt: usize) -> PathBuf {
    log_dir.join(format!("attempt-{attempt}"))
}
