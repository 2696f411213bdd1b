//! Runs of an example that must succeed, and of one that must be refused. Their options are texts, which spaces divide.

use std::time::Duration;

pub(crate) use crate::common::example;

/// The output of an example, which must succeed.
#[track_caller]
pub(crate) fn output_of(name: &str, options: &str) -> String {
    example(name).args(options.split_whitespace()).run().success().out
}

/// Runs an example with options that it must refuse with one line.
#[track_caller]
pub(crate) fn refuse(name: &str, options: &str, parts: &[&str]) {
    let program = example(name).args(options.split_whitespace());
    program.limit(Duration::from_secs(30)).run().fails(parts);
}
