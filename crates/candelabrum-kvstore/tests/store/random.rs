//! Ten thousand keys of mixed sizes in another random order on every worker, against a sequential
//! reference.

use std::collections::VecDeque;

use candelabrum_dist::World;
use candelabrum_kvstore::{Key, KvStore, PendingPull, Result, Server, StoreConfig, StoreKind};
use candelabrum_testkit::{RandomChoices, runs_all};
use candle_core::Tensor;

use crate::harness::{Backend, Job, stage, stage_with};
use crate::numbers::{assert_same_bits, flat, numbers, sum, tensor};

const MANY_KEYS: usize = 10_000;

/// Where ranks that wait actively share the cores.
const FEW_KEYS: usize = 1_000;
const ROUNDS: usize = 2;

/// Some percent of the values are divided.
const BOUND: usize = 1500;

/// Most are short, some have thousands of elements.
fn len(key: usize) -> usize {
    let mut dice = RandomChoices(key as u64 ^ 0x517c_c1b7);
    match dice.below(20) {
        0 => 1 + dice.below(5000),
        _ => 1 + dice.below(40),
    }
}

/// What a worker pushes in a round: one tensor, or a list.
fn pushed(key: usize, worker: usize, round: usize) -> Vec<Vec<f32>> {
    let count = if (key + worker + round).is_multiple_of(7) { 3 } else { 1 };
    let what = |at: usize| (key * 3 + at) as u64 + 1000;
    (0..count).map(|at| numbers(what(at), worker, round, len(key))).collect()
}

fn push(store: &KvStore, key: usize, round: usize, priority: i32) -> Result<()> {
    let list = pushed(key, store.rank(), round);
    match &list[..] {
        [one] => store.push(key as i64, &one[..], priority),
        list => {
            let tensors: Vec<Tensor> = list.iter().map(|x| tensor(x, &[x.len()])).collect();
            store.push(key as i64, &tensors[..], priority)
        }
    }
}

/// The value of a round in dist_sync.
fn value(key: usize, workers: usize, round: usize) -> Vec<f32> {
    let of = |worker| sum(&pushed(key, worker, round));
    sum(&(0..workers).map(of).collect::<Vec<_>>())
}

fn init(store: &KvStore, keys: usize) -> Result<()> {
    let first = |key: usize| tensor(&numbers(key as u64, store.rank(), 9, len(key)), &[len(key)]);
    store.init_all((0..keys).map(|key| (Key::Int(key as i64), first(key))))
}

pub(crate) fn run(case: &str, world: &World) -> Result<String> {
    match case {
        "random sync" => in_rounds(world, MANY_KEYS)?,
        "random sync few" => in_rounds(world, FEW_KEYS)?,
        "random async" => added_up(world)?,
        other => panic!("there is no case `{other}`"),
    }
    Ok(case.to_owned())
}

fn in_rounds(world: &World, keys: usize) -> Result<()> {
    let config = StoreConfig { big_array_bound: BOUND, ..StoreConfig::new(StoreKind::DistSync) };
    stage(world, &config, |store| {
        let mut dice = RandomChoices(store.rank() as u64 + 77);
        init(store, keys)?;
        // Pulls that are awaited later, with what they must give.
        let mut pulls: VecDeque<(PendingPull, usize, Option<usize>)> = VecDeque::new();
        for round in 0..ROUNDS {
            for key in dice.order(keys) {
                let priority = dice.below(200) as i32 - 100;
                let name = key as i64;
                match dice.below(5) {
                    0 => push(store, key, round, priority)?,
                    1 => {
                        let before = round.checked_sub(1);
                        pulls.push_back((store.pull(name, priority)?, key, before));
                        push(store, key, round, priority)?;
                    }
                    2 | 3 if pushed(key, store.rank(), round).len() == 1 => {
                        let values = &pushed(key, store.rank(), round)[0];
                        let pull = store.pushpull(name, &values[..], priority)?;
                        pulls.push_back((pull, key, Some(round)));
                    }
                    _ => {
                        push(store, key, round, priority)?;
                        let pull = store.pull(name, -priority)?;
                        pulls.push_back((pull, key, Some(round)));
                    }
                }
                // The other worker has pushed everything of an earlier round before it waits for any
                // of this one, so these can be awaited at any time.
                while pulls.len() > 200 && pulls[0].2.is_none_or(|of| of < round) {
                    check(pulls.pop_front(), store)?;
                }
            }
            // In a random order.
            for _ in 0..pulls.len() / 2 {
                let place = dice.below(pulls.len());
                check(pulls.swap_remove_back(place), store)?;
            }
        }
        while let Some(pull) = pulls.pop_front() {
            check(Some(pull), store)?;
        }
        for key in dice.order(keys) {
            let last = (store.pull(key as i64, 0)?, key, Some(ROUNDS - 1));
            check(Some(last), store)?;
        }
        store.barrier()
    })?;
    Ok(())
}

fn check(pull: Option<(PendingPull, usize, Option<usize>)>, store: &KvStore) -> Result<()> {
    let Some((pull, key, round)) = pull else { return Ok(()) };
    let got = flat(&pull.wait()?);
    let expected = match round {
        None => numbers(key as u64, 0, 9, len(key)),
        Some(round) => value(key, store.num_workers(), round),
    };
    assert_same_bits(&got, &expected, &format!("key {key} after round {round:?}"));
    Ok(())
}

/// In dist_async the order is left to chance, so the servers add integers, whose sums are exact.
fn added_up(world: &World) -> Result<()> {
    let server = Server::new().updater(|_, received, stored| {
        stored.iter_mut().zip(received).for_each(|(stored, x)| *stored += x);
    });
    let config = StoreConfig {
        big_array_bound: BOUND,
        staleness_bound: Some(2),
        ..StoreConfig::new(StoreKind::DistAsync)
    };
    stage_with(world, &config, server, |store| {
        let mut dice = RandomChoices(store.rank() as u64 + 99);
        let zeros = |key: usize| (Key::Int(key as i64), tensor(&vec![0.0; len(key)], &[len(key)]));
        store.init_all((0..MANY_KEYS).map(zeros))?;
        let mut pulls = Vec::new();
        for round in 0..ROUNDS {
            for key in dice.order(MANY_KEYS) {
                let own = vec![(1 + store.rank()) as f32; len(key)];
                let pull = store.pushpull(key as i64, &own[..], dice.below(9) as i32)?;
                pulls.push((pull, key, (round + 1) * (1 + store.rank())));
            }
        }
        let workers = store.num_workers();
        let all = ROUNDS * workers * (workers + 1) / 2;
        for (pull, key, own) in pulls {
            let got = flat(&pull.wait()?);
            let is_between = |x: &f32| *x >= own as f32 && *x <= all as f32;
            assert!(got.iter().all(is_between), "key {key}: {got:?} from {own} to {all}");
        }
        store.barrier()?;
        for key in dice.order(MANY_KEYS) {
            let got = flat(&store.pull(key as i64, 0)?.wait()?);
            assert_eq!(got, vec![all as f32; len(key)], "key {key}");
        }
        assert!(store.stats()?.iter().all(|stats| stats.max_lead <= 2));
        store.barrier()
    })?;
    Ok(())
}

#[test]
fn ten_thousand_keys_in_any_order_have_the_values_of_the_reference() {
    Job::new("random sync", 2, 2).run_here().assert_succeeded();
}

#[test]
fn ten_thousand_keys_without_rounds_lose_no_push() {
    Job::new("random async", 2, 2).run_here().assert_succeeded();
}

/// With `CANDELABRUM_TESTS=all` there are ten thousand here, too.
#[test]
fn under_mpiexec_keys_in_any_order_have_the_values_of_the_reference() {
    let case = if runs_all() { "random sync" } else { "random sync few" };
    let Some(ended) = Job::new(case, 2, 2).over(Backend::Mpiexec).run() else { return };
    ended.assert_succeeded();
}
