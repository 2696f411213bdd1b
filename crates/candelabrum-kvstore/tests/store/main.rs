//! The store between real processes: results, rounds, faults and misuse.
//!
//! A test starts this test binary again as workers and servers. An environment variable names the
//! case of each process ([`rank_main`]). Workers and servers run the same script: where it makes a
//! store, a server serves until all workers have left this store ([`harness::stage`]).

#![expect(clippy::print_stdout, reason = "tests say how long things take")]

mod cases;
mod faults;
mod flow;
mod harness;
mod local;
mod misuse;
mod numbers;
mod random;
mod rounds;
mod state;

use candelabrum_testkit::runs_all;
use harness::{Backend, Job};

/// Not a test: the program of a rank.
#[test]
fn rank_main() {
    harness::run_rank(|case, world| match case {
        "conformance" => cases::all(world),
        state if state.starts_with("state ") => state::run(state, world),
        fault if fault.starts_with("fault: ") => faults::run(fault, world),
        round if round.starts_with("round ") => rounds::run(round, world),
        misuse if misuse.starts_with("misuse") => misuse::run(misuse, world),
        random if random.starts_with("random") => random::run(random, world),
        flow => flow::run(flow, world),
    });
}

/// Workers and servers of the worlds in which the suite runs.
const WORLDS: [(usize, usize); 5] = [(1, 1), (2, 1), (2, 2), (3, 2), (4, 1)];

/// Runs the suite, and returns what every worker printed about the sums, which depend on the number
/// of workers, and about the tables, which depend on nothing.
fn conforms(backend: Backend, (workers, servers): (usize, usize)) -> Option<Vec<String>> {
    let ended = Job::new("conformance", workers, servers).over(backend).run()?;
    ended.assert_succeeded();
    let words = ended.words("digests ");
    assert_eq!(words.len(), workers, "{}", ended.text());
    assert!(words.iter().all(|word| *word == words[0]), "workers differ: {words:?}");
    Some(words[0].split(' ').map(str::to_owned).collect())
}

#[test]
fn stores_of_every_kind_conform_whatever_the_numbers_of_workers_and_servers() {
    let digests = WORLDS.map(|world| conforms(Backend::Local, world).expect("local ranks"));
    assert_eq!(digests[1], digests[2], "the number of servers changes no bit");
    for digest in &digests {
        assert_eq!(digest[1], digests[0][1], "the first values of a table depend on the world");
    }
}

#[test]
fn under_mpiexec_the_store_conforms_and_has_the_local_backends_bits() {
    let worlds: &[_] = if runs_all() { &[(2, 2), (3, 2)] } else { &[(2, 2)] };
    for &world in worlds {
        let Some(digests) = conforms(Backend::Mpiexec, world) else { return };
        assert_eq!(Some(digests), conforms(Backend::Local, world));
    }
}
