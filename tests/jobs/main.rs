//! Jobs of several processes, which tests start as a user does, watch, and kill. Most of these tests wait, so more of
//! them run at a time than a machine has cores.
//!
//! | content | folder or file |
//! |---|---|
//! | faults of a rank in every phase, the ends of jobs | `faults` |
//! | checkpoints: kills, signals, damage, other numbers of ranks | `checkpoints` |
//! | jobs of `candelabrum run` that start again | `restarts.rs` |
//! | ranks that are servers of a key-value store | `servers.rs` |
//! | `--timeline` | `timeline.rs` |
//! | environments of engines that start several processes | `environments.rs` |
//! | systems that lack something or limit it | `systems.rs` |

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "tests say what they leave out and how long things take")]

mod checkpoints;
#[path = "../common/mod.rs"]
mod common;
mod environments;
mod faults;
mod programs;
mod restarts;
mod servers;
mod systems;
mod timeline;
