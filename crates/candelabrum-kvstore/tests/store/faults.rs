//! Deaths, stops, panics, early ends and late workers: each is named on every rank within seconds, and
//! the ranks fail.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use candelabrum_dist::{Error as DistError, World};
use candelabrum_kvstore::{Error, KvStore, Result, Server, StoreConfig, StoreKind};
use rustix::process::{Pid, Signal, getpid, kill_process};

use crate::harness::{Backend, EndedProgram, Job, say, stage, stage_with};
use crate::numbers::{flat, tensor};

/// Ranks of every case but those that say otherwise: 0, 1 and 2 are workers, 3 and 4 servers.
const WORKERS: usize = 3;
const SERVERS: usize = 2;

/// The worker or server with the fault.
const WORKER: usize = 1;
const SERVER: usize = 3;

/// Much less than the deadline of these jobs, much more than the milliseconds that it takes.
const SOON: Duration = Duration::from_secs(10);

/// A key that all workers push, and one that none does.
const BUSY: i64 = 0;
const QUIET: i64 = 1;

/// A store in which a worker waits for the others, in dist_async too.
fn config(kind: StoreKind) -> StoreConfig {
    let staleness_bound = (kind == StoreKind::DistAsync).then_some(1);
    StoreConfig { staleness_bound, big_array_bound: 4, ..StoreConfig::new(kind) }
}

pub(crate) fn run(case: &str, world: &World) -> Result<String> {
    let words: Vec<&str> = case.split(": ").collect();
    let kind = if words[1] == "sync" { StoreKind::DistSync } else { StoreKind::DistAsync };
    let everyone = world.everyone();
    let pids = everyone.all_gather(&[getpid().as_raw_nonzero().get()])?;
    let fault = words[2];
    if fault == "a foreign message" || fault == "a message of a server" {
        return foreign(fault, world);
    }
    let panics = fault == "a panic of a server";
    let server = Server::new().updater(move |_, received, stored| {
        assert!(!panics || received[0] == 0.0, "a fault on purpose");
        stored.copy_from_slice(received);
    });
    let start = Instant::now();
    let part = stage_with(world, &config(kind), server, |store| {
        if fault == "a worker without init" && store.rank() == WORKER {
            return until_it_fails(store, None);
        }
        for key in [BUSY, QUIET] {
            store.init(key, &tensor(&[0.0; 10], &[10]))?;
        }
        store.barrier()?;
        worker(fault, store, &pids)
    });
    if part.is_err() {
        say(&format!("noticed within {} ms", start.elapsed().as_millis()));
    }
    part.map(|_| case.to_owned())
}

fn worker(fault: &str, store: &KvStore, pids: &[i32]) -> Result<()> {
    let rank = store.rank();
    match fault {
        "a killed worker" if rank == WORKER => {
            send_soon(pids[WORKER], Signal::KILL);
            wait_for_others(store)
        }
        "a killed server" if rank == 0 => {
            send_soon(pids[SERVER], Signal::KILL);
            wait_for_others(store)
        }
        "a stopped server" if rank == 0 => {
            send(pids[SERVER], Signal::STOP);
            // Nobody else would end it.
            let end = format!("sleep 5; kill -9 {}", pids[SERVER]);
            drop(Command::new("sh").args(["-c", &end]).spawn().expect("a shell"));
            wait_for_others(store)
        }
        "a stopped server" => {
            thread::sleep(Duration::from_millis(200));
            wait_for_others(store)
        }
        "a worker that leaves" if rank == WORKER => {
            store.push(BUSY, &[1.0_f32; 10][..], 0)?;
            Ok(())
        }
        "a worker that leaves" => {
            for round in 0..20 {
                let pull = store.pushpull(BUSY, &[round as f32; 10][..], 0)?;
                assert_eq!(flat(&pull.wait()?).len(), 10);
            }
            Ok(())
        }
        "a panic" if rank == WORKER => panic!("a fault on purpose"),
        "an error" if rank == WORKER => {
            thread::sleep(Duration::from_millis(100));
            store.push(BUSY, &[f32::NAN; 10][..], 0)
        }
        // They have no key that the others push.
        "a late worker" if rank == WORKER => until_it_fails(store, Some(QUIET)),
        "a killed worker" | "a killed server" if rank == 2 => until_it_fails(store, Some(QUIET)),
        _ => wait_for_others(store),
    }
}

/// Pushes more than the others, and waits for them.
fn wait_for_others(store: &KvStore) -> Result<()> {
    for _ in 0..3 {
        store.push(BUSY, &[1.0_f32; 10][..], 0)?;
    }
    store.pull(BUSY, 0)?.wait().map(drop)
}

/// A worker that is busy with other things, and hears of a failure now and then.
fn until_it_fails(store: &KvStore, key: Option<i64>) -> Result<()> {
    loop {
        thread::sleep(Duration::from_millis(20));
        match key {
            Some(key) => drop(store.pull(key, 0)?.wait()?),
            None => drop(store.stats()?),
        }
    }
}

fn send(pid: i32, signal: Signal) {
    let pid = Pid::from_raw(pid).expect("a process");
    kill_process(pid, signal).expect("it can be signalled");
}

fn send_soon(pid: i32, signal: Signal) {
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        send(pid, signal);
    });
}

/// A rank that takes part in the making of the store's group, and sends what no store sends.
fn foreign(fault: &str, world: &World) -> Result<String> {
    let everyone = world.everyone();
    let sender = if fault == "a foreign message" { 0 } else { everyone.world_size() - 1 };
    if everyone.rank() == sender {
        // A store has a group for messages, and one for steps.
        let group = everyone.split(Some(0), 0)?.expect("a colour was given");
        let _steps = everyone.split(Some(0), 0)?;
        group.send(&[7_u8; 100], WORKERS)?;
        loop {
            group.recv_any::<u8>()?;
        }
    }
    stage(world, &config(StoreKind::DistSync), |store| until_it_fails(store, None))?;
    Ok("nobody minded".to_owned())
}

fn job(kind: &str, fault: &str) -> Job {
    Job::new(&format!("fault: {kind}: {fault}"), WORKERS, SERVERS)
}

/// Asserts that all ranks but the victim have failed with all parts, and soon.
#[track_caller]
fn assert_named(ended: &EndedProgram, victim: Option<usize>, parts: &[&str]) {
    for rank in (0..WORKERS + SERVERS).filter(|rank| Some(*rank) != victim) {
        ended.assert_failed(rank, parts);
    }
    let noticed = ended.words("noticed within ");
    assert!(noticed.len() >= WORKERS + SERVERS - 1, "{}", ended.text());
    for text in noticed {
        let ms: u64 = text.trim_end_matches(" ms").parse().expect("milliseconds");
        assert!(Duration::from_millis(ms) < SOON, "{text}");
    }
    assert!(ended.took < SOON, "{:?}", ended.took);
}

#[test]
fn a_worker_that_is_killed_is_named_by_all() {
    for kind in ["sync", "async"] {
        let ended = job(kind, "a killed worker").run_here();
        assert_eq!(ended.outputs[WORKER].code, None, "{}", ended.text());
        assert_named(&ended, Some(WORKER), &["rank 1 died while rank"]);
    }
}

#[test]
fn a_server_that_is_killed_is_named_by_all() {
    for kind in ["sync", "async"] {
        let ended = job(kind, "a killed server").run_here();
        assert_eq!(ended.outputs[SERVER].code, None, "{}", ended.text());
        assert_named(&ended, Some(SERVER), &["rank 3 died while rank"]);
    }
}

#[test]
fn a_server_that_is_stopped_is_named_when_the_deadline_passes() {
    // Each takes seconds, in which it does nothing.
    thread::scope(|scope| {
        for kind in ["sync", "async"] {
            scope.spawn(move || {
                let ended = job(kind, "a stopped server").deadline(1).run_here();
                assert_eq!(ended.outputs[SERVER].code, None, "{}", ended.text());
                assert_named(&ended, Some(SERVER), &["s in pull of `0` for the server, rank 3"]);
            });
        }
    });
}

#[test]
fn a_worker_that_leaves_in_a_round_is_named_in_dist_sync_and_not_missed_in_dist_async() {
    let ended = job("sync", "a worker that leaves").run_here();
    assert_eq!(ended.outputs[WORKER].code, Some(0), "{}", ended.text());
    for rank in [0, 2] {
        ended.assert_failed(rank, &["rank 1 has left, so the round of `0`"]);
    }
    assert!(ended.took < SOON, "{:?}", ended.took);
    job("async", "a worker that leaves").run_here().assert_succeeded();
}

#[test]
fn a_panic_ends_all_ranks() {
    for kind in ["sync", "async"] {
        let ended = job(kind, "a panic").run_here();
        assert_eq!(ended.outputs[WORKER].code, Some(101), "{}", ended.text());
        assert_named(&ended, Some(WORKER), &["rank 1: panicked"]);
        let ended = job(kind, "a panic of a server").run_here();
        let text = ended.text();
        let panicked = |rank: &usize| ended.outputs[*rank].code == Some(101);
        let server = (WORKERS..WORKERS + SERVERS).find(panicked).expect(&text);
        for rank in 0..WORKERS {
            ended.assert_failed(rank, &["panicked"]);
        }
        assert!(ended.outputs[server].text.contains("a fault on purpose"), "{text}");
        assert!(ended.took < SOON, "{:?}", ended.took);
    }
}

/// The rank with the error drops its store before it reports the error. Whoever hears of the one before
/// the other nevertheless knows the cause.
#[test]
fn an_error_of_one_worker_ends_all_ranks() {
    for kind in ["sync", "async"] {
        let ended = job(kind, "an error").run_here();
        let cause = "rank 1: the value of the key `0` is NaN";
        ended.assert_failed(WORKER, &["error of rank 1", cause]);
        // In dist_async the others go on, and may end before they hear of the error. So may a server
        // whose workers have all left.
        for rank in [0, 2, 3, 4] {
            let output = &ended.outputs[rank];
            let may_end = kind == "async" || rank >= WORKERS;
            let heard = output.code == Some(3) && output.text.contains(cause);
            assert!(heard || (may_end && output.code == Some(0)), "{}", ended.text());
        }
        assert!(ended.took < SOON, "{:?}", ended.took);
    }
}

#[test]
fn a_worker_that_does_not_push_is_named_when_the_deadline_passes() {
    for kind in ["sync", "async"] {
        let ended = job(kind, "a late worker").deadline(1).run_here();
        let parts = ["waited 1 s for `0`, which rank(s) 1 did not push", "CANDELABRUM_TIMEOUT"];
        assert_named(&ended, None, &parts);
    }
}

#[test]
fn a_worker_that_does_not_init_is_named_when_the_deadline_passes() {
    let ended = job("sync", "a worker without init").deadline(1).run_here();
    assert_named(&ended, None, &["in init of `0`, which rank(s) 1 did not call"]);
}

#[test]
fn a_message_that_is_none_of_a_store_ends_the_job_and_its_sender_is_named() {
    let parts = ["a message of rank 0 cannot be read: it is not one of a key-value store"];
    let ended = job("sync", "a foreign message").run_here();
    (0..5).for_each(|rank| ended.assert_failed(rank, &parts));
    let parts = ["a message of rank 4 cannot be read"];
    let ended = job("sync", "a message of a server").run_here();
    (0..5).for_each(|rank| ended.assert_failed(rank, &parts));
}

#[test]
fn under_mpiexec_a_killed_rank_ends_the_job() {
    for fault in ["a killed worker", "a killed server"] {
        let Some(ended) = job("sync", fault).over(Backend::Mpiexec).run() else { return };
        assert_ne!(ended.outputs[0].code, Some(0), "{}", ended.text());
        assert!(ended.took < SOON, "{:?}", ended.took);
    }
}

#[test]
fn under_mpiexec_faults_without_a_death_are_named() {
    for (fault, part) in [
        ("a worker that leaves", "rank 1 has left, so the round of `0`"),
        ("an error", "rank 1: the value of the key `0` is NaN"),
    ] {
        let Some(ended) = job("sync", fault).over(Backend::Mpiexec).run() else { return };
        assert_ne!(ended.outputs[0].code, Some(0), "{}", ended.text());
        assert!(ended.outputs[0].text.contains(part), "no `{part}`: {}", ended.text());
        assert!(ended.took < Duration::from_secs(20), "{:?}", ended.took);
    }
    let Some(ended) = job("async", "a worker that leaves").over(Backend::Mpiexec).run() else {
        return;
    };
    ended.assert_succeeded();
}

/// An error that only repeats another rank's is known as such.
#[test]
fn an_echo_is_told_from_a_cause() {
    let echo = Error::from(DistError::PeerFailed { peer: 1, message: "a cause".to_owned() });
    let cause = Error::Refused { server: 3, message: "a cause".to_owned() };
    assert!(echo.is_echo() && !cause.is_echo());
}
