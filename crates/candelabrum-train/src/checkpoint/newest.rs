//! The step of the newest checkpoint on the disk, for the last words of a process that a signal ends at once, and for
//! its launcher, which starts a job again as long as the job makes progress.

use std::sync::atomic::{AtomicU64, Ordering};

use candelabrum_dist::launch::{RankEvent, report};

/// No checkpoint.
const NONE: u64 = u64::MAX;

static NEWEST: AtomicU64 = AtomicU64::new(NONE);

/// Notes that the checkpoint of a step is on the disk, and reports it to the launcher. A run that has none yet begins
/// at step 0. For rank 0.
pub(super) fn record_newest(step: u64) {
    NEWEST.store(step, Ordering::Relaxed);
    report(RankEvent::Saved(step));
}

/// The step of this process's newest checkpoint, if it has made one or continues one.
pub(crate) fn newest_checkpoint() -> Option<u64> {
    Some(NEWEST.load(Ordering::Relaxed)).filter(|&step| step != NONE)
}
