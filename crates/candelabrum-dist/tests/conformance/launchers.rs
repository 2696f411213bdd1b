//! Ranks started as by other launchers: the ranks of one job meet, and jobs do not mix.

use std::time::Duration;

use crate::harness::{Backend, Group};

/// Two ranks that print their backend, with a short deadline.
fn two(backend: Backend) -> Group {
    let group = Group::new(backend, 2, "backend").variable("CANDELABRUM_TIMEOUT", "5");
    group.limit(Duration::from_secs(20))
}

#[test]
fn ranks_behind_wrappers_of_mpiexec_meet() {
    if cfg!(feature = "mpi") {
        println!("left out: with the feature `mpi` ranks under mpiexec talk MPI");
        return;
    }
    let ended = two(Backend::Hydra).run();
    assert!(ended.all_succeeded(), "{}", ended.output());
    assert_eq!(ended.output().matches("over local").count(), 2, "{}", ended.output());
    ended.assert_nothing_is_left();
}

#[test]
fn the_words_that_name_a_job_may_be_long() {
    let host = "a".repeat(300);
    let group = two(Backend::Torchrun).variable("MASTER_ADDR", &host);
    let ended = group.variable("MASTER_PORT", "29500").run();
    assert!(ended.all_succeeded(), "{}", ended.output());
}

#[test]
fn ranks_that_cannot_tell_their_job_from_another_are_refused_and_told_what_to_set() {
    let ended = two(Backend::Torchrun).run();
    for rank in [0, 1] {
        assert!(ended.failed(rank), "{}", ended.output());
        for part in ["one of 2 ranks", "MASTER_ADDR and MASTER_PORT", "CANDELABRUM_JOB"] {
            assert!(ended.ranks[rank].text.contains(part), "{part}: {}", ended.output());
        }
    }
    let word = two(Backend::Torchrun).variable("CANDELABRUM_JOB", "a test of this project").run();
    assert!(word.all_succeeded(), "{}", word.output());
}

/// Two ranks with different secrets meet neither on one host nor over TCP.
#[test]
fn ranks_with_another_secret_are_not_of_the_same_job() {
    for backend in [Backend::Local, Backend::Tcp] {
        let same = two(backend).variable("CANDELABRUM_SECRET", "ours").run();
        assert!(same.all_succeeded(), "{}", same.output());
        let other = two(backend).variable_of(1, "CANDELABRUM_SECRET", "another one").run();
        assert!(other.failed(0) && other.failed(1), "{}", other.output());
    }
}
