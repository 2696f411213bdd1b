//! A job on this host: this program starts the ranks itself.

use std::num::NonZero;
use std::thread::available_parallelism;

use candelabrum_dist::launch::DeviceChoice;
use candelabrum_dist::launch::{
    Job, JobEnd, JobOutput, MAX_WORKERS, OutputCapture, RankEnvironment, Signals,
};

use super::args::{PrefixKind, RunArgs, Workers};
use super::failure::{Result, StartFailure};
use super::prefix::prefix;
use super::program;
use super::ranks::RankSet;
use super::settings::{folder, prepared, variables};

/// A job on this host.
#[derive(Debug)]
pub(super) struct LocalJob<'a> {
    args: &'a RunArgs,
    workers: usize,
    output: JobOutput,
}

impl<'a> LocalJob<'a> {
    /// The job that the options describe.
    pub(super) fn new(args: &'a RunArgs) -> Result<Self> {
        if args.oversubscribe || !args.launcher_arg.is_empty() {
            let what = "--oversubscribe and --launcher-arg are for mpiexec and srun: give \
                        --hostfile or --launcher, too";
            return Err(StartFailure::Usage(what.to_owned()));
        }
        let workers = match args.workers {
            None => 1,
            Some(Workers::Are(workers)) => workers,
            Some(Workers::Auto) if matches!(args.device, Some(DeviceChoice::Cuda(_))) => {
                let what = "--workers auto is one per core: with --device cuda give the number of \
                            this host's GPUs";
                return Err(StartFailure::Usage(what.to_owned()));
            }
            Some(Workers::Auto) => cores().saturating_sub(args.servers).max(1),
        };
        let ranks = workers.saturating_add(args.servers);
        if ranks > MAX_WORKERS {
            return Err(StartFailure::Usage(format!(
                "{ranks} ranks are asked for, and one host takes at most {MAX_WORKERS}: name \
                 several hosts by --hostfile, or start fewer"
            )));
        }
        program::find(&args.command[0])?;
        Ok(Self { args, workers, output: output(args, ranks)? })
    }

    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// The job in one line.
    pub(super) fn describe(&self) -> String {
        let words = self.args.command.iter().map(|word| word.to_string_lossy());
        let words: Vec<_> = words.collect();
        let program = shlex::try_join(words.iter().map(AsRef::as_ref));
        // A word with a zero byte cannot be an argument.
        let program = program.unwrap_or_default();
        let Self { workers, args, .. } = self;
        let threads = self.threads();
        format!(
            "{workers} worker(s) and {} server(s) on this host, with {threads} thread(s) each: {program}",
            args.servers
        )
    }

    /// Runs the job once.
    pub(super) fn attempt(&self, attempt: usize, signals: &mut Signals) -> Result<JobEnd> {
        let Self { args, workers, .. } = self;
        let environment = RankEnvironment::new(self.threads())
            .interface(args.interface.as_deref())
            .servers(args.servers);
        let job = Job::new(&args.command[0], &args.command[1..]);
        let job =
            variables(args).into_iter().fold(job, |job, (name, value)| job.variable(name, value));
        let job = prepared(job, args, attempt).ranks(workers + args.servers, &environment);
        let ended = job.output(self.output_of(attempt)).run(signals);
        ended.map_err(|error| StartFailure::of_start(error, &args.command[0]))
    }

    /// Makes the job one worker smaller, if it may be.
    pub(super) fn shrink(&mut self) {
        if self.workers > self.args.min_workers.max(1) {
            self.workers -= 1;
        }
    }

    fn threads(&self) -> usize {
        let ranks = self.workers + self.args.servers;
        self.args.threads.unwrap_or_else(|| (cores() / ranks).max(1))
    }

    fn output_of(&self, attempt: usize) -> JobOutput {
        let mut output = self.output.clone();
        if let JobOutput::Captured(OutputCapture { folder: place, .. }) = &mut output {
            *place = self.args.log_dir.as_ref().map(|log_dir| folder(log_dir, attempt));
        }
        output
    }
}

/// This host's cores, as far as this process may use them.
fn cores() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// Where the output goes, without the folder of the attempt.
fn output(args: &RunArgs, ranks: usize) -> Result<JobOutput> {
    let shown = match &args.show {
        Some(shown) => shown.clone(),
        None if args.quiet_ranks => RankSet::Are([0].into()),
        None => RankSet::All,
    };
    if let Some(beyond) = shown.beyond(ranks) {
        return Err(StartFailure::Usage(format!(
            "--show names rank {beyond}, but the {ranks} ranks are 0 to {}",
            ranks - 1
        )));
    }
    let is_plain = ranks == 1 && args.prefix.is_none() && args.log_dir.is_none();
    if args.inherit || (is_plain && shown == RankSet::All) {
        return Ok(JobOutput::Inherit);
    }
    let by_default = if ranks == 1 { PrefixKind::None } else { PrefixKind::Rank };
    let prefix = prefix(args.prefix.unwrap_or(by_default));
    Ok(JobOutput::Captured(OutputCapture {
        prefix,
        shown: shown.to_shown(),
        ..OutputCapture::default()
    }))
}
