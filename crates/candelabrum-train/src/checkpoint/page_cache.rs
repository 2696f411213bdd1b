//! Writing past the page cache.

use rustix::fs::OFlags;

/// The flag of a file that is written past the page cache.
pub(super) const PAST: OFlags = OFlags::DIRECT;
