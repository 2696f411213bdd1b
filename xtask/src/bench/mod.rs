//! The harness of all benchmarks: contenders take turns in one run, medians and ratios are formed
//! within rounds, and tables, pictures and files come out. `run.rs` shows the way of a run.

pub(crate) mod bars;
pub(crate) mod compare;
pub(crate) mod figures;
pub(crate) mod host;
pub(crate) mod hosts;
pub(crate) mod launch;
pub(crate) mod live;
pub(crate) mod picture;
pub(crate) mod plan;
pub(crate) mod programs;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod runner;
pub(crate) mod sample;
pub(crate) mod saved;
pub(crate) mod screen;
pub(crate) mod table;
