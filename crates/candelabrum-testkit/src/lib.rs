//! Test helpers: gradient checks, close comparisons, golden files, reproducible numbers, counted allocations and
//! spans, and the programs and ranks that a test starts.
//!
//! For tests only, so failures panic with a message that says where to look.

#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "an allocator")]
mod allocations;
mod close;
mod ended;
mod golden;
mod gradcheck;
pub mod leftovers;
mod long;
pub mod memory;
pub mod mnist_cnn_recipe;
mod processes;
mod program;
mod random;
pub mod ranks;
mod running;
mod spans;

pub use allocations::{LargeAllocations, RecordedAllocations};
pub use close::assert_close;
pub use ended::EndedProgram;
pub use golden::{golden, golden_metadata};
pub use gradcheck::gradcheck;
pub use long::runs_all;
pub(crate) use processes::PAUSE;
pub use processes::{LIMIT, kill, lives, process_in, until, until_asleep};
pub use program::{Program, mpiexec};
pub use random::{RandomChoices, integers, split_mix, uniform};
pub use running::Running;
pub use spans::SpanCount;
