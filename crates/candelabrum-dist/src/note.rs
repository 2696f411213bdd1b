//! What the crates say on standard error, where there is no caller that could be told instead: a wait has no result
//! until it ends.

use std::io::{Write, stderr};

/// Writes a note to standard error.
pub fn note(message: &str) {
    // Without standard error nobody listens.
    drop(writeln!(stderr(), "note: {message}"));
}
