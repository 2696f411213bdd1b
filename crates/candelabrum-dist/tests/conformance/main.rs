//! One suite for every backend: the results and the errors of a communicator.
//!
//! A test starts this test binary again as several processes. Environment variables name the case
//! and the rank of each process ([`rank_main`]). All cases that succeed share one group of ranks
//! per backend and world size ([`cases`]). Every case that fails has its own group ([`faults`]).

#![expect(clippy::print_stdout, reason = "ranks talk to their test by what they print")]

mod announced;
mod bench;
mod cases;
mod data;
mod device;
mod faults;
mod harness;
mod launchers;
mod nccl;
mod stuck;
#[cfg(feature = "cuda")]
mod tracking;
#[cfg(not(feature = "cuda"))]
#[path = "no_tracking.rs"]
mod tracking;

use std::collections::BTreeMap;
use std::time::Duration;

use candelabrum_dist::World;
use candelabrum_testkit::runs_all;

use harness::{Backend, Group};

/// Not a test: the program of a rank.
#[test]
fn rank_main() {
    let Some(case) = harness::case_to_run() else { return };
    let world = match World::from_env() {
        Ok(world) => world,
        Err(error) => harness::fail(None, &error),
    };
    let result = match case.as_str() {
        "conformance" => cases::all(world.comm()).map(|digest| format!("digest {digest:016x}")),
        "bench" => bench::bench(world.comm(), 0),
        "bench busy" => bench::bench(world.comm(), 1),
        "many" => cases::many(world.comm()).map(|digest| format!("digest {digest:016x}")),
        "long" => cases::long(world.comm()).map(|()| "long".to_owned()),
        "huge" => bench::huge(world.comm()),
        hosts if hosts.starts_with("hosts ") => {
            let digest = cases::hosts::all(&world, &hosts["hosts ".len()..]);
            digest.map(|digest| format!("digest {digest:016x}"))
        }
        "backend" => Ok(format!("over {}", world.comm().backend())),
        stuck if stuck.starts_with("stuck") => {
            stuck::run(stuck, &world).map(|()| "left in order".to_owned())
        }
        announced if announced.starts_with("announced") => {
            announced::run(announced, &world).map(|()| "left in order".to_owned())
        }
        device if device.starts_with("device") => {
            device::run(device, &world).map(|()| "left in order".to_owned())
        }
        fault => faults::run(fault, &world).map(|()| "left in order".to_owned()),
    };
    match result {
        Ok(text) => {
            let rank = world.rank();
            drop(world);
            println!("rank {rank} finished: {text}");
        }
        Err(error) => harness::fail(Some(world), &error),
    }
}

/// The numbers of ranks in which a backend runs all cases.
fn sizes(backend: Backend) -> &'static [usize] {
    match backend {
        _ if runs_all() => &[1, 2, 3, 4, 5],
        Backend::Local => &[1, 2, 3, 5],
        _ => &[2, 3],
    }
}

/// Runs all cases in worlds of several sizes. Returns the digest of all results of each world.
fn conforms(backend: Backend) -> BTreeMap<usize, String> {
    let group = |size| Group::new(backend, size, "conformance").limit(Duration::from_secs(100));
    let digest = |&size: &usize| (size, digest_of(group(size), size));
    sizes(backend).iter().map(digest).collect()
}

/// Asserts that a backend's digests are those of the local backend.
fn assert_local_bits(digests: &BTreeMap<usize, String>, sizes: impl IntoIterator<Item = usize>) {
    for size in sizes.into_iter().filter(|size| digests.contains_key(size)) {
        let local = Group::new(Backend::Local, size, "conformance");
        assert_eq!(digest_of(local, size), digests[&size], "{size} ranks");
    }
}

/// The digest of a group of `size` ranks, which all ranks must have.
fn digest_of(group: Group, size: usize) -> String {
    let ended = group.run();
    let digests = ended.digests();
    assert_eq!(digests.len(), size, "every rank must finish: {}", ended.output());
    assert!(ended.all_succeeded(), "every rank must exit with 0: {}", ended.output());
    let first = digests[0].clone();
    assert!(digests.iter().all(|d| *d == first), "ranks have different results: {digests:?}");
    first
}

#[test]
fn a_world_of_one_conforms() {
    let digest = cases::all(World::single().comm()).expect("the cases of one rank");
    let launched = Group::new(Backend::Local, 1, "conformance").run();
    assert_eq!(launched.digests(), [format!("{digest:016x}")], "{}", launched.output());
}

#[test]
fn the_local_backend_conforms_and_gives_the_same_bits_twice() {
    assert_local_bits(&conforms(Backend::Local), [3]);
}

/// More ranks than cores, and more than the smallest limits of a kernel provide for.
#[test]
fn many_ranks_start_and_agree() {
    for size in [17, 64] {
        let ended = Group::new(Backend::Local, size, "many").run();
        assert!(ended.all_succeeded(), "{}", ended.output());
        let digests = ended.digests();
        assert_eq!(digests.len(), size);
        assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
        println!("{size} ranks started, agreed and ended in {:?}", ended.took());
        ended.assert_nothing_is_left();
    }
}

#[test]
fn ranks_over_tcp_conform_and_give_the_local_backends_bits() {
    assert_local_bits(&conforms(Backend::Tcp), [3]);
}

/// `cargo xtask gpu-check` runs this test on a machine with a GPU.
#[test]
fn ranks_over_nccl_conform() {
    if harness::has_gpu() {
        conforms(Backend::Nccl);
    }
}

#[test]
fn under_mpiexec_the_ranks_conform_and_give_the_local_backends_bits() {
    if !harness::has_mpiexec() {
        return;
    }
    assert_local_bits(&conforms(Backend::Mpi), [2, 3, 5]);
}

#[test]
fn long_buffers_arrive_in_pieces() {
    for backend in [Backend::Local, Backend::Tcp, Backend::Mpi] {
        if backend == Backend::Mpi && !harness::has_mpi() {
            continue;
        }
        for size in [2, 3] {
            let ended = Group::new(backend, size, "long").run();
            assert!(ended.all_succeeded(), "{}", ended.output());
        }
    }
}

/// Between hosts, long sums are sent in other pieces. The bits must be the same.
#[test]
fn under_mpiexec_ranks_of_different_hosts_give_the_local_backends_bits() {
    if !harness::has_mpi() {
        return;
    }
    for hosts in ["ab", "aba"] {
        let size = hosts.len();
        let apart = digest_of(Group::new(Backend::Mpi, size, "conformance").hosts(hosts), size);
        let local = digest_of(Group::new(Backend::Local, size, "conformance"), size);
        assert_eq!(apart, local, "hosts {hosts}");
    }
}

/// The host of each rank as a letter: one host or several, even and uneven, in any order.
const HOSTS: [&str; 6] = ["a", "aa", "aabb", "abba", "aaab", "abcaa"];

fn hosts_conform(backend: Backend) {
    for hosts in HOSTS {
        let case = format!("hosts {hosts}");
        let ended = Group::new(backend, hosts.len(), &case).hosts(hosts).run();
        let digests = ended.digests();
        assert!(ended.all_succeeded() && digests.len() == hosts.len(), "{}", ended.output());
        assert!(digests.iter().all(|digest| *digest == digests[0]), "{hosts}: {digests:?}");
    }
}

#[test]
fn ranks_of_pretended_hosts_reduce_by_layers() {
    hosts_conform(Backend::Local);
}

/// `cargo test -p candelabrum-dist --features mpi --test conformance -- --ignored huge`
#[test]
#[ignore = "needs 16 GB of memory"]
fn huge_buffers_arrive() {
    for backend in [Backend::Local, Backend::Mpi] {
        let ended = Group::new(backend, 2, "huge").limit(Duration::from_secs(300)).run();
        assert!(ended.all_succeeded(), "{}", ended.output());
    }
}

/// `cargo test -p candelabrum-dist --release --features mpi --test conformance -- --ignored --nocapture bench`
#[test]
#[ignore = "a measurement, not a test"]
fn bench_all_reduce_of_two_ranks() {
    for (backend, case) in [
        (Backend::Local, "bench"),
        (Backend::Mpi, "bench"),
        (Backend::Local, "bench busy"),
        (Backend::Mpi, "bench busy"),
    ] {
        println!("{}", Group::new(backend, 2, case).run().output());
    }
}
