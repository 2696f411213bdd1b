//! A program that runs beside a test.

use std::io::Read;
use std::mem;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How often a program is asked whether it has ended.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);

/// The time between SIGTERM and SIGKILL.
const LAST_MOMENT: Duration = Duration::from_secs(2);

/// A running program. Threads read its output, so it never waits for a reader. Dropping this value ends the program.
#[derive(Debug)]
pub struct Running {
    /// The program.
    pub child: Child,
    start: Instant,
    out: Stream,
    err: Stream,
}

impl Running {
    /// Starts a program without input.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let out = Stream::read(child.stdout.take().expect("piped"));
        let err = Stream::read(child.stderr.take().expect("piped"));
        Self { child, start: Instant::now(), out, err }
    }

    /// Sends a signal to the program alone, as `kill` does.
    ///
    /// # Panics
    /// If the program is not there.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the program is there");
    }

    /// The status of the program, if it has ended.
    ///
    /// # Panics
    /// If the system does not say.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// What the program has printed so far: standard output, then standard error.
    pub fn text(&self) -> String {
        let (out, err) = (self.out.printed().bytes.clone(), self.err.printed().bytes.clone());
        String::from_utf8_lossy(&[out, err].concat()).into_owned()
    }

    /// Waits until standard output has this text.
    ///
    /// # Panics
    /// If the program ends, or the limit passes, without it.
    #[track_caller]
    pub fn wait_for(&self, text: &str, limit: Duration) {
        let has = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(text);
        let found = self.out.wait(Instant::now() + limit, |printed| has(&printed.bytes));
        assert!(found, "no {text:?} within {limit:?}: {}", self.text());
    }

    /// Waits at most `limit` for the end. Returns the output and the time since the start.
    ///
    /// # Panics
    /// If the limit passes.
    #[track_caller]
    pub fn finish(mut self, limit: Duration) -> (Output, Duration) {
        let end = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.status() {
                break status;
            }
            if Instant::now() > end {
                self.end();
                panic!("still running after {limit:?}: {}", self.text());
            }
            thread::sleep(PAUSE);
        };
        let took = self.start.elapsed();
        let [stdout, stderr] = [&self.out, &self.err].map(|stream| {
            // A process that the program left behind may still have the stream.
            stream.wait(end.max(Instant::now() + Duration::from_secs(1)), |printed| printed.ended);
            mem::take(&mut stream.printed().bytes)
        });
        (Output { status, stdout, stderr }, took)
    }

    /// Ends the program: first by SIGTERM, because a killed mpiexec may leave its ranks behind.
    fn end(&mut self) {
        if self.status().is_some() {
            return;
        }
        kill_process(Pid::from_child(&self.child), Signal::TERM).ok();
        let asked = Instant::now();
        while self.status().is_none() && asked.elapsed() < LAST_MOMENT {
            thread::sleep(PAUSE);
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

/// What a thread has read from a stream.
#[derive(Debug, Default)]
struct Printed {
    bytes: Vec<u8>,
    ended: bool,
}

#[derive(Debug)]
struct Stream(Arc<(Mutex<Printed>, Condvar)>);

impl Stream {
    fn read(mut from: impl Read + Send + 'static) -> Self {
        let shared = Arc::new((Mutex::<Printed>::default(), Condvar::new()));
        let stream = Self(Arc::clone(&shared));
        thread::spawn(move || {
            let mut block = vec![0; 1 << 16];
            loop {
                let count = from.read(&mut block).unwrap_or(0);
                let mut printed = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
                printed.bytes.extend_from_slice(&block[..count]);
                printed.ended = count == 0;
                shared.1.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
        stream
    }

    fn printed(&self) -> MutexGuard<'_, Printed> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something is true, or the stream ends, or the time passes. Returns whether it is true.
    fn wait(&self, end: Instant, is_true: impl Fn(&Printed) -> bool) -> bool {
        let mut printed = self.printed();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if is_true(&printed) || printed.ended || left.is_zero() {
                return is_true(&printed);
            }
            let waited = self.0.1.wait_timeout(printed, left);
            printed = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
