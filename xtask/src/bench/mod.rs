//! The harness of all benchmarks: contenders take turns in one run, medians and ratios are formed
//! within rounds, and tables, pictures and files come out. `run.rs` shows the way of a run.

mod bars;
mod compare;
mod figures;
mod host;
mod hosts;
mod launch;
mod live;
mod picture;
mod plan;
mod programs;
mod report;
pub(crate) mod run;
mod runner;
mod sample;
mod screen;
pub(crate) mod table;

// What a benchmark declares itself with.
pub(crate) use self::bars::Grouped;
pub(crate) use self::figures::{Spread, counted, short};
pub(crate) use self::host::{Host, last_cache};
pub(crate) use self::hosts::{Hosts, MOST_HOSTS};
pub(crate) use self::launch::Player;
pub(crate) use self::live::Live;
pub(crate) use self::picture::{
    Band, Bar, Chart, Line, Look, Picture, StandingBar, by_powers, from_zero,
};
pub(crate) use self::plan::{Block, Trial, once};
pub(crate) use self::programs::{Programs, Wanted, compile_mpi, list_names};
pub(crate) use self::report::{BenchReport, Output};
pub(crate) use self::run::{Bench, Cli, Defaults, Setup, choice_name};
pub(crate) use self::sample::{Metric, Row, Sample, Values, best, compare, split_commit, values};
pub(crate) use self::table::Column;
