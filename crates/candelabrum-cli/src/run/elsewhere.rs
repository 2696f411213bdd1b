//! A job that mpiexec or srun starts, on the hosts of a file or of an allocation.
//!
//! This program runs the launcher as a process of its own: it passes signals on, keeps the exit code,
//! and runs the launcher again after a failure.

use std::env;
use std::ffi::OsString;
use std::path::absolute;

use candelabrum_dist::launch::{
    Job, JobEnd, JobOutput, OutputCapture, Signals, timeout, unique_job, vars,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::args::{PrefixKind, RunArgs, Workers};
use super::failure::{Result, StartFailure};
use super::hostfile::{self, HostSlots, place, slots};
use super::launchers::{LauncherKind, LauncherProgram, StartRequest};
use super::settings::{folder, prepared, stop_signal, variables};
use super::unreachable::unreachable;

/// The bytes of the launcher's errors in which it may name a host that it could not reach.
const TAIL: usize = 64 * 1024;

/// The variables of the user that the ranks of other hosts need, if they are set.
const OF_USER: [&str; 10] = [
    vars::SECRET,
    vars::TIMEOUT,
    vars::BACKEND,
    vars::DEVICE,
    vars::INTERFACE,
    vars::PORT,
    MASTER_ADDR,
    MASTER_PORT,
    "RUST_LOG",
    "RUST_BACKTRACE",
];

/// The host of rank 0, for ranks that meet over TCP.
const MASTER_ADDR: &str = "MASTER_ADDR";
const MASTER_PORT: &str = "MASTER_PORT";

/// A job on several hosts.
#[derive(Debug)]
pub(super) struct Elsewhere<'a> {
    args: &'a RunArgs,
    launcher: LauncherProgram,
    /// `None`: the launcher knows the hosts.
    hosts: Option<Vec<HostSlots>>,
    workers: usize,
}

/// A command line with the variables that it needs.
struct CommandLine {
    variables: Vec<(&'static str, String)>,
    arguments: Vec<OsString>,
}

impl<'a> Elsewhere<'a> {
    /// The job that the options describe, by this launcher.
    pub(super) fn new(args: &'a RunArgs, launcher: LauncherProgram) -> Result<Self> {
        for (is_given, option) in [
            (args.show.is_some(), "--show"),
            (args.quiet_ranks, "--quiet-ranks"),
            (args.prefix == Some(PrefixKind::RankTime), "--prefix rank-time"),
        ] {
            if is_given {
                let name = launcher.name().display();
                return Err(StartFailure::Usage(format!(
                    "{option} is for ranks on this host only, because {name} writes the output: \
                     leave it out, or take --log-dir"
                )));
            }
        }
        let hosts = args.hostfile.as_deref().map(hostfile::read).transpose()?;
        let workers = match args.workers {
            Some(Workers::Are(workers)) => workers,
            given => {
                let ranks = match &hosts {
                    Some(hosts) => slots(hosts),
                    None => ranks_of_allocation(&launcher, given.is_some())?,
                };
                let workers = ranks.checked_sub(args.servers).filter(|&workers| workers > 0);
                workers.ok_or_else(|| {
                    let servers = args.servers;
                    StartFailure::Usage(format!(
                        "{ranks} slots and {servers} servers leave no slot for a worker: name more \
                         hosts, or give --workers and --oversubscribe"
                    ))
                })?
            }
        };
        let job = Self { args, launcher, hosts, workers };
        job.check_slots()?;
        Ok(job)
    }

    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// The command line in the words of a shell.
    pub(super) fn describe(&self, attempt: usize) -> Result<String> {
        Ok(self.line(attempt)?.in_words(&self.launcher))
    }

    /// Runs the launcher once, and gives `say` its command line first.
    pub(super) fn attempt(
        &self,
        attempt: usize,
        signals: &mut Signals,
        say: impl Fn(&str),
    ) -> Result<JobEnd> {
        let line = self.line(attempt)?;
        say(&line.in_words(&self.launcher));
        let job = Job::new(self.launcher.program(), line.arguments);
        let job =
            line.variables.into_iter().fold(job, |job, (name, value)| job.variable(name, value));
        let mut job = prepared(job, self.args, attempt);
        // No launcher passes SIGHUP on as it is.
        job = job.forward(SIGHUP, stop_signal(self.args).unwrap_or(SIGTERM));
        if self.launcher.kind == LauncherKind::Srun {
            // A first SIGINT makes srun print the state of its tasks.
            job = job.forward(SIGINT, SIGTERM);
        }
        let capture = OutputCapture { tail: TAIL, ..OutputCapture::default() };
        let ended = job.output(JobOutput::Captured(capture)).run(signals);
        ended.map_err(|error| StartFailure::of_start(error, self.launcher.program().as_os_str()))
    }

    /// Makes the job smaller after a failure: without the hosts that could not be reached, or by one
    /// worker. Returns the hosts that it has lost.
    pub(super) fn shrink(&mut self, ended: &JobEnd) -> Result<Vec<String>> {
        let least = self.args.min_workers.max(1);
        let hosts = self.hosts.take().unwrap_or_default();
        let lost = unreachable(&ended.tail, hosts.iter().map(|host| &*host.name));
        let names = lost.iter().map(|&index| hosts[index].name.clone()).collect();
        if self.args.hostfile.is_some() {
            let kept = hosts.into_iter().enumerate().filter(|(index, _)| !lost.contains(index));
            let kept: Vec<HostSlots> = kept.map(|(_, host)| host).collect();
            if kept.is_empty() {
                return Err(StartFailure::Usage(
                    "no host of the hostfile can be reached".to_owned(),
                ));
            }
            let room = slots(&kept).saturating_sub(self.args.servers);
            self.hosts = Some(kept);
            if !self.args.oversubscribe && room < self.workers {
                if room < least {
                    return Err(StartFailure::Usage(format!(
                        "the hosts that can be reached have room for {room} workers, and \
                         --min-workers is {least}"
                    )));
                }
                self.workers = room;
            }
        }
        if lost.is_empty() && self.workers > least {
            self.workers -= 1;
        }
        Ok(names)
    }

    fn ranks(&self) -> usize {
        self.workers.saturating_add(self.args.servers)
    }

    fn check_slots(&self) -> Result<()> {
        let (Some(hosts), ranks) = (&self.hosts, self.ranks()) else { return Ok(()) };
        let slots = slots(hosts);
        if ranks <= slots || self.args.oversubscribe {
            return Ok(());
        }
        Err(StartFailure::Usage(format!(
            "{ranks} ranks are asked for, and the hosts have {slots} slots: --oversubscribe allows more"
        )))
    }

    fn line(&self, attempt: usize) -> Result<CommandLine> {
        let Self { args, launcher, hosts, .. } = self;
        let folder = match &args.log_dir {
            Some(log_dir) => {
                let folder = absolute(folder(log_dir, attempt)).map_err(|error| {
                    StartFailure::Usage(format!("--log-dir {}: {error}", log_dir.display()))
                })?;
                Some(folder)
            }
            None => None,
        };
        let mut variables = self.variables(attempt)?;
        let known = |name: &str| variables.iter().any(|(known, _)| *known == name);
        let of_user =
            OF_USER.into_iter().filter(|name| !known(name) && env::var_os(name).is_some());
        let exported = variables.iter().map(|(name, _)| *name).chain(of_user).map(str::to_owned);
        let request = StartRequest {
            ranks: self.ranks(),
            hosts: hosts.as_deref(),
            oversubscribe: args.oversubscribe,
            labels: args.prefix != Some(PrefixKind::None) && !args.inherit && self.ranks() > 1,
            folder,
            exported: exported.collect(),
            mpi: &args.mpi,
            more: &args.launcher_arg,
            command: &args.command,
        };
        let arguments = launcher.arguments(&request)?;
        let of_launcher = launcher.variables(timeout()?);
        variables.extend(of_launcher.into_iter().filter(|(name, _)| env::var_os(name).is_none()));
        Ok(CommandLine { variables, arguments })
    }

    /// The variables that differ from this program's own environment.
    fn variables(&self, attempt: usize) -> Result<Vec<(&'static str, String)>> {
        let Self { args, .. } = self;
        let job = unique_job()?;
        let is_set = |name: &str| env::var_os(name).is_some();
        let mut all = variables(args);
        all.extend(args.threads.map(|threads| ("RAYON_NUM_THREADS", threads.to_string())));
        all.extend(args.interface.clone().map(|name| (vars::INTERFACE, name)));
        if args.servers > 0 {
            all.push((vars::SERVERS, args.servers.to_string()));
        }
        if let Some(hosts) = &self.hosts
            && !is_set(MASTER_ADDR)
        {
            let placed = place(hosts, self.ranks());
            let first = hosts.iter().zip(placed).find(|(_, ranks)| *ranks > 0);
            all.extend(first.map(|(host, _)| (MASTER_ADDR, host.name.clone())));
            if !is_set(vars::PORT) && !is_set(MASTER_PORT) {
                all.push((vars::PORT, port(&job).to_string()));
            }
        }
        // It differs in each attempt, so a rank of an earlier one cannot join.
        all.extend([(vars::JOB, job), (vars::RESTART, attempt.to_string())]);
        Ok(all)
    }
}

impl CommandLine {
    fn in_words(&self, launcher: &LauncherProgram) -> String {
        let variables =
            self.variables.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
        let name = launcher.name().to_string_lossy().into_owned();
        let arguments = self.arguments.iter().map(|argument| quoted(&argument.to_string_lossy()));
        variables.chain([name]).chain(arguments).collect::<Vec<_>>().join(" ")
    }
}

/// A word of a shell. The usual characters of options need no quotes.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,=@%+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    // A text with a zero byte can be neither a variable nor an argument.
    shlex::try_quote(text).map_or_else(|_| String::new(), |text| text.into_owned())
}

/// A port for rank 0 that other jobs hardly have, below the ports that systems give out themselves.
fn port(job: &str) -> u16 {
    let number = job.get(..4).and_then(|digits| u16::from_str_radix(digits, 16).ok());
    20_000 + number.unwrap_or_default() % 10_000
}

/// The number of ranks where no hostfile says it. `is_auto`: the user asked for it.
fn ranks_of_allocation(launcher: &LauncherProgram, is_auto: bool) -> Result<usize> {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse().ok());
    let of_slurm = || number("SLURM_NTASKS").or_else(|| number("SLURM_JOB_NUM_NODES"));
    let known = if launcher.kind == LauncherKind::Srun { of_slurm() } else { None };
    known.filter(|&ranks: &usize| ranks > 0).ok_or_else(|| {
        let auto =
            if is_auto { "--workers auto needs a hostfile or a Slurm allocation: " } else { "" };
        StartFailure::Usage(format!(
            "{auto}give the number of workers, --workers N, or the hosts, --hostfile FILE"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_quotes_where_a_shell_needs_them() {
        assert_eq!(quoted("--host=a:2,b:2"), "--host=a:2,b:2");
        assert_eq!(quoted("a*2"), "'a*2'");
        assert_eq!(quoted("x y"), "'x y'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_port_is_below_those_of_the_system() {
        for job in ["", "ffff0", "0000", "12ab"] {
            assert!((20_000..30_000).contains(&port(job)), "{job}");
        }
    }
}
