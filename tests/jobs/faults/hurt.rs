//! A rank is killed, or stopped, in every phase of a run.

use std::time::Duration;

use rustix::process::Signal;

use super::job::{self, send};

/// Each phase and the number of ranks of its job.
const PHASES: [(&str, usize); 4] =
    [("start-up", 2), ("forward", 2), ("all-reduce", 3), ("evaluation", 2)];

#[test]
fn a_killed_rank_ends_the_job_in_every_phase() {
    for (phase, workers) in PHASES {
        for victim in [0, 1] {
            let job = job::start(phase, victim, workers).launch();
            let killed = send(job.wait_for_arrival(), Signal::KILL);
            let ended = job.finish();
            println!(
                "rank {victim} killed in {phase}: all ended {:?} after the start",
                ended.program.took
            );
            ended.assert_failed(&[&format!("rank {victim} was killed by SIGKILL")]);
            let noticed = ended.noticed();
            for (rank, when, error) in &noticed {
                let after = Duration::from_nanos((when - killed).unsigned_abs());
                println!("  rank {rank} noticed after {after:?}: {error}");
                assert!(
                    error.contains(&format!("rank {victim} died while rank {rank}")),
                    "{error}"
                );
                // Usually a few milliseconds, but a busy machine may be late.
                assert!(after < Duration::from_secs(1), "{after:?}");
            }
            // A rank that waits for the dead rank notices. The launcher ends a rank that computes.
            assert_eq!(noticed.len(), usize::from(phase != "start-up"), "{noticed:?}");
        }
    }
}

#[test]
fn a_stopped_rank_is_named_when_the_deadline_passes_and_does_not_stay() {
    for (phase, workers) in PHASES {
        for victim in [0, 1] {
            let job = job::start(phase, victim, workers).variable("CANDELABRUM_TIMEOUT", "2");
            let job = job.launch();
            send(job.wait_for_arrival(), Signal::STOP);
            let ended = job.finish();
            println!("rank {victim} stopped in {phase}: all ended after {:?}", ended.program.took);
            match phase {
                "start-up" => ended.assert_failed(&["waited 2 s for", &format!("rank {victim}")]),
                // In this phase the late rank is missing, too.
                "all-reduce" => ended.assert_failed(&["waited 2 s in all_reduce", "rank(s)", "2"]),
                _ => {
                    let missing = format!("for rank(s) {victim};");
                    ended.assert_failed(&["waited 2 s in all_reduce", &missing]);
                }
            }
        }
    }
}

#[test]
fn under_mpiexec_a_killed_rank_ends_the_job() {
    for victim in [0, 1] {
        let Some(job) = job::start("forward", victim, 2).launch_by_mpiexec() else { return };
        send(job.wait_for_arrival(), Signal::KILL);
        let ended = job.finish();
        println!("rank {victim} killed under mpiexec: all ended after {:?}", ended.program.took);
        ended.assert_mpiexec_failed(&[]);
    }
}

#[test]
fn under_mpiexec_a_stopped_rank_is_named_when_the_deadline_passes() {
    for victim in [0, 1] {
        let job = job::start("forward", victim, 2).variable("CANDELABRUM_TIMEOUT", "2");
        let Some(job) = job.launch_by_mpiexec() else { return };
        send(job.wait_for_arrival(), Signal::STOP);
        let ended = job.finish();
        println!("rank {victim} stopped under mpiexec: all ended after {:?}", ended.program.took);
        let missing = format!("for rank(s) {victim};");
        ended.assert_mpiexec_failed(&["waited 2 s in all_reduce", &missing]);
    }
}
