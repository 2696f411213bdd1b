//! Requests that are many, long, late, or the last ones of their worker: none is lost, and nobody waits
//! for ever.

use std::thread;
use std::time::Duration;

use candelabrum_dist::World;
use candelabrum_kvstore::{Compression, Key, Result, RowInit, RowSparse, StoreConfig, StoreKind};
use candle_core::Tensor;

use crate::harness::{Backend, Job, StageResult, stage};
use crate::numbers::{assert_same_bits, flat, numbers, sum, tensor};

const KINDS: [StoreKind; 2] = [StoreKind::DistSync, StoreKind::DistAsync];

/// More bytes than a worker may have on their way to a server: 3 × 4 MiB.
const LONG: usize = 3 << 20;

pub(crate) fn run(case: &str, world: &World) -> Result<String> {
    for kind in KINDS {
        match case {
            "long values" => long_values(world, kind)?,
            "last words" => last_words(world, kind)?,
            "waits with full windows" => full_windows(world, kind)?,
            "two threads" => two_threads(world, kind)?,
            "a barrier of one" => barrier_of_one(world, kind)?,
            other => panic!("there is no case `{other}`"),
        }
    }
    Ok(case.to_owned())
}

/// First values, pushes and rows of more bytes than fit the window, undivided and divided.
fn long_values(world: &World, kind: StoreKind) -> Result<()> {
    for big_array_bound in [usize::MAX, 1] {
        let config = StoreConfig { big_array_bound, ..StoreConfig::new(kind) };
        stage(world, &config, |store| {
            let values = |key: u64, worker| numbers(key, worker, 0, LONG / 3);
            let tensors = |worker| (0..6).map(move |key| tensor(&values(key, worker), &[LONG / 3]));
            let keys = (0..6).map(Key::Int);
            store.init_all(keys.zip(tensors(store.rank())))?;
            for key in 0..6 {
                let got = flat(&store.pull(key as i64, 0)?.wait()?);
                assert_same_bits(&got, &values(key, 0), "a long first value");
            }
            store.barrier()?;
            let own: Vec<Tensor> = tensors(store.rank()).collect();
            for (key, value) in own.iter().enumerate() {
                store.push(key as i64, value, key as i32)?;
            }
            // All pushes have left after a barrier.
            store.barrier()?;
            for key in 0..6 {
                let got = flat(&store.pull(key as i64, 0)?.wait()?);
                let all: Vec<_> = (0..store.num_workers()).map(|w| values(key, w)).collect();
                if kind == StoreKind::DistSync {
                    assert_same_bits(&got, &sum(&all), "a long sum");
                } else {
                    // The parts of a divided value may be of different workers.
                    let is_known = |(at, x): (usize, &f32)| all.iter().any(|all| all[at] == *x);
                    assert!(got.iter().enumerate().all(is_known), "the value of no worker");
                }
            }
            store.barrier()
        })?;
    }
    stage(world, &StoreConfig::new(kind), |store| {
        let (rows, dim) = (2000, 1000);
        store.init_rows("table", rows, dim, RowInit::Zeros)?;
        let every: Vec<u32> = (0..rows as u32).rev().collect();
        for _ in 0..2 {
            let values = RowSparse { rows: every.clone(), values: vec![1.0; rows * dim] };
            store.push_rows("table", &values, 0)?;
        }
        let got = store.row_sparse_pull("table", &every, 0)?.wait()?;
        let each = if kind == StoreKind::DistSync { store.num_workers() as f32 } else { 1.0 };
        assert!(got.rows.len() == rows && got.values.iter().all(|x| *x == each));
        store.barrier()
    })?;
    Ok(())
}

/// Workers leave right after requests that servers answer or confirm.
fn last_words(world: &World, kind: StoreKind) -> Result<()> {
    for round in 0..12 {
        let part = stage(world, &StoreConfig::new(kind), |store| {
            store.init(0, &tensor(&vec![0.0; 100_000], &[100_000]))?;
            store.init(1, &tensor(&[0.0; 3], &[3]))?;
            store.barrier()?;
            match round % 4 {
                // It is confirmed.
                0 => store.push(0, &vec![1.0_f32; 100_000][..], 0)?,
                // Their values are given up.
                1 => drop(store.pushpull(0, &vec![1.0_f32; 100_000][..], 0)?),
                2 => {
                    for _ in 0..20 {
                        drop(store.pushpull(1, &[1.0_f32; 3][..], 0)?);
                        drop(store.pull(0, 0)?);
                    }
                }
                // It leaves in the queue only after others are confirmed.
                _ => {
                    for _ in 0..15 {
                        store.push(0, &vec![1.0_f32; 100_000][..], 0)?;
                    }
                }
            }
            Ok(())
        })?;
        if let StageResult::OfServer(stats) = part {
            let expected = [1, 1, 20, 15][round % 4];
            let servers = world.servers() as u64;
            assert!(
                stats.pushes.iter().all(|count| *count == expected || servers > 1),
                "{stats:?}"
            );
            assert!(stats.pushes.iter().all(|count| *count == stats.pushes[0]), "{stats:?}");
        }
    }
    Ok(())
}

/// Every worker waits for the others' pushes of one key while its window is full of others.
fn full_windows(world: &World, kind: StoreKind) -> Result<()> {
    stage(
        world,
        &StoreConfig { big_array_bound: usize::MAX, ..StoreConfig::new(kind) },
        |store| {
            let (workers, len) = (store.num_workers(), 400_000);
            let zeros = tensor(&vec![0.0; len], &[len]);
            for key in 0..16 {
                store.init(key, &zeros)?;
            }
            for round in 0..2 {
                // Each worker begins with another key, and the last ones stay in its queue at first.
                let mut pulls = Vec::new();
                for step in 0..16 {
                    let key = ((step + store.rank() * 16 / workers) % 16) as i64;
                    let value = vec![(round + store.rank() + 1) as f32; len];
                    pulls.push(store.pushpull(key, &value[..], -(step as i32))?);
                }
                for pull in pulls.into_iter().rev() {
                    let got = flat(&pull.wait()?);
                    let all: usize = (0..workers).map(|worker| round + worker + 1).sum();
                    assert!(kind == StoreKind::DistAsync || got == vec![all as f32; len]);
                }
            }
            store.barrier()
        },
    )?;
    Ok(())
}

/// One worker calls barrier with pushes in its queue. The other one waits for them first.
fn barrier_of_one(world: &World, kind: StoreKind) -> Result<()> {
    for with_flush in [false, true] {
        let config = StoreConfig { big_array_bound: usize::MAX, ..StoreConfig::new(kind) };
        stage(world, &config, |store| {
            let meet = || match with_flush {
                false => store.barrier(),
                true => {
                    store.flush()?;
                    Ok(store.workers().barrier()?)
                }
            };
            for key in 0..4 {
                store.init(key, &tensor(&vec![0.0; LONG], &[LONG]))?;
            }
            let value = vec![1.0_f32; LONG];
            if store.rank() == 0 {
                for key in 0..4 {
                    store.push(key, &value[..], 0)?;
                }
                return meet();
            }
            if kind == StoreKind::DistSync {
                store.push(3, &value[..], 0)?;
            }
            // In dist_async nothing says when another worker's push arrives, but it does.
            while flat(&store.pull(3, 0)?.wait()?)[0] == 0.0 {
                thread::sleep(Duration::from_millis(1));
            }
            meet()
        })?;
    }
    Ok(())
}

/// Two threads of each worker wait for keys that the other workers' other threads push.
fn two_threads(world: &World, kind: StoreKind) -> Result<()> {
    stage(world, &StoreConfig::new(kind), |store| {
        store.set_gradient_compression(Compression::None)?;
        for key in 0..2 {
            store.init(key, &tensor(&[0.0; 10], &[10]))?;
        }
        for round in 0..3 {
            let mut keys = [0, 1];
            keys.rotate_left(store.rank() % 2);
            let turn = |key: i64, delay| {
                thread::sleep(Duration::from_millis(delay));
                store.pushpull(key, &[1.0_f32; 10][..], 0)?.wait()
            };
            let own = thread::scope(|scope| {
                let first = scope.spawn(|| turn(keys[0], 0));
                let second = scope.spawn(|| turn(keys[1], 100));
                [first, second].map(|thread| thread.join().expect("no panic"))
            });
            for value in own {
                let each =
                    if kind == StoreKind::DistSync { store.num_workers() as f32 } else { 1.0 };
                assert_eq!(flat(&value?), [each; 10], "round {round}");
            }
            store.barrier()?;
        }
        Ok(())
    })?;
    Ok(())
}

fn arrives(case: &str, worlds: &[(usize, usize)]) {
    for (workers, servers) in worlds {
        Job::new(case, *workers, *servers).run_here().assert_succeeded();
    }
}

#[test]
fn values_longer_than_the_window_arrive() {
    arrives("long values", &[(1, 1), (2, 2)]);
    let Some(ended) = Job::new("long values", 2, 1).over(Backend::Mpiexec).run() else { return };
    ended.assert_succeeded();
}

#[test]
fn the_last_requests_of_a_worker_are_served_and_harm_no_server() {
    arrives("last words", &[(1, 1), (2, 1), (2, 2)]);
    let Some(ended) = Job::new("last words", 2, 1).over(Backend::Mpiexec).run() else { return };
    ended.assert_succeeded();
}

#[test]
fn workers_with_full_windows_do_not_wait_for_each_other() {
    arrives("waits with full windows", &[(2, 1), (3, 2)]);
}

#[test]
fn a_barrier_sends_what_waits() {
    arrives("a barrier of one", &[(2, 1)]);
}

#[test]
fn a_thread_that_waits_does_not_keep_another_one_from_pushing() {
    arrives("two threads", &[(2, 1)]);
}
