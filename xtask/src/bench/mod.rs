//! The benchmarks: contenders take turns in one run, medians and ratios are formed within rounds, and a table and a
//! JSON file come out.
//!
//! `xtask/benches.toml` declares what is measured, `plan.rs` makes players of a declaration, `run.rs` shows the way of
//! a run. scripts/figures.py draws the file.

pub(crate) mod cli;

mod bindings;
mod block;
mod compare;
mod context;
mod experiment;
mod figures;
mod hooks;
mod host;
mod hosts;
mod launch;
mod network;
mod options;
mod plan;
mod process;
mod profile;
mod programs;
mod report;
mod run;
mod runner;
mod sample;
mod table;

/// The names that commands had before they were subcommands of `bench`, and that are still understood.
const OLD_NAMES: [&str; 3] = ["bench-step", "bench-ddp", "bench-scaling"];

/// The words of a command line, with `bench step` in place of `bench-step`.
pub(crate) fn with_new_names(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut words: Vec<String> = words.collect();
    if let Some(name) = words.get(1).filter(|name| OLD_NAMES.contains(&&***name)) {
        let name = name["bench-".len()..].to_owned();
        words.splice(1..2, ["bench".to_owned(), name]);
    }
    words
}
