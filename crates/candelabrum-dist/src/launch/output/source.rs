//! One stream of one process, on its way to the launcher's output and to a file.

use std::fs::{File, OpenOptions, create_dir_all};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use rustix::io::Errno;

use super::lines::LineSplitter;
use super::{OutputCapture, Prefix, Stream};
use crate::{Error, Result};

/// After the end of a process, at most this many bytes of it are taken in: what a pipe can hold. A
/// process that the job has lost sight of may still write.
const LEFT_IN_PIPE: usize = 1024 * 1024;

/// A stream that this process takes in.
#[derive(Debug)]
pub(in super::super) struct OutputSource {
    rank: usize,
    stream: Stream,
    shown: bool,
    log: Option<StreamLog>,
    pipe: Option<OwnedFd>,
    lines: LineSplitter,
    /// The bytes that are still taken in once all processes have ended.
    left: usize,
}

/// A file with the bytes of a stream.
#[derive(Debug)]
struct StreamLog {
    path: PathBuf,
    file: File,
}

/// What one read from a stream gave.
pub(super) struct SourceBytes<'a> {
    pub(super) stream: Stream,
    /// The bytes as they came.
    pub(super) bytes: &'a [u8],
    /// Whole lines, with what stands before them.
    pub(super) to_show: &'a [u8],
    /// A problem with the file, in one line.
    pub(super) complaint: Option<String>,
    /// The stream has ended.
    pub(super) ended: bool,
}

/// Where a process of the job writes a stream, and the source that takes it in, if one must. The
/// source gets its pipe once the process has been started.
///
/// # Errors
/// A folder or a file that cannot be made.
pub(in super::super) fn destination(
    capture: &OutputCapture,
    rank: usize,
    stream: Stream,
) -> Result<(Stdio, Option<OutputSource>)> {
    let shown = capture.shown.as_ref().is_none_or(|ranks| ranks.contains(&rank));
    let log =
        capture.folder.as_ref().map(|folder| open(folder.clone(), rank, stream)).transpose()?;
    if shown || (stream == Stream::Err && capture.tail > 0) {
        let (lines, pipe) = (LineSplitter::default(), None);
        let source = OutputSource { rank, stream, shown, log, pipe, lines, left: LEFT_IN_PIPE };
        return Ok((Stdio::piped(), Some(source)));
    }
    Ok((log.map_or_else(Stdio::null, |log| Stdio::from(log.file)), None))
}

fn open(mut path: PathBuf, rank: usize, stream: Stream) -> Result<StreamLog> {
    let failed = |path: &PathBuf, error| Error::io(format!("make {}", path.display()), error);
    create_dir_all(&path).map_err(|error| failed(&path, error))?;
    let ending = match stream {
        Stream::Out => "log",
        Stream::Err => "err",
    };
    path.push(format!("rank-{rank}.{ending}"));
    let file = OpenOptions::new().append(true).create(true).open(&path);
    let file = file.map_err(|error| failed(&path, error))?;
    Ok(StreamLog { path, file })
}

impl OutputSource {
    /// The reading end of the pipe to which the process writes.
    ///
    /// # Errors
    /// A pipe that cannot be read without waiting.
    pub(in super::super) fn with_pipe(mut self, pipe: OwnedFd) -> Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true)
            .map_err(|error| Error::io(format!("read from rank {}", self.rank), error))?;
        self.pipe = Some(pipe);
        Ok(self)
    }

    /// `None` once the stream has ended.
    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads at most a `buffer` full, and puts into `to_show` what shall be shown. `None` if nothing
    /// is there to be read. After the end of all processes (`draining`) a stream ends where it is
    /// empty.
    pub(super) fn take<'a>(
        &mut self,
        buffer: &'a mut [u8],
        to_show: &'a mut Vec<u8>,
        prefix: Option<&Prefix>,
        draining: bool,
    ) -> Option<SourceBytes<'a>> {
        to_show.clear();
        let size = buffer.len().min(self.left);
        let read = match &self.pipe {
            Some(pipe) => rustix::io::read(pipe, &mut buffer[..size]),
            None => return None,
        };
        let count = match read {
            Err(Errno::AGAIN) if draining => 0,
            Err(Errno::AGAIN | Errno::INTR) => return None,
            // No other error is expected of a pipe, and after it nothing can be read.
            Err(_) => 0,
            Ok(count) => count,
        };
        if draining {
            self.left -= count;
        }
        let bytes = &buffer[..count];
        let complaint = self.keep(bytes);
        let Self { rank, stream, shown, lines, .. } = self;
        let mut give = |line: &[u8]| {
            if let Some(prefix) = prefix {
                prefix(*rank, *stream, to_show);
            }
            to_show.extend_from_slice(line);
            to_show.push(b'\n');
        };
        let ended = count == 0;
        if *shown {
            lines.push(bytes, Instant::now(), &mut give);
            if ended {
                lines.finish(give);
            }
        }
        let stream = *stream;
        if ended {
            self.pipe = None;
        }
        Some(SourceBytes { stream, bytes, to_show, complaint, ended })
    }

    /// Adds bytes to the file. A file that cannot be written is given up.
    fn keep(&mut self, bytes: &[u8]) -> Option<String> {
        let log = self.log.as_mut()?;
        let error = log.file.write_all(bytes).err()?;
        let path = log.path.display().to_string();
        self.log = None;
        Some(format!("warning: {path} lacks the output from here on: {error}"))
    }
}
