//! What every attempt to run a job has in common: signals, times, variables, files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use candelabrum_dist::launch::{Grace, Job, vars};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};

use super::args::{Args, StopSignal};

/// The signals that this program passes on.
pub(super) const SIGNALS: [i32; 6] = [SIGUSR1, SIGUSR2, SIGTSTP, SIGINT, SIGTERM, SIGHUP];

/// After the failure of a rank, the others have this long to notice it.
const TO_NOTICE: Duration = Duration::from_secs(1);

/// Then they get SIGTERM and have this long before they are killed. They cannot save anything that
/// all ranks would have to agree on.
const TO_END: Duration = Duration::from_secs(3);

/// Whether a signal asks this program to end.
pub(super) fn ends(signal: i32) -> bool {
    [SIGINT, SIGTERM, SIGHUP].contains(&signal)
}

/// Gives a job its signals, its times, and the number of the attempt.
pub(super) fn prepared(job: Job, args: &Args, attempt: usize) -> Job {
    let grace = Grace { to_notice: TO_NOTICE, to_end: Some(TO_END), to_save: args.grace };
    let job = SIGNALS.into_iter().fold(job, |job, signal| job.forward(signal, signal));
    let job = match stop_signal(args) {
        Some(stop) => job.forward(SIGTERM, stop).forward(SIGHUP, stop),
        None => job,
    };
    job.grace(grace).in_groups().variable(vars::RESTART, attempt.to_string())
}

/// The signal that the user wants the ranks to get instead of SIGTERM.
pub(super) fn stop_signal(args: &Args) -> Option<i32> {
    Some(match args.stop_signal? {
        StopSignal::Term => SIGTERM,
        StopSignal::Int => SIGINT,
        StopSignal::Usr1 => SIGUSR1,
        StopSignal::Usr2 => SIGUSR2,
    })
}

/// The variables that the ranks get from the user's options.
pub(super) fn variables(args: &Args) -> Vec<(&'static str, String)> {
    let device = args.device.map(|device| (vars::DEVICE, device.to_string()));
    let threads = args.threads.map(|threads| (vars::THREADS, threads.to_string()));
    device.into_iter().chain(threads).collect()
}

/// The folder of an attempt's output.
pub(super) fn folder(log_dir: &Path, attempt: usize) -> PathBuf {
    log_dir.join(format!("attempt-{attempt}"))
}
