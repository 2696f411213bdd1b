//! The output of a job's processes: to this process's own output, line by line, and to files.
//!
//! Each process has a pipe for each of its streams, and one thread reads all of them (`pump.rs`). So
//! a line is never torn or mixed with another line, and a process whose reader is slow waits in its
//! own `write`, as it would without a launcher. A file has exactly the bytes that the process wrote.

mod lines;
#[cfg(local_ranks)]
mod pump;
#[cfg(local_ranks)]
mod source;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

#[cfg(local_ranks)]
pub(super) use pump::OutputPump;
#[cfg(local_ranks)]
pub(super) use source::{OutputSource, destination};

/// A stream of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Writes what stands before a line of a rank's stream.
pub type Prefix = Arc<dyn Fn(usize, Stream, &mut Vec<u8>) + Send + Sync>;

/// Where the output of a job's processes goes.
#[derive(Clone, Debug, Default)]
pub enum JobOutput {
    /// The processes write to the launcher's own standard output and standard error. If these are a
    /// terminal, it is a terminal for the processes, too.
    #[default]
    Inherit,
    /// The launcher takes the output in.
    Captured(OutputCapture),
}

/// What a launcher does with the output that it takes in.
#[derive(Clone, Default)]
pub struct OutputCapture {
    /// What stands before each line that is shown. `None` is nothing.
    pub prefix: Option<Prefix>,
    /// The ranks whose lines are shown on the launcher's own standard output and standard error.
    /// `None` is all ranks.
    pub shown: Option<BTreeSet<usize>>,
    /// The folder of the files `rank-R.log` and `rank-R.err`, to which standard output and standard
    /// error of rank R are added as they are. The folder is made if it is not there. `None` is no
    /// files.
    pub folder: Option<PathBuf>,
    /// The number of bytes at the end of all that the processes write to standard error which
    /// [`JobEnd::tail`](super::JobEnd::tail) gives.
    pub tail: usize,
}

impl fmt::Debug for OutputCapture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, shown, folder, tail } = self;
        f.debug_struct("Capture")
            .field("has_prefix", &prefix.is_some())
            .field("shown", shown)
            .field("folder", folder)
            .field("tail", tail)
            .finish()
    }
}
