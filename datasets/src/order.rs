//! The order of all samples in one pass through the data: as stored, shuffled, shuffled within a window,
//! or shuffled within shards.
//!
//! A full shuffle reads from random places of the data, which is slow where the data are large files.
//! The shuffle within a window is that of tf.data and WebDataset: it takes the shards in random order,
//! keeps a buffer of the next n samples, and gives out a random sample of the buffer each time. So a
//! reader passes through its files almost in order. Here the buffer holds numbers of samples and not
//! the samples themselves. The order is thus a pure function of (seed, pass, lengths of the shards):
//! every rank computes the same one, and to resume needs nothing but a position.

use crate::rng::{Purpose, below, rng, shuffle};

/// How the samples of an epoch are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shuffle {
    /// The samples keep their order in every epoch.
    No,
    /// Every order of all samples is equally probable. Each epoch has another one.
    #[default]
    Full,
    /// The shards are in random order, and the samples are shuffled within a window of so many
    /// samples that moves over them. Each epoch has another order.
    ///
    /// A sample comes at most window - 1 places earlier than in the order of the shards. A window of
    /// 0 or 1 only shuffles the shards. A window of all samples shuffles as [`Full`](Self::Full)
    /// does, in another order.
    Window(usize),
    /// The samples of each shard are shuffled and cut into global batches, and the batches of all shards
    /// come in random order. Each epoch has another order.
    ///
    /// So a global batch has samples of one shard alone, for instance texts of like lengths
    /// ([`PaddedTexts::bucketed`](crate::PaddedTexts::bucketed)), whatever the number of ranks. The samples
    /// that do not fill a batch of their shard come last, those of like shards side by side, and begin with
    /// another shard in each epoch.
    WithinShards,
}

impl From<bool> for Shuffle {
    /// [`Full`](Self::Full) for `true`, [`No`](Self::No) for `false`.
    fn from(shuffle: bool) -> Self {
        if shuffle { Self::Full } else { Self::No }
    }
}

/// The order of `len` samples in the pass with this number. `shards` has the lengths of the shards,
/// whose sum is `len`, which fits into 32 bits. `batch` is the number of samples in a global batch.
pub(crate) fn permutation(
    len: usize,
    shards: &[usize],
    how: Shuffle,
    batch: usize,
    seed: u64,
    pass: u64,
) -> Vec<u32> {
    match how {
        Shuffle::No => (0..len as u32).collect(),
        Shuffle::Full => {
            let mut order: Vec<u32> = (0..len as u32).collect();
            shuffle(&mut rng(seed, Purpose::Shuffle, pass, 0), &mut order);
            order
        }
        Shuffle::Window(window) => {
            let mut order = in_order_of_shards(shards, seed, pass);
            shuffle_within(&mut order, window, seed, pass);
            order
        }
        Shuffle::WithinShards => batches_of_shards(shards, batch, seed, pass),
    }
}

/// The samples of each shard.
fn ranges(shards: &[usize]) -> Vec<std::ops::Range<u32>> {
    let mut start = 0;
    let mut ranges = Vec::with_capacity(shards.len());
    for &len in shards {
        ranges.push(start..start + len as u32);
        start += len as u32;
    }
    ranges
}

/// All samples, shard by shard, with the shards in random order.
fn in_order_of_shards(shards: &[usize], seed: u64, pass: u64) -> Vec<u32> {
    let mut ranges = ranges(shards);
    shuffle(&mut rng(seed, Purpose::ShuffleShards, pass, 0), &mut ranges);
    ranges.into_iter().flatten().collect()
}

/// Batches of the samples of one shard each, in random order, and then the samples that fill no batch.
fn batches_of_shards(shards: &[usize], batch: usize, seed: u64, pass: u64) -> Vec<u32> {
    let (mut batches, mut rests) = (Vec::new(), Vec::new());
    for (range, shard) in ranges(shards).into_iter().zip(0..) {
        let mut samples: Vec<u32> = range.collect();
        shuffle(&mut rng(seed, Purpose::ShuffleWithinShards, pass, shard), &mut samples);
        let full = samples.chunks_exact(batch);
        rests.push(full.remainder().to_vec());
        batches.extend(full.map(<[u32]>::to_vec));
    }
    // A generator that no shard has: there are fewer shards.
    let mut rng = rng(seed, Purpose::ShuffleWithinShards, pass, u64::MAX);
    shuffle(&mut rng, &mut batches);
    // Without this, it would always be the samples of the last shard that are dropped.
    let first = below(&mut rng, rests.len() as u32) as usize;
    rests.rotate_left(first);
    batches.into_iter().chain(rests).flatten().collect()
}

/// Shuffles within a window that moves over the items.
///
/// The buffer is the window's part of the vector itself. The item that leaves the buffer is swapped
/// to its front, and the window moves on by one place.
fn shuffle_within(order: &mut [u32], window: usize, seed: u64, pass: u64) {
    let mut rng = rng(seed, Purpose::ShuffleWindow, pass, 0);
    for front in 0..order.len() {
        let buffered = window.min(order.len() - front);
        order.swap(front, front + below(&mut rng, buffered as u32) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_orders_of_a_seed_and_a_pass_never_change() {
        let order = |how, pass| permutation(12, &[4, 3, 5], how, 2, 0, pass);
        assert_eq!(order(Shuffle::No, 1), (0..12).collect::<Vec<_>>());
        assert_eq!(order(Shuffle::Window(1), 0), [4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3]);
        assert_eq!(order(Shuffle::Window(3), 0), [5, 4, 8, 9, 10, 11, 6, 0, 2, 7, 1, 3]);
        assert_eq!(order(Shuffle::Window(3), 1), [9, 10, 8, 11, 5, 4, 7, 1, 0, 2, 6, 3]);
        assert_eq!(order(Shuffle::Full, 0), [5, 6, 9, 0, 11, 1, 8, 4, 10, 7, 2, 3]);
    }

    #[test]
    fn a_window_of_one_keeps_the_samples_of_a_shard_together_and_in_order() {
        let mut first_shards = [0; 3];
        for pass in 0..300 {
            let order = permutation(9, &[2, 3, 4], Shuffle::Window(1), 2, 5, pass);
            assert_eq!(order, permutation(9, &[2, 3, 4], Shuffle::Window(0), 2, 5, pass));
            for shard in [0..2, 2..5, 5..9] {
                let start = order.iter().position(|&sample| sample == shard.start).unwrap();
                let len = shard.len();
                assert_eq!(order[start..start + len], shard.collect::<Vec<_>>());
            }
            let shard = [0, 2, 5].iter().position(|&start| start == order[0]).unwrap();
            first_shards[shard] += 1;
        }
        assert!(first_shards.iter().all(|count| (70..130).contains(count)), "{first_shards:?}");
    }

    #[test]
    fn no_sample_comes_more_than_a_window_too_early() {
        let (len, window) = (1000, 50);
        let order = permutation(len, &[len], Shuffle::Window(window), 2, 1, 0);
        let early = order.iter().zip(0..).map(|(&sample, place)| i64::from(sample) - place);
        assert_eq!(early.max(), Some(window as i64 - 1));
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..len as u32).collect::<Vec<_>>());
    }

    #[test]
    fn a_window_over_everything_puts_every_sample_first_equally_often() {
        let mut first = [0; 5];
        for pass in 0..5000 {
            first[permutation(5, &[5], Shuffle::Window(9), 2, 2, pass)[0] as usize] += 1;
        }
        assert!(first.iter().all(|count| (880..1120).contains(count)), "{first:?}");
    }
    #[test]
    fn batches_within_shards_have_samples_of_one_shard_and_the_rest_comes_last() {
        let shards = [7, 0, 4, 10];
        let shard_of = |sample: &u32| [7, 11, 21].partition_point(|end| end <= sample);
        let mut last = [0; 3];
        for pass in 0..300 {
            let order = permutation(21, &shards, Shuffle::WithinShards, 3, 4, pass);
            // 2 batches of the first shard, 1 of the third and 3 of the last one: 18 samples, and 3 are left.
            for batch in order[..18].chunks(3) {
                assert!(batch.iter().all(|sample| shard_of(sample) == shard_of(&batch[0])));
            }
            last[shard_of(&order[20])] += 1;
            let mut sorted = order;
            sorted.sort_unstable();
            assert_eq!(sorted, (0..21).collect::<Vec<_>>());
        }
        assert!(last.iter().all(|count| *count > 40), "{last:?}");
        let order = |pass| permutation(21, &shards, Shuffle::WithinShards, 3, 4, pass);
        assert_ne!(order(0), order(1));
        assert!(permutation(0, &[], Shuffle::WithinShards, 3, 4, 0).is_empty());
    }
}
