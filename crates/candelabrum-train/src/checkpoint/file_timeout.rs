//! How long a thread that writes a checkpoint waits for the files of other ranks.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use candelabrum_dist::Group;

/// After the end of the run by an error, a rank is waited for as long as its files grow, and for this time more. A rank
/// that was killed writes none.
const QUIET: Duration = Duration::from_secs(3);

/// The longest wait, and what shortens it.
#[derive(Clone)]
pub(super) struct FileTimeout {
    most: Duration,
    group: Group,
    has_ended: Arc<AtomicBool>,
}

impl FileTimeout {
    /// To wait for at most `most`, and less if the ranks of `group` have failed.
    pub(super) fn new(most: Duration, group: &Group) -> Self {
        Self { most, group: Arc::clone(group), has_ended: Arc::default() }
    }

    /// Says that this rank's run has ended by an error. Clones know of it.
    pub(super) fn shorten(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Begins a wait for files in `dir`.
    pub(super) fn begin<'p>(&'p self, dir: &'p Path) -> FileWait<'p> {
        let now = Instant::now();
        FileWait { file_timeout: self, dir, begin: now, size: None, changed: now }
    }

    fn is_short(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed) || self.group.failure().is_some()
    }
}

/// A wait for files.
pub(super) struct FileWait<'p> {
    file_timeout: &'p FileTimeout,
    dir: &'p Path,
    begin: Instant,
    /// The bytes of all files, once the run has ended.
    size: Option<u64>,
    /// When the size was another one.
    changed: Instant,
}

impl FileWait<'_> {
    /// The time so far.
    pub(super) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Whether it has been long enough.
    pub(super) fn is_over(&mut self) -> bool {
        if self.begin.elapsed() > self.file_timeout.most {
            return true;
        }
        if !self.file_timeout.is_short() {
            return false;
        }
        let size = Some(size_of_files(self.dir));
        if size != self.size {
            (self.size, self.changed) = (size, Instant::now());
        }
        self.changed.elapsed() > QUIET
    }
}

/// The bytes of the files in a directory, as far as they can be seen.
fn size_of_files(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum()
}

impl fmt::Debug for FileTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileTimeout({:?})", self.most)
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_dist::World;

    use super::*;

    #[test]
    fn a_run_that_has_ended_waits_only_while_files_grow() {
        let dir = tempfile::tempdir().unwrap();
        let hours = Duration::from_secs(10_000);
        let file_timeout = FileTimeout::new(hours, &World::single().group());
        let mut wait = file_timeout.begin(dir.path());
        let long_ago = Instant::now().checked_sub(2 * QUIET).unwrap();
        assert!(!wait.is_over());
        wait.changed = long_ago;
        assert!(!wait.is_over(), "the run goes on");
        file_timeout.shorten();
        assert!(!wait.is_over(), "nothing was looked at yet");
        wait.changed = long_ago;
        fs::write(dir.path().join("file"), "more").unwrap();
        assert!(!wait.is_over(), "a file has grown");
        wait.changed = long_ago;
        assert!(wait.is_over());
    }
}
