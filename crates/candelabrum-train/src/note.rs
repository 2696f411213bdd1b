//! The one place where a program's note is printed.

use std::io::{Write, stderr};

pub(crate) fn note(message: &str) {
    // Without standard error nobody listens.
    drop(writeln!(stderr(), "note: {message}"));
}
