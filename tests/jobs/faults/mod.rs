//! Faults of a rank: no process hangs, all ranks end with a failure, one line names the cause, and
//! nothing is left behind.
//!
//! | content | file |
//! |---|---|
//! | the program that ranks run, and its phases | `program.rs` |
//! | the start of a job, its signals, the search for leftovers | `job.rs` |
//! | a rank that is killed or stopped, in every phase | `hurt.rs` |
//! | a rank that differs from the others | `differ.rs` |
//! | a machine without memory, jobs side by side and one after the other | `machine.rs` |
//! | the launcher of the examples | `launcher.rs` |
//! | another user of the host | `strangers.rs` |

mod differ;
mod hurt;
mod job;
mod launcher;
mod machine;
mod program;
mod strangers;

/// Not a test: the program of the launcher and of the ranks.
#[test]
fn rank_main() {
    if let Some(case) = program::Case::of_process() {
        program::run(&case);
    }
}
