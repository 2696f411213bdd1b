//! Dense values: initialisation, assignment, sums, pulls, types, keys and counts.

use std::time::Duration;

use candelabrum_dist::World;
use candelabrum_kvstore::{Key, Result, StoreConfig, StoreKind};
use candle_core::{DType, Device, Tensor};

use super::suite::Suite;
use crate::harness::{StageResult, stage};
use crate::numbers::{assert_same_bits, flat, numbers, sum, tensor};

/// Lengths around the suite's bound and the numbers of servers, up to several pages.
const LENGTHS: [usize; 8] = [0, 1, 2, 7, 8, 9, 1000, 40_001];

pub(super) fn all(suite: &mut Suite<'_>) -> Result<()> {
    first_values(suite)?;
    assignments(suite)?;
    lists(suite)?;
    own_pushes(suite)?;
    in_one_message(suite)?;
    types_and_layouts(suite)?;
    negative_and_distant_keys(suite)
}

fn first_values(suite: &mut Suite<'_>) -> Result<()> {
    for (key, len) in (0..).zip(LENGTHS) {
        // Every worker has other values, and those of the first one count.
        suite.store.init(key, &tensor(&numbers(1, suite.rank, 0, len), &[len]))?;
        let got = suite.pull(&key.into())?;
        assert_same_bits(&got, &numbers(1, 0, 0, len), &format!("first values of {len}"));
    }
    let scalar = Tensor::new(suite.rank as f32 + 3.0, &Device::Cpu)?;
    let got = suite.store.broadcast(90, &scalar)?;
    assert_eq!((got.dims().len(), got.to_scalar::<f32>()?), (0, 3.0));
    let matrix = tensor(&numbers(2, suite.rank, 0, 12), &[3, 4]);
    let got = suite.store.broadcast(91, &matrix)?;
    assert_eq!((got.dims2()?, got.dtype()), ((3, 4), DType::F32));
    assert_same_bits(&flat(&got), &numbers(2, 0, 0, 12), "a broadcast");
    let several = (0..40).map(|n| (Key::Int(100 + n), tensor(&[n as f32; 11], &[11])));
    suite.store.init_all(several)?;
    for number in [0, 17, 39] {
        assert_same_bits(&suite.pull(&(100 + number).into())?, &[number as f32; 11], "of init_all");
    }
    Ok(())
}

/// Without an updater, a push assigns: in dist_sync the sum, in dist_async the push.
fn assignments(suite: &mut Suite<'_>) -> Result<()> {
    for (key, len) in (0..).zip(LENGTHS) {
        let key = Key::Int(key);
        for round in 0..3 {
            let push = |values: &[f32]| suite.store.push(&key, values, round as i32);
            let updates = suite.round(&key, |worker| numbers(3, worker, round, len), push)?;
            let expected = updates.last().expect("an update");
            assert_same_bits(&suite.pull(&key)?, expected, &format!("a push of {len}"));
            suite.store.barrier()?;
        }
    }
    Ok(())
}

fn lists(suite: &mut Suite<'_>) -> Result<()> {
    let key = Key::Int(200);
    suite.store.init(&key, &Tensor::zeros(19, DType::F32, &Device::Cpu)?)?;
    for count in [1, 2, 5] {
        let list = |worker: usize| -> Vec<Vec<f32>> {
            (0..count).map(|at| numbers(4, worker, at, 19)).collect()
        };
        let own: Vec<Tensor> = list(suite.rank).iter().map(|x| tensor(x, &[19])).collect();
        let push = |_: &[f32]| suite.store.push(&key, &own[..], 0);
        let updates = suite.round(&key, |worker| sum(&list(worker)), push)?;
        assert_same_bits(&suite.pull(&key)?, &updates[updates.len() - 1], "a list");
        suite.store.barrier()?;
    }
    Ok(())
}

/// A pull waits for its worker's own pushes.
fn own_pushes(suite: &mut Suite<'_>) -> Result<()> {
    if suite.is_sync {
        let key = Key::Int(300);
        suite.store.init(&key, &tensor(&[0.0; 9], &[9]))?;
        for round in 0..10 {
            std::thread::sleep(Duration::from_millis((suite.rank * 3) as u64));
            let all: Vec<_> = (0..suite.workers).map(|w| numbers(5, w, round, 9)).collect();
            suite.store.push(&key, &all[suite.rank][..], 0)?;
            assert_same_bits(&suite.pull(&key)?, &sum(&all), "the round of the own push");
        }
        return Ok(());
    }
    for worker in 0..suite.workers {
        suite.store.init(310 + worker as i64, &tensor(&[0.0; 9], &[9]))?;
    }
    let key = Key::Int(310 + suite.rank as i64);
    for round in 0..50 {
        let values = numbers(5, suite.rank, round, 9);
        suite.store.push(&key, &values[..], -(round as i32))?;
        let got = flat(&suite.store.pull(&key, round as i32)?.wait()?);
        assert_same_bits(&got, &values, "the own push");
    }
    suite.store.barrier()
}

fn in_one_message(suite: &mut Suite<'_>) -> Result<()> {
    let key = Key::Int(400);
    suite.store.init(&key, &tensor(&[0.0; 30], &[5, 6]))?;
    for round in 0..3 {
        let all: Vec<_> = (0..suite.workers).map(|w| numbers(6, w, round, 30)).collect();
        let turns = if suite.is_sync { 1 } else { suite.workers };
        for turn in 0..turns {
            if suite.is_sync || turn == suite.rank {
                let own = tensor(&all[suite.rank], &[5, 6]);
                let got = suite.store.pushpull(&key, &own, 0)?.wait()?;
                assert_eq!(got.dims(), [5, 6]);
                let expected = if suite.is_sync { sum(&all) } else { all[turn].clone() };
                assert_same_bits(&flat(&got), &expected, "a pushpull");
            }
            suite.store.barrier()?;
        }
        suite.pull(&key)?;
        suite.store.barrier()?;
    }
    Ok(())
}

fn types_and_layouts(suite: &mut Suite<'_>) -> Result<()> {
    let key = Key::Int(500);
    let values: Vec<f32> = (0..24).map(|x| x as f32 / 4.0 - 3.0).collect();
    // Multiples of 1/4 are the same numbers in every type.
    for (number, dtype) in (0..).zip([DType::F16, DType::BF16, DType::F32]) {
        let value = tensor(&values, &[4, 6]).to_dtype(dtype)?;
        suite.store.init(510 + number, &value)?;
        assert_same_bits(&suite.pull(&(510 + number).into())?, &values, "a first value");
    }
    suite.store.init(&key, &tensor(&values, &[4, 6]))?;
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let transposed = tensor(&values, &[6, 4]).to_dtype(dtype)?.t()?;
        let whole = tensor(&values, &[24]).to_dtype(dtype)?;
        let narrow = Tensor::cat(&[&whole, &whole], 0)?.narrow(0, 7, 24)?.reshape((4, 6))?;
        for value in [transposed, narrow] {
            let expected = flat(&value.to_dtype(DType::F32)?);
            let push = |_: &[f32]| suite.store.push(&key, &value, 0);
            let updates = suite.round(&key, |_| expected.clone(), push)?;
            assert_same_bits(&suite.pull(&key)?, &updates[updates.len() - 1], "another layout");
            suite.store.barrier()?;
        }
    }
    Ok(())
}

fn negative_and_distant_keys(suite: &mut Suite<'_>) -> Result<()> {
    for key in [-1, i64::MIN, i64::MAX] {
        let got = suite.store.broadcast(key, &tensor(&[key as f32; 3], &[3]))?;
        assert_eq!(flat(&got), [key as f32; 3]);
    }
    Ok(())
}

pub(super) fn string_keys(world: &World, config: &StoreConfig) -> Result<()> {
    stage(world, config, |store| {
        let mut suite = Suite::new(store);
        let names = ["conv1.weight", "", "b", "ß \"quoted\" \\ \n line"];
        for (number, name) in (0..).zip(names) {
            let value = tensor(&numbers(number, suite.rank, 0, 50), &[50]);
            suite.store.init(name, &value)?;
        }
        for (number, name) in (0..).zip(names) {
            let key = Key::from(name);
            assert_same_bits(&suite.pull(&key)?, &numbers(number, 0, 0, 50), name);
            suite.store.barrier()?;
            let push = |values: &[f32]| suite.store.push(&key, values, 0);
            let updates = suite.round(&key, |worker| numbers(number, worker, 1, 50), push)?;
            assert_same_bits(&suite.pull(&key)?, &updates[updates.len() - 1], name);
        }
        suite.store.barrier()
    })?;
    Ok(())
}

/// What servers count of a known number of requests.
pub(super) fn counts(world: &World, kind: StoreKind) -> Result<()> {
    const KEYS: usize = 10;
    const ROUNDS: usize = 3;
    let part = stage(world, &StoreConfig::new(kind), |store| {
        let suite = Suite::new(store);
        for key in 0..KEYS {
            store.init(key as i64, &tensor(&[0.0; 5], &[5]))?;
        }
        for key in 0..KEYS {
            for _ in 0..ROUNDS {
                let key = Key::Int(key as i64);
                suite.round(&key, |_| vec![1.0; 5], |values| store.push(&key, values, 0))?;
            }
        }
        store.barrier()?;
        let stats = store.stats()?;
        store.barrier()?;
        let updates = if suite.is_sync { 1 } else { suite.workers } * KEYS * ROUNDS;
        let of_all = |count: &dyn Fn(usize) -> u64| (0..stats.len()).map(count).sum::<u64>();
        assert_eq!(of_all(&|server| stats[server].updates), updates as u64);
        for worker in 0..suite.workers {
            let pushes = (KEYS * ROUNDS) as u64;
            assert_eq!(of_all(&|server| stats[server].pushes[worker]), pushes, "{stats:?}");
            assert_eq!(of_all(&|server| stats[server].staleness[worker].count), pushes);
            // Each worker pulls once after each push, and so knows the newest version, but in
            // dist_async not that of the workers before it in the same round.
            let stale = of_all(&|server| stats[server].staleness[worker].sum);
            let rounds_with_a_version = (ROUNDS - 1) * KEYS;
            let expected = match kind {
                StoreKind::DistAsync => (suite.workers - 1) * rounds_with_a_version + worker * KEYS,
                _ => 0,
            };
            assert_eq!(stale, expected as u64, "worker {worker}: {stats:?}");
        }
        let ranks: Vec<usize> = stats.iter().map(|stats| stats.rank).collect();
        assert_eq!(ranks, Vec::from_iter(suite.workers..suite.workers + ranks.len()));
        assert!(stats.iter().all(|stats| stats.longest_run <= 1), "{stats:?}");
        assert!(store.traffic().bytes_sent > 0);
        Ok(())
    })?;
    if let StageResult::OfServer(stats) = part {
        assert_eq!(stats.rank, world.everyone().rank());
        assert!(stats.requests.iter().all(|count| *count > 0), "{stats:?}");
    }
    Ok(())
}
