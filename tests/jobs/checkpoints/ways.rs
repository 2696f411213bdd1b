//! The ways in which a job is started, and the ways in which a signal reaches it.
//!
//! A job has a terminal and a session of its own, so a test can press Ctrl-C, close the terminal, and send signals
//! to process groups without reaching itself.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use candelabrum_testkit::{Program, mpiexec};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use tempfile::TempDir;

use super::job::{LIMIT, Place};
use crate::programs::command;

/// The variable with the number of tries of each way.
pub(crate) const TRIES: &str = "CANDELABRUM_SIGNALS";

/// What starts the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// The program itself, on one rank.
    Alone,
    /// The program with `--workers`.
    Workers,
    /// `candelabrum run`.
    Command,
    /// `candelabrum run` with a script that waits for the program.
    Script,
    Mpiexec,
}

/// How a signal reaches a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Ctrl-C in the terminal.
    Key,
    /// The terminal is closed.
    HangUp,
    /// To the process that the user has started.
    Launcher(Signal),
    /// To the last rank alone.
    Rank(Signal),
    /// To the process group of what the user has started.
    Group(Signal),
    /// To every process of the job, as systemd and batch systems do.
    All(Signal),
}

impl Sent {
    /// The signal that arrives.
    pub(crate) fn signal(self) -> Signal {
        match self {
            Self::Key => Signal::INT,
            Self::HangUp => Signal::HUP,
            Self::Launcher(signal)
            | Self::Rank(signal)
            | Self::Group(signal)
            | Self::All(signal) => signal,
        }
    }
}

/// A job in a terminal. Dropping this value kills what is left of it.
pub(crate) struct Job {
    child: Child,
    /// The name of a directory that only the processes of this job have in their environment.
    notes: PathBuf,
    ranks: usize,
    /// The other end of the terminal.
    keys: Option<Arc<File>>,
    screen: Option<JoinHandle<String>>,
    /// The folder of mpiexec.
    _scratch: Option<TempDir>,
}

/// The end of a job.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit code. `None` if a signal ended the process that the user has started.
    pub(crate) code: Option<i32>,
    /// What was on the terminal.
    pub(crate) text: String,
}

impl Job {
    /// Starts `ranks` ranks. `None` if this machine does not have what starts them.
    pub(crate) fn start(way: Way, ranks: usize, place: &Place, more: &str) -> Option<Self> {
        let count = ranks.to_string();
        let workers =
            if way == Way::Workers { format!("--workers {ranks}") } else { String::new() };
        let program = place.program(&format!("{more} {workers}"));
        let run = || command().args(["run", "--workers", &count, "--"]);
        let program = match way {
            Way::Alone | Way::Workers => program,
            Way::Command => program.behind(run()),
            Way::Script => {
                let script = Program::new("sh").args(["-c", "\"$0\" \"$@\"; exit $?"]);
                program.behind(script).behind(run())
            }
            Way::Mpiexec => {
                let mpiexec = mpiexec()?.args(["-n", &count]);
                // Open MPI kills its ranks a second after a signal. A machine that runs tests may be slower.
                program.behind(match std::env::var_os(TRIES) {
                    None => mpiexec.env("OMPI_MCA_odls_base_sigkill_timeout", "3"),
                    Some(_) => mpiexec,
                })
            }
        };
        // A shell that starts tests in its background has them ignore SIGINT, and nohup SIGHUP.
        let session = Program::new("setsid").args(["--ctty", "env", "--default-signal"]);
        let (mut command, scratch) = program.behind(session).into_command();
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let name = ptsname(&keys, Vec::new()).unwrap().into_string().unwrap();
        let screen = File::options().read(true).write(true).open(name).unwrap();
        // The strictest terminal: what runs in its background must not write.
        let mut modes = tcgetattr(&screen).unwrap();
        modes.local_modes.insert(LocalModes::TOSTOP);
        // Otherwise Ctrl-C throws away what was written and not read yet.
        modes.local_modes.insert(LocalModes::NOFLSH);
        tcsetattr(&screen, OptionalActions::Now, &modes).unwrap();
        let stdio = || Stdio::from(screen.try_clone().unwrap());
        let child = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
        drop(command);
        let keys = Arc::new(File::from(keys));
        let source = Arc::downgrade(&keys);
        let screen = thread::spawn(move || {
            drop(screen);
            let (mut text, mut bytes) = (Vec::new(), [0; 4096]);
            // The job has closed its end, or the test its own.
            while let Some(source) = source.upgrade() {
                match has_more(&source).then(|| (&*source).read(&mut bytes)) {
                    Some(Ok(count @ 1..)) => text.extend_from_slice(&bytes[..count]),
                    Some(_) => break,
                    None => {}
                }
            }
            String::from_utf8_lossy(&text).into_owned()
        });
        let notes = place.notes();
        Some(Self {
            child,
            notes,
            ranks,
            keys: Some(keys),
            screen: Some(screen),
            _scratch: scratch,
        })
    }

    /// Sends a signal.
    pub(crate) fn send(&mut self, sent: Sent) {
        let launcher = Pid::from_child(&self.child);
        match sent {
            Sent::Key => drop(self.keys.as_deref().unwrap().write_all(b"\x03")),
            Sent::HangUp => self.keys = None,
            Sent::Launcher(signal) => kill(launcher, signal),
            Sent::Group(signal) => {
                kill_process_group(launcher, signal).ok();
            }
            Sent::Rank(signal) => {
                let path = self.notes.join(format!("pid-{}", self.ranks - 1));
                let number = fs::read_to_string(path).unwrap().parse().unwrap();
                kill(Pid::from_raw(number).unwrap(), signal);
            }
            Sent::All(signal) => self.processes().into_iter().for_each(|one| kill(one, signal)),
        }
    }

    /// Whether the process that the user has started still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for something that happens while the job runs.
    #[track_caller]
    pub(crate) fn wait(&mut self, mut is_there: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !is_there() {
            assert!(self.runs(), "it has ended before");
            assert!(begin.elapsed() < LIMIT, "waited in vain");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for the end of the process that the user has started, and then of all others.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Ended {
        let begin = Instant::now();
        while self.runs() {
            assert!(begin.elapsed() < LIMIT, "it still runs: {:?}", self.processes());
            thread::sleep(Duration::from_millis(2));
        }
        while !self.processes().is_empty() {
            assert!(begin.elapsed() < LIMIT, "processes are left: {:?}", self.processes());
            thread::sleep(Duration::from_millis(2));
        }
        let code = self.child.wait().unwrap().code();
        let text = self.screen.take().unwrap().join().unwrap();
        Ended { code, text }
    }

    /// All processes of the job.
    fn processes(&self) -> Vec<Pid> {
        let marks = |environment: Vec<u8>| {
            let mark = self.notes.as_os_str().as_bytes();
            environment.windows(mark.len()).any(|part| part == mark)
        };
        let mut all = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let number = entry.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
            // A process that has ended has no environment.
            if fs::read(entry.path().join("environ")).is_ok_and(marks) {
                all.extend(number);
            }
        }
        all
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.processes().into_iter().for_each(|one| kill(one, Signal::KILL));
        drop(self.child.wait());
    }
}

/// Sends a signal to a process, which may have ended in the meantime.
fn kill(process: Pid, signal: Signal) {
    kill_process(process, signal).ok();
}

/// Waits a moment for something to read, or for the end of the other side.
fn has_more(source: &File) -> bool {
    let moment = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    poll(&mut [PollFd::new(source, PollFlags::IN)], Some(&moment)).is_ok_and(|ready| ready > 0)
}
