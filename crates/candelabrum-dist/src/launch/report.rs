//! What ranks tell their launcher.
//!
//! The launcher reads from a pipe and passes to its ranks the pipe's path below `/proc`. The kernel
//! lets only the launcher's own user open this path. A report is one line of at most [`PIPE_BUF`]
//! bytes. The kernel writes this many bytes as a whole, so the lines of several ranks do not mix.

use std::io::{PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PIPE_BUF;

use super::vars;
use crate::{Error, Result};

/// The longest time that a rank waits for room in a full pipe.
const TO_MAKE_ROOM: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The capacity of a pipe: the launcher reads at most this many bytes at once.
const CAPACITY: usize = 64 * 1024;

/// What a rank tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RankEvent {
    /// It ends with this error.
    Failed {
        /// The error in one line, which the launcher prints for all ranks.
        message: String,
        /// The error is the consequence of another rank's failure.
        echo: bool,
    },
    /// It ends before its work is complete, because this signal asked for it.
    Interrupted(i32),
    /// It has succeeded. A signal that has come meanwhile has cut nothing short.
    Complete,
    /// The newest checkpoint on the disk is that of this step.
    Saved(u64),
}

/// News of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankReport {
    pub(super) rank: usize,
    pub(super) news: RankEvent,
}

impl RankReport {
    /// Rank, kind and text in one line of at most [`PIPE_BUF`] bytes.
    fn line(&self) -> String {
        let (kind, text) = match &self.news {
            RankEvent::Failed { message, echo: false } => ("failed", message.replace('\n', " ")),
            RankEvent::Failed { message, echo: true } => ("echo", message.replace('\n', " ")),
            RankEvent::Interrupted(signal) => ("interrupted", signal.to_string()),
            RankEvent::Complete => ("complete", String::new()),
            RankEvent::Saved(step) => ("saved", step.to_string()),
        };
        let mut line = format!("{} {kind} {text}", self.rank);
        line.truncate(line.floor_char_boundary(PIPE_BUF - 1));
        line.push('\n');
        line
    }

    fn of_line(line: &str) -> Option<Self> {
        let (rank, rest) = line.split_once(' ')?;
        let (kind, text) = rest.split_once(' ')?;
        let failed = |echo| RankEvent::Failed { message: text.to_owned(), echo };
        let news = match kind {
            "failed" => failed(false),
            "echo" => failed(true),
            "interrupted" => RankEvent::Interrupted(text.parse().ok()?),
            "complete" => RankEvent::Complete,
            "saved" => RankEvent::Saved(text.parse().ok()?),
            _ => return None,
        };
        Some(Self { rank: rank.parse().ok()?, news })
    }
}

/// Tells the launcher of this rank. Returns false if there is no launcher of this project. The caller
/// of an error then prints it itself.
pub fn report(news: RankEvent) -> bool {
    let rank = std::env::var(vars::RANK).ok().and_then(|text| text.parse().ok());
    let (Some(rank), Ok(path)) = (rank, std::env::var(vars::REPORTS)) else {
        return false;
    };
    send(&path, RankReport { rank, news }.line().as_bytes()).is_ok()
}

fn send(path: &str, line: &[u8]) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let pipe = rustix::fs::open(path, flags, Mode::empty())?;
    // The launcher may have ended, and another program may have its process number and any file at
    // this path.
    if FileType::from_raw_mode(rustix::fs::fstat(&pipe)?.st_mode) != FileType::Fifo {
        return Err(Errno::NXIO);
    }
    match rustix::io::write(&pipe, line) {
        Err(Errno::AGAIN) => {
            poll(&mut [PollFd::new(&pipe, PollFlags::OUT)], Some(&TO_MAKE_ROOM))?;
            rustix::io::write(&pipe, line).map(drop)
        }
        written => written.map(drop),
    }
}

/// The launcher's end of the pipe.
#[derive(Debug)]
pub(super) struct Reports {
    reader: PipeReader,
    /// The end that ranks open by its path. The launcher itself does not write.
    writer: PipeWriter,
}

impl Reports {
    pub(super) fn open() -> Result<Self> {
        let open = || {
            let (reader, writer) = std::io::pipe()?;
            rustix::io::ioctl_fionbio(&reader, true)?;
            Ok(Self { reader, writer })
        };
        open()
            .map_err(|error: std::io::Error| Error::io("make a pipe for the ranks' errors", error))
    }

    /// The path at which ranks open the pipe.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.writer.as_raw_fd())
    }

    /// The reports that have arrived since the last call, without waiting for more.
    pub(super) fn take(&mut self) -> Vec<RankReport> {
        let mut bytes = vec![0; CAPACITY];
        // A read from an empty pipe returns an error, because the reader does not block.
        let count = self.reader.read(&mut bytes).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..count]).lines().filter_map(RankReport::of_line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(rank: usize, message: &str, echo: bool) -> RankReport {
        RankReport { rank, news: RankEvent::Failed { message: message.to_owned(), echo } }
    }

    #[test]
    fn reports_arrive_whole_and_in_order() -> Result<()> {
        let mut reports = Reports::open()?;
        assert!(reports.take().is_empty());
        let sent = [
            failed(3, "a cause", false),
            failed(0, "its echo: 3 ranks × 2", true),
            RankReport { rank: 12, news: RankEvent::Interrupted(15) },
            RankReport { rank: 1, news: RankEvent::Complete },
            RankReport { rank: 0, news: RankEvent::Saved(u64::MAX) },
        ];
        for report in &sent {
            send(&reports.path(), report.line().as_bytes()).expect("there is room");
        }
        assert_eq!(reports.take(), sent);
        assert!(reports.take().is_empty());
        Ok(())
    }

    #[test]
    fn a_long_message_is_cut_and_lines_of_it_are_joined() {
        let line = failed(1, &format!("one\ntwo {}", "×".repeat(PIPE_BUF)), false).line();
        assert!(line.len() <= PIPE_BUF && line.ends_with("×\n"), "{}", line.len());
        let report = RankReport::of_line(line.trim_end()).expect("a report");
        let RankEvent::Failed { message, .. } = report.news else { panic!("{report:?}") };
        assert!(message.starts_with("one two ×"), "{message}");
    }

    #[test]
    fn a_full_pipe_is_an_error_and_not_a_wait_for_ever() -> Result<()> {
        let mut reports = Reports::open()?;
        let line = failed(0, &"x".repeat(PIPE_BUF), false).line();
        while send(&reports.path(), line.as_bytes()).is_ok() {}
        assert!(!reports.take().is_empty());
        Ok(())
    }

    #[test]
    fn what_is_not_a_pipe_is_left_alone() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().to_str().expect("a path");
        assert_eq!(send(path, b"0 failed x\n"), Err(Errno::NXIO));
        assert!(
            std::fs::File::open(path).expect("it is there").metadata().expect("its size").len()
                == 0
        );
    }
}
