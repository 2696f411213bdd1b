//! Ranks started as by other launchers: the ranks of one job meet, and jobs do not mix.

use std::env;
use std::net::TcpListener;
use std::time::Duration;

use candelabrum_dist::{ReduceOp, World, WorldConfig};
use candelabrum_testkit::{EndedProgram, Program, Running};

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
    let run = "a".repeat(300);
    let group = two(Backend::Torchrun).variable("TORCHELASTIC_RUN_ID", &run);
    let ended = group.variable("MASTER_PORT", "29500").run();
    assert!(ended.all_succeeded(), "{}", ended.output());
}

#[test]
fn ranks_that_cannot_tell_their_job_from_another_are_refused_and_told_what_to_set() {
    let ended = two(Backend::Torchrun).run();
    for rank in [0, 1] {
        assert!(ended.failed(rank), "{}", ended.output());
        for part in ["one of 2 ranks", "set MASTER_PORT", "CANDELABRUM_JOB"] {
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

/// The variable in which a launcher of its own, this test, passes a rank's place.
const PLACE: &str = "PLACE_OF_AN_OWN_LAUNCHER";

/// Not a test: a rank that is told its place by its own program.
#[test]
fn rank_with_a_place() {
    let Ok(place) = env::var(PLACE) else { return };
    let words: Vec<&str> = place.split(' ').collect();
    let number = |index: usize| words[index].parse::<usize>().unwrap();
    let config = WorldConfig {
        rank: number(1),
        world_size: number(2),
        local_rank: number(3),
        local_size: number(4),
        master_addr: "127.0.0.1".to_owned(),
        master_port: words[5].parse().unwrap(),
        ..WorldConfig::on_one_host(words[0], 0, 1)
    };
    let world = World::join(config).unwrap();
    let mut sum = [10_f64.powi(world.global_rank().try_into().unwrap())];
    world.comm().all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    let (local_rank, local_size) = (world.local_rank(), world.local_size());
    println!("sum {} over {}, {local_rank} of {local_size}", sum[0], world.backend());
}

/// Ranks that find these places, as rank, world size, local rank and local size. They also find variables of
/// launchers, which do not count.
fn placed(job: &str, places: &[[usize; 4]]) -> Vec<EndedProgram> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    drop(listener);
    let start = |[rank, world_size, local_rank, local_size]: &[usize; 4]| {
        let place = format!("{job} {rank} {world_size} {local_rank} {local_size} {port}");
        let program = Program::from_test(rank_with_a_place).env(PLACE, place);
        program.env("RANK", "7").env("WORLD_SIZE", "9").env("CANDELABRUM_TIMEOUT", "5").start()
    };
    let ranks: Vec<Running> = places.iter().map(start).collect();
    ranks.into_iter().map(Running::finish).collect()
}

#[test]
fn ranks_that_their_own_program_places_meet() {
    let job = |name: &str| format!("{name}-{}", std::process::id());
    let one_host = [[0, 3, 0, 3], [1, 3, 1, 3], [2, 3, 2, 3]];
    let two_hosts = [[0, 3, 0, 2], [1, 3, 1, 2], [2, 3, 0, 1]];
    for (name, places, backend) in [("one", one_host, "local"), ("two", two_hosts, "tcp")] {
        for (ended, [_, _, rank, size]) in placed(&job(name), &places).iter().zip(places) {
            let line = format!("sum 111 over {backend}, {rank} of {size}\n");
            assert!(ended.succeeded() && ended.out.contains(&line), "{line}: {ended:#?}");
        }
    }
    // Ranks that were told different numbers of ranks.
    for ended in placed(&job("wrong"), &[[0, 2, 0, 2], [1, 3, 1, 3]]) {
        assert!(!ended.succeeded(), "{ended:#?}");
    }
    // The environment has no place for a rank whose program says none.
    let alone = placed(&job("alone"), &[[0, 1, 0, 1]]);
    assert!(alone[0].out.contains("sum 1 over single, 0 of 1\n"), "{alone:#?}");
}
