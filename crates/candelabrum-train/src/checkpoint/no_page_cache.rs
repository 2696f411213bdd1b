//! The replacement of writing past the page cache, where it is not a flag of files: files are written through the
//! cache.

use rustix::fs::OFlags;

pub(super) const PAST: OFlags = OFlags::empty();
