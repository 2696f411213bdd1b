//! `cargo xtask launch`: the workers and servers of a job on this machine, started with the variables
//! of MXNet's tracker for one host (`tools/launch.py --launcher local`).
//!
//! MXNet's tracker waits for a scheduler, and goes on waiting after the failure of a worker. This one
//! starts no scheduler and waits for all processes. After the first failure it ends the others.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio, id};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fmt};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, getppid, kill_process_group, set_parent_process_death_signal};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::interrupt::Watch;
use crate::machine::free_port;
use crate::shell::{find_program, without_package};

/// The time between two checks of the processes.
const LOOK: Duration = Duration::from_millis(10);

/// After a failure or an interrupt, the processes have this long to report and end.
const GRACE: Duration = Duration::from_secs(2);

/// The options have the names of MXNet's `tools/launch.py`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Start this many workers
    #[arg(short = 'n', long, value_name = "W", value_parser = clap::value_parser!(u16).range(1..=256))]
    num_workers: u16,

    /// Start this many servers [default: as many as workers, as MXNet does]
    #[arg(short = 's', long, value_name = "S", value_parser = clap::value_parser!(u16).range(0..=256))]
    num_servers: Option<u16>,

    /// A further variable for all processes; repeat the option for several
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,

    /// The program of every worker and server, with its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// A process of a job, which ends when its launcher dies.
#[derive(Debug, clap::Args)]
pub(crate) struct Follower {
    /// The launcher's process
    launcher: i32,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Starts a job and waits for all its processes.
pub(crate) fn run(args: &Args) -> Result<()> {
    let program = &args.command[0];
    let name = program.to_string_lossy();
    // Otherwise each process would print that there is no such program.
    let is_here = name.contains('/') || find_program(&name).is_some();
    ensure!(is_here, "there is no program `{name}`");
    let watch = Watch::start()?;
    let workers = usize::from(args.num_workers);
    let servers = args.num_servers.map_or(workers, usize::from);
    let common = [
        ("DMLC_NUM_WORKER", workers.to_string()),
        ("DMLC_NUM_SERVER", servers.to_string()),
        ("DMLC_PS_ROOT_URI", "127.0.0.1".to_owned()),
        ("DMLC_PS_ROOT_PORT", free_port()?.to_string()),
        ("DMLC_JOB_CLUSTER", "local".to_owned()),
        // The port alone could be another job's, when that one has ended.
        ("CANDELABRUM_JOB", random_word()?),
    ];
    let mut job = Job::default();
    // As in MXNet's tracker, the servers' numbers go on after those of the workers.
    for task in 0..workers + servers {
        let role = match task.checked_sub(workers) {
            None => Role::Worker(task),
            Some(server) => Role::Server(server),
        };
        let mut command = Command::new(env::current_exe().context("where is this program?")?);
        command.arg("follow").arg(id().to_string()).args(&args.command);
        without_package(&mut command);
        command.envs(common.iter().map(|(name, value)| (name, value)));
        command.env("DMLC_ROLE", role.name()).env("DMLC_TASK_ID", task.to_string());
        command.envs(args.env.iter().map(|(name, value)| (name, value)));
        // In a group of its own, so that an interrupt of the terminal reaches only this program,
        // and a shell ends together with the programs that it has started.
        let child = command.stdin(Stdio::null()).process_group(0).spawn();
        let child = child.with_context(|| format!("cannot start {role}"))?;
        job.processes.push(Process { role, child, ended: None });
    }
    job.wait(&watch)
}

/// Becomes the program of a process of a job. Returns only if that fails.
pub(crate) fn follow(args: &Follower) -> Result<()> {
    // This lasts when the program takes the place of this one.
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot follow the launcher")?;
    // The launcher may have died before the line above.
    let parent = getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    ensure!(parent == args.launcher, "the launcher has died");
    let name = args.command[0].to_string_lossy();
    let error = Command::new(&args.command[0]).args(&args.command[1..]).exec();
    Err(error).with_context(|| format!("cannot start `{name}`"))
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = pair.ok_or("it must be KEY=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn random_word() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty()).context("cannot draw the name of the job")?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

/// The role of a process, and its number among those of this role.
#[derive(Clone, Copy, Debug)]
enum Role {
    Worker(usize),
    Server(usize),
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Worker(_) => "worker",
            Self::Server(_) => "server",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Worker(number) | Self::Server(number)) = self;
        write!(f, "{} {number}", self.name())
    }
}

struct Process {
    role: Role,
    child: Child,
    /// `None` while it runs.
    ended: Option<ExitStatus>,
}

/// The processes of a job. Dropping this value kills them.
#[derive(Default)]
struct Job {
    processes: Vec<Process>,
}

impl Job {
    fn wait(&mut self, watch: &Watch) -> Result<()> {
        let mut failure: Option<(String, Instant)> = None;
        loop {
            self.look()?;
            if let Some((what, at)) = &failure {
                if self.have_ended() {
                    bail!(what.clone());
                }
                if at.elapsed() >= GRACE {
                    self.signal(Signal::KILL);
                }
            } else if let Some(what) = self.failure() {
                failure = Some((what, Instant::now()));
                continue;
            } else if self.have_ended() {
                return Ok(());
            }
            if let Err(interrupted) = watch.check() {
                self.end()?;
                return Err(interrupted.into());
            }
            thread::sleep(LOOK);
        }
    }

    /// Asks all processes to end, and waits for them a little.
    fn end(&mut self) -> Result<()> {
        self.signal(Signal::TERM);
        let until = Instant::now() + GRACE;
        while Instant::now() < until && !self.have_ended() {
            thread::sleep(LOOK);
            self.look()?;
        }
        Ok(())
    }

    /// Polls the processes that have not ended.
    fn look(&mut self) -> Result<()> {
        for process in self.processes.iter_mut().filter(|process| process.ended.is_none()) {
            let status = process.child.try_wait();
            process.ended = status.with_context(|| format!("cannot wait for {}", process.role))?;
        }
        Ok(())
    }

    fn have_ended(&self) -> bool {
        self.processes.iter().all(|process| process.ended.is_some())
    }

    /// The first process that has failed, and how.
    fn failure(&self) -> Option<String> {
        self.processes.iter().find_map(|process| {
            let status = process.ended.filter(|status| !status.success())?;
            Some(format!("{} failed ({status})", process.role))
        })
    }

    fn signal(&self, signal: Signal) {
        for process in self.processes.iter().filter(|process| process.ended.is_none()) {
            // It may have ended meanwhile.
            let _gone = kill_process_group(Pid::from_child(&process.child), signal);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // The others are ended even if one of them cannot be polled.
        drop(self.look());
        self.signal(Signal::KILL);
        for process in self.processes.iter_mut().filter(|process| process.ended.is_none()) {
            drop(process.child.wait());
        }
    }
}
