//! What this crate says on standard error, where there is no caller that could be told instead: a wait has no result
//! until it ends.

use std::io::{Write, stderr};

pub(crate) fn note(message: &str) {
    // Without standard error nobody listens.
    drop(writeln!(stderr(), "note: {message}"));
}
