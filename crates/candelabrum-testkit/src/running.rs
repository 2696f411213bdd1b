//! A program that runs beside a test.

use std::io::Read;
use std::mem;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::ended::EndedProgram;
use crate::until;

/// The time between SIGTERM and SIGKILL.
const LAST_MOMENT: Duration = Duration::from_secs(2);

/// A running program. Threads read its output, so it never waits for a reader. Dropping this value ends the program.
#[derive(Debug)]
pub struct Running {
    child: Child,
    start: Instant,
    limit: Duration,
    output: Output,
    _scratch: Option<TempDir>,
}

impl Running {
    /// Starts a program whose output is piped.
    pub(crate) fn new(mut command: Command, limit: Duration, scratch: Option<TempDir>) -> Self {
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let output = Output::default();
        output.read(child.stdout.take().expect("piped"), |printed| &mut printed.out);
        output.read(child.stderr.take().expect("piped"), |printed| &mut printed.err);
        Self { child, start: Instant::now(), limit, output, _scratch: scratch }
    }

    /// The program's process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal to the program alone, as `kill` does.
    ///
    /// # Panics
    /// If the program is not there.
    pub fn signal(&self, signal: Signal) {
        crate::kill(self.pid(), signal);
    }

    /// The status of the program, if it has ended.
    ///
    /// # Panics
    /// If the system does not say.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Whether the program has ended.
    ///
    /// # Panics
    /// If the system does not say.
    pub fn has_ended(&mut self) -> bool {
        self.status().is_some()
    }

    /// What the program has printed so far: standard output, then standard error.
    pub fn text(&self) -> String {
        let Printed { out, err, .. } = &*self.output.printed();
        [out, err].map(|bytes| String::from_utf8_lossy(bytes)).concat()
    }

    /// Waits until the program has printed this text.
    ///
    /// # Panics
    /// If the program ends, or its limit passes, without it.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        let has = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(text);
        let end = self.start + self.limit;
        let found = self.output.wait(end, |printed| has(&printed.out) || has(&printed.err));
        assert!(found, "no {text:?} within {:?}: {}", self.limit, self.text());
    }

    /// The processes of the ranks that this launcher has started, by rank; those of `count` ranks.
    ///
    /// # Panics
    /// If [`LIMIT`](crate::LIMIT) passes before as many ranks have started.
    #[track_caller]
    pub fn ranks(&self, count: usize) -> Vec<Pid> {
        until(&format!("the start of {count} ranks"), || {
            let ranks = self.living_ranks();
            (ranks.len() == count).then(|| ranks.into_iter().map(|(_, process)| process).collect())
        })
    }

    /// The ranks that this launcher has started and that live, in their order.
    pub fn living_ranks(&self) -> Vec<(usize, Pid)> {
        let launcher = self.child.id().to_string();
        let rank = |environment: &[String]| {
            environment.iter().find_map(|line| line.strip_prefix("CANDELABRUM_RANK="))?.parse().ok()
        };
        let ranks = crate::leftovers::processes_with("CANDELABRUM_PARENT", &launcher).into_iter();
        let mut ranks: Vec<(usize, Pid)> = ranks
            .filter_map(|(process, environment)| Some((rank(&environment)?, process)))
            .collect();
        ranks.sort_by_key(|(rank, _)| *rank);
        ranks
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// If the limit passes.
    #[track_caller]
    pub fn finish(mut self) -> EndedProgram {
        let end = self.start + self.limit;
        let status = loop {
            if let Some(status) = self.status() {
                break status;
            }
            if Instant::now() > end {
                self.end();
                panic!("still running after {:?}: {}", self.limit, self.text());
            }
            thread::sleep(crate::PAUSE);
        };
        let took = self.start.elapsed();
        // A process that the program left behind may still have the streams.
        let end = end.max(Instant::now() + Duration::from_secs(1));
        self.output.wait(end, |printed| printed.ended == 2);
        let Printed { out, err, .. } = mem::take(&mut *self.output.printed());
        EndedProgram::new(status, &out, &err, took)
    }

    /// Ends the program: first by SIGTERM, because a killed mpiexec may leave its ranks behind.
    fn end(&mut self) {
        if self.has_ended() {
            return;
        }
        kill_process(self.pid(), Signal::TERM).ok();
        let asked = Instant::now();
        while !self.has_ended() && asked.elapsed() < LAST_MOMENT {
            thread::sleep(crate::PAUSE);
        }
        // It may have ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// What threads have read from both streams.
#[derive(Debug, Default)]
struct Printed {
    out: Vec<u8>,
    err: Vec<u8>,
    /// The streams that have ended.
    ended: usize,
}

#[derive(Clone, Debug, Default)]
struct Output(Arc<(Mutex<Printed>, Condvar)>);

impl Output {
    /// Reads a stream to its end, into a place of what was printed.
    fn read(&self, mut from: impl Read + Send + 'static, place: fn(&mut Printed) -> &mut Vec<u8>) {
        let output = self.clone();
        thread::spawn(move || {
            let mut block = vec![0; 1 << 16];
            loop {
                let count = from.read(&mut block).unwrap_or(0);
                let mut printed = output.printed();
                place(&mut printed).extend_from_slice(&block[..count]);
                printed.ended += usize::from(count == 0);
                output.0.1.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
    }

    fn printed(&self) -> MutexGuard<'_, Printed> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something is true, or the streams end, or the time passes. Returns whether it is true.
    fn wait(&self, end: Instant, is_true: impl Fn(&Printed) -> bool) -> bool {
        let mut printed = self.printed();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if is_true(&printed) || printed.ended == 2 || left.is_zero() {
                return is_true(&printed);
            }
            let waited = self.0.1.wait_timeout(printed, left);
            printed = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
