//! The examples, run as by a user.
//!
//! | content | file |
//! |---|---|
//! | the examples that no other test runs | `learning.rs` |
//! | whole runs: a table, a text, two models, a body from a file; they continue | `whole_runs.rs` |
//! | half precision | `precision.rs` |
//! | pretrained models | `pretrained.rs` |
//! | large batches, and ResNet on folders of images | `large_scale.rs` |
//! | pictures | `convolve.rs` |
//! | under mpiexec | `mpiexec.rs` |
//! | `--interface` | `interface.rs` |
//! | bad files and bad options | `bad_input.rs` |

#![expect(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used, reason = "a test")]

mod bad_input;
#[path = "../common/mod.rs"]
mod common;
mod convolve;
mod interface;
mod large_scale;
mod learning;
mod mpiexec;
mod precision;
#[cfg(feature = "transformers")]
mod pretrained;
mod run;
mod whole_runs;
