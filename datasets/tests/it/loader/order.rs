//! Samples of shards that are shuffled within a window: the order follows from (seed, epoch), and
//! samples of few shards are under way at a time.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use candelabrum_datasets::{Dataset, ShardOptions, Shards, Shuffle, shards_in};

use super::{
    contents::{all, loader, single},
    kinds::{numbers, write_numbers},
};

const SHARDS: u32 = 12;
const IN_SHARD: u32 = 50;

/// 12 shards of 50 records each, with the numbers from 0 to 599.
fn write(folder: &Path) {
    for shard in 0..SHARDS {
        let path = folder.join(format!("{shard:02}.tfrecord"));
        write_numbers(&path, shard * IN_SHARD..(shard + 1) * IN_SHARD);
    }
}

fn open(folder: &Path) -> Shards {
    Shards::open(shards_in(folder).unwrap(), &ShardOptions::default()).unwrap()
}

#[test]
fn the_order_within_a_window_follows_from_seed_and_epoch_alone() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let data = Arc::new(numbers(open(folder.path())));
    assert_eq!(data.shards(), vec![IN_SHARD as usize; SHARDS as usize]);
    let epoch = |window, seed, epoch, threads| -> Vec<u32> {
        let sampler = single(data.len(), 16, seed).with_shuffle(Shuffle::Window(window));
        let rows = all(loader(&data, sampler, threads).epoch(epoch, 0).unwrap()).concat();
        rows.iter().map(|row| f64::from_bits(row[0]) as u32).collect()
    };
    let one = epoch(64, 1, 2, 0);
    for threads in [1, 2, 5] {
        assert_eq!(epoch(64, 1, 2, threads), one, "{threads} threads");
    }
    let others = [epoch(64, 1, 3, 1), epoch(64, 2, 2, 1), epoch(65, 1, 2, 1)];
    assert!(others.iter().all(|other| *other != one));
    for order in others.iter().chain([&one]) {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..SHARDS * IN_SHARD).collect::<Vec<_>>(), "each sample once");
    }
    // The samples of an epoch come from few shards at a time. A shuffle of everything takes them from
    // all.
    let shards_under_way = |order: &[u32]| {
        let shards = order.chunks(16).map(|batch| {
            batch.iter().map(|number| number / IN_SHARD).collect::<BTreeSet<_>>().len()
        });
        shards.max().unwrap()
    };
    let (window, full) = (shards_under_way(&one), shards_under_way(&epoch(600, 1, 2, 0)));
    println!("a batch has samples of at most {window} of {SHARDS} shards, without a window {full}");
    assert!(2 * window <= full);
    let in_order = epoch(1, 1, 2, 0);
    assert!(in_order.chunks(50).all(|shard| shard.is_sorted()), "only the shards are shuffled");
}

#[test]
fn a_window_over_shards_of_other_lengths_is_another_order() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let data = Arc::new(numbers(open(folder.path())));
    let sampler = single(data.len(), 10, 0).with_shuffle(Shuffle::Window(20));
    let as_one = sampler.epoch(0);
    let as_shards = sampler.epoch_of_shards(0, &data.shards()).unwrap();
    assert_ne!(as_one.permutation(), as_shards.permutation());
    let of_loader = all(loader(&data, sampler, 1).epoch(0, 0).unwrap()).concat();
    let of_loader = of_loader.iter().map(|row| f64::from_bits(row[0]) as u32);
    assert!(of_loader.eq(as_shards.permutation().iter().copied()));
}
