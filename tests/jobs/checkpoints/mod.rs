//! Checkpoints: a run that continues is the run that nobody interrupted, bit for bit.
//!
//! | content | file |
//! |---|---|
//! | the training program, which a test starts as a user does | `program.rs` |
//! | what the program is doing, and where it kills itself | `phases.rs` |
//! | a job of the program: its start, its end, its result | `job.rs` |
//! | SIGKILL at random moments and in every phase | `kills.rs` |
//! | SIGKILL between two system calls that change files | `writes.rs`, by `tracer.rs` |
//! | damaged checkpoints, other models, a full disk | `damage.rs` |
//! | a run that goes back to an older checkpoint, checkpoints of the format before | `lineage.rs` |
//! | another number of ranks, every strategy, servers | `sizes.rs` |
//! | failures that a launcher answers by another start | `restarts.rs` |
//! | SIGINT, SIGTERM and SIGHUP | `signals.rs` |
//! | the ways in which a job is started, and in which a signal reaches it | `ways.rs` |

mod damage;
mod job;
mod kills;
mod lineage;
mod phases;
mod program;
mod restarts;
mod signals;
mod sizes;
#[cfg(target_arch = "x86_64")]
mod tracer;
mod ways;
#[cfg(target_arch = "x86_64")]
mod writes;

/// Not a test: the program of the launcher and of the ranks.
#[test]
fn rank_main() {
    if let Some(args) = program::args_of_process() {
        program::run(&args);
    }
}
