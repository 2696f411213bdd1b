//! The options of `candelabrum run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use candelabrum_dist::launch::DeviceChoice;
use clap::{ArgAction, ValueEnum};

use super::ranks::RankSet;

const EXAMPLES: &str = "\
Examples:
  Four ranks on this host, with their output also in files:
    candelabrum run --workers 4 --log-dir logs -- target/release/train --epochs 10

  Start again from the last checkpoint, up to three times, after a rank has died:
    candelabrum run --workers 4 --max-restarts 3 -- ./train --checkpoint-dir ckpt

  Go on with fewer workers where a worker keeps dying:
    candelabrum run --workers 8 --max-restarts 5 --on-failure shrink --min-workers 4 -- ./train

  Two workers and a server of a key-value store:
    candelabrum run --workers 2 --servers 1 -- ./train --kvstore dist_sync

  All slots of the hosts in a file, by the mpiexec of this machine:
    candelabrum run --hostfile hosts.txt -- ./train

  See the command line of mpiexec without running it:
    candelabrum run --hostfile hosts.txt --dry-run -- ./train

Exit codes: that of the rank that failed; 128 plus the signal's number where a signal ended it, or
where a signal stopped the launcher; 2 for wrong options; 127 for a program that is not there; 126 for
one that cannot be executed.";

/// Starts a program on several ranks and watches them
///
/// Everything behind `--` is the program and its arguments. Each rank runs the program once and
/// learns its place from the environment. When a rank fails, the others are ended, one line names
/// the cause, and with --max-restarts the job is started again. A program that saves checkpoints
/// then goes on from the last one.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "With --help: more about each option, and examples.")]
pub struct RunArgs {
    /// The number of workers, or `auto` for one per core [default: 1; on several hosts one per slot]
    ///
    /// On several hosts `auto` is one per slot of the hostfile. In a Slurm allocation the default
    /// is its number of tasks.
    #[arg(short = 'n', long, value_name = "N", value_parser = parse_workers, help_heading = "Ranks")]
    pub(super) workers: Option<Workers>,

    /// Further ranks that are servers of a key-value store
    #[arg(long, value_name = "S", default_value_t = 0, help_heading = "Ranks")]
    pub(super) servers: usize,

    /// Compute threads of each rank [default: the cores divided by the ranks]
    #[arg(long, value_name = "T", value_parser = parse_threads, help_heading = "Ranks")]
    pub(super) threads: Option<usize>,

    /// The device of each rank: auto, cpu, cuda, or cuda:N (CANDELABRUM_DEVICE)
    #[arg(long, value_name = "DEVICE", help_heading = "Ranks")]
    pub(super) device: Option<DeviceChoice>,

    /// The network interface between hosts (CANDELABRUM_INTERFACE)
    #[arg(long, value_name = "NAME", help_heading = "Ranks")]
    pub(super) interface: Option<String>,

    /// What stands before each line [default: rank; none for a single rank]
    ///
    /// On several hosts mpiexec or srun writes it, and `rank-time` does not exist.
    #[arg(long, value_name = "WHAT", help_heading = "Output")]
    pub(super) prefix: Option<PrefixKind>,

    /// Write the output of each rank to DIR/attempt-K/rank-R.log and rank-R.err
    ///
    /// Existing files are continued. On several hosts the output goes to these files only.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(super) log_dir: Option<PathBuf>,

    /// The ranks whose output is shown, such as 0 or 0,2-3; or `all`, or `none`
    ///
    /// The files of --log-dir have the output of all ranks. Without --log-dir, the output of the
    /// other ranks is lost.
    #[arg(long, value_name = "RANKS", help_heading = "Output")]
    pub(super) show: Option<RankSet>,

    /// Show the output of rank 0 only, as --show 0
    #[arg(long, conflicts_with = "show", help_heading = "Output")]
    pub(super) quiet_ranks: bool,

    /// Let the ranks write to this program's own output
    ///
    /// On a terminal their progress bars work then, but lines of different ranks may mix. A single
    /// rank does so by default.
    #[arg(long, conflicts_with_all = ["prefix", "log_dir", "show", "quiet_ranks"], help_heading = "Output")]
    pub(super) inherit: bool,

    /// Start the job again after a failure, at most this often
    ///
    /// All restarts are given back after a failure that comes --restart-reset after the start, if the
    /// program has written a checkpoint of a later step than before the last such failure. A program
    /// that does not report its checkpoints has at most ten times as many restarts in all.
    #[arg(long, value_name = "R", default_value_t = 0, help_heading = "Restarts")]
    pub(super) max_restarts: usize,

    /// The size of the job after a failure: the same, or one worker fewer
    #[arg(long, value_name = "HOW", default_value = "same", help_heading = "Restarts")]
    pub(super) on_failure: OnFailure,

    /// The fewest workers to which --on-failure shrink goes
    #[arg(long, value_name = "M", default_value_t = 1, help_heading = "Restarts")]
    pub(super) min_workers: usize,

    /// A job that ran so long before it failed, and made progress, has all its restarts again
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = parse_seconds, help_heading = "Restarts")]
    pub(super) restart_reset: Duration,

    /// The pause before the first restart; it doubles up to 30 times this
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds, help_heading = "Restarts")]
    pub(super) backoff: Duration,

    /// After SIGTERM, SIGINT or SIGHUP the ranks have this long to save their work and end [default:
    /// $CANDELABRUM_GRACE, or 30]
    ///
    /// Then they are killed. A SIGINT (Ctrl-C) 2 seconds or more after the first signal kills them at once.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, help_heading = "Signals")]
    pub(super) grace: Option<Duration>,

    /// The signal that the ranks get when this program gets SIGTERM or SIGHUP
    ///
    /// Without this option each signal is passed on as it is. Open MPI's mpiexec gives ranks only a
    /// second after SIGTERM, but passes SIGUSR1 on: take `usr1` where the program saves on it.
    #[arg(long, value_name = "SIGNAL", help_heading = "Signals")]
    pub(super) stop_signal: Option<StopSignal>,

    /// The hosts: a line `host slots=N` or `host:N` for each
    #[arg(long, value_name = "FILE", help_heading = "Several hosts")]
    pub(super) hostfile: Option<PathBuf>,

    /// What starts the ranks [default: auto]
    ///
    /// `auto` is srun inside a Slurm allocation, mpiexec with a hostfile, and this program itself
    /// otherwise.
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "auto",
        hide_default_value = true,
        help_heading = "Several hosts"
    )]
    pub(super) launcher: LauncherChoice,

    /// Allow more ranks than slots
    #[arg(long, help_heading = "Several hosts")]
    pub(super) oversubscribe: bool,

    /// srun's option --mpi: pmix, pmi2, or whatever the cluster has
    #[arg(long, value_name = "TYPE", default_value = "pmix", help_heading = "Several hosts")]
    pub(super) mpi: String,

    /// A further argument for mpiexec or srun; repeat the option for several
    #[arg(long, value_name = "ARG", allow_hyphen_values = true, action = ArgAction::Append, help_heading = "Several hosts")]
    pub(super) launcher_arg: Vec<OsString>,

    /// Print what would be run, and run nothing
    #[arg(long)]
    pub(super) dry_run: bool,

    /// The program of every rank, with its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    pub(super) command: Vec<OsString>,
}

/// The number of workers as the user gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Workers {
    Auto,
    Are(usize),
}

/// What stands before a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PrefixKind {
    /// Nothing
    None,
    /// The rank
    Rank,
    /// The rank and the time of day
    RankTime,
}

/// The size of a job after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OnFailure {
    /// The same number of workers
    Same,
    /// One worker fewer, or without the host that mpiexec could not reach
    Shrink,
}

/// What starts the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LauncherChoice {
    /// Whatever fits
    Auto,
    /// This program, on this host
    Local,
    /// Open MPI's or MPICH's mpiexec
    Mpiexec,
    /// Slurm's srun
    Srun,
}

/// A signal by which ranks are asked to save their work and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum StopSignal {
    /// SIGTERM
    Term,
    /// SIGINT
    Int,
    /// SIGUSR1
    Usr1,
    /// SIGUSR2
    Usr2,
}

fn parse_workers(text: &str) -> Result<Workers, String> {
    if text == "auto" {
        return Ok(Workers::Auto);
    }
    let number = text.parse().ok().filter(|&number| number > 0);
    number.map(Workers::Are).ok_or_else(|| "it must be a number above 0, or auto".to_owned())
}

fn parse_threads(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| "it must be a number above 0".to_owned())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    /// Longer times cannot be added to a time of day on every system.
    const YEAR: f64 = 365.0 * 24.0 * 3600.0;
    let seconds = text.parse().ok().filter(|seconds| (0.0..=YEAR).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "it must be a number of seconds".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        assert_eq!(parse_workers("auto"), Ok(Workers::Auto));
        assert_eq!(parse_workers("3"), Ok(Workers::Are(3)));
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "many", "1.5"] {
            assert!(parse_workers(text).is_err() && parse_threads(text).is_err(), "{text}");
        }
        for text in ["", "-1", "inf", "NaN", "1e300", "s"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
