//! The thread that takes in the output of all processes of a job.
//!
//! It waits for whatever stream has something to read, and writes before it reads on. So a slow
//! reader of the launcher slows the processes down, and neither bytes pile up nor is one lost. The
//! thread that watches the processes never waits for a reader.

use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::source::OutputSource;
use super::{Prefix, Stream};
use crate::{Error, Result};

/// The bytes that are read at once.
const AT_ONCE: usize = 64 * 1024;

/// The time between two looks at the thread's end.
const LOOK: Duration = Duration::from_millis(5);

/// The running thread.
#[derive(Debug)]
pub(in super::super) struct OutputPump {
    thread: JoinHandle<Vec<u8>>,
    /// Closing it tells the thread that all processes have ended.
    running: PipeWriter,
}

impl OutputPump {
    /// Takes in `sources`, and keeps the last `tail` bytes of their standard error.
    ///
    /// # Errors
    /// A pipe or a thread that cannot be made.
    pub(in super::super) fn start(
        sources: Vec<OutputSource>,
        prefix: Option<Prefix>,
        tail: usize,
    ) -> Result<Self> {
        let failed = |error| Error::io("take in the output of the ranks", error);
        let (ended, running) = pipe().map_err(failed)?;
        let mut work = PumpTask {
            sources,
            ended,
            prefix,
            tail: OutputTail { bytes: Vec::new(), limit: tail },
            own: OwnStreams { is_open: [true; 2] },
        };
        let thread = thread::Builder::new().name("candelabrum-output".to_owned());
        let thread = thread.spawn(move || {
            work.run();
            work.tail.take()
        });
        Ok(Self { thread: thread.map_err(failed)?, running })
    }

    /// Takes in what the pipes still contain, and gives the tail. All processes must have ended.
    /// Once `give_up` says so, the rest is lost: a reader of the launcher may never read on.
    pub(in super::super) fn finish(self, mut give_up: impl FnMut() -> bool) -> Vec<u8> {
        let Self { thread, running } = self;
        drop(running);
        while !thread.is_finished() {
            if give_up() {
                return Vec::new();
            }
            thread::sleep(LOOK);
        }
        thread.join().unwrap_or_default()
    }
}

struct PumpTask {
    sources: Vec<OutputSource>,
    /// It ends when the processes have ended.
    ended: PipeReader,
    prefix: Option<Prefix>,
    tail: OutputTail,
    own: OwnStreams,
}

impl PumpTask {
    fn run(&mut self) {
        let (mut buffer, mut to_show) = (vec![0; AT_ONCE], Vec::new());
        let mut draining = false;
        while !(draining && self.sources.is_empty()) {
            draining = draining || self.wait();
            let Self { prefix, tail, own, .. } = self;
            self.sources.retain_mut(|source| {
                let taken = source.take(&mut buffer, &mut to_show, prefix.as_ref(), draining);
                let Some(taken) = taken else { return true };
                own.show(taken.stream, taken.to_show);
                if taken.stream == Stream::Err {
                    tail.push(taken.bytes);
                }
                if let Some(complaint) = taken.complaint {
                    own.show(Stream::Err, format!("{complaint}\n").as_bytes());
                }
                !taken.ended
            });
        }
    }

    /// Waits until a stream has something to read. Returns whether all processes have ended.
    fn wait(&self) -> bool {
        let flags = PollFlags::IN;
        let mut all = vec![PollFd::new(&self.ended, flags)];
        all.extend(
            self.sources
                .iter()
                .filter_map(OutputSource::pipe)
                .map(|p| PollFd::from_borrowed_fd(p, flags)),
        );
        // A failure other than an interrupt (memory) is answered by trying to read a little later.
        if poll(&mut all, None).is_err() {
            thread::sleep(LOOK);
        }
        !all[0].revents().is_empty()
    }
}

/// The end of what has passed.
struct OutputTail {
    bytes: Vec<u8>,
    limit: usize,
}

impl OutputTail {
    fn push(&mut self, bytes: &[u8]) {
        if self.limit == 0 {
            return;
        }
        self.bytes.extend_from_slice(bytes);
        // Twice the limit at most, so that bytes do not move at every call.
        if self.bytes.len() > 2 * self.limit {
            self.cut();
        }
    }

    fn take(mut self) -> Vec<u8> {
        self.cut();
        self.bytes
    }

    fn cut(&mut self) {
        self.bytes.drain(..self.bytes.len().saturating_sub(self.limit));
    }
}

/// This process's own standard output and standard error.
struct OwnStreams {
    is_open: [bool; 2],
}

impl OwnStreams {
    /// Writes all bytes. A stream that cannot be written any more is given up, and the processes of
    /// the job go on: their reader may have left long before their work is done.
    fn show(&mut self, stream: Stream, bytes: &[u8]) {
        let is_open = &mut self.is_open[stream as usize];
        if !*is_open || bytes.is_empty() {
            return;
        }
        let written = match stream {
            Stream::Out => write_all(std::io::stdout().as_fd(), bytes),
            Stream::Err => write_all(std::io::stderr().as_fd(), bytes),
        };
        *is_open = written.is_ok();
    }
}

/// Writes without a buffer, and also where another process has made the descriptor one that does
/// not wait.
fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let second = Timespec { tv_sec: 1, tv_nsec: 0 };
                match poll(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)], Some(&second)) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
