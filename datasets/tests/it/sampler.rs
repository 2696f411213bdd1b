//! Properties of the sampler that make runs with different numbers of ranks equal.

use candelabrum_datasets::{DistributedSampler, EpochOrder, Remainder, SamplerConfig};
use proptest::prelude::*;

/// A valid configuration of rank 0, with batches no larger than a share.
fn configs(remainder: Remainder) -> impl Strategy<Value = SamplerConfig> {
    (1_usize..400, 1_usize..6)
        .prop_flat_map(|(len, world_size)| {
            let world_size = world_size.min(len);
            (Just(len), Just(world_size), 1..=len / world_size, any::<u64>(), any::<bool>())
        })
        .prop_map(move |(len, world_size, batch_size, seed, shuffle)| SamplerConfig {
            len,
            global_rank: 0,
            world_size,
            batch_size,
            seed,
            shuffle,
            remainder,
        })
}

fn any_config() -> impl Strategy<Value = SamplerConfig> {
    prop_oneof![configs(Remainder::Drop), configs(Remainder::Pad), configs(Remainder::Keep)]
}

/// One epoch for every rank.
fn ranks(config: SamplerConfig, epoch: usize) -> Vec<EpochOrder> {
    let rank = |global_rank| {
        DistributedSampler::new(SamplerConfig { global_rank, ..config }).unwrap().epoch(epoch)
    };
    (0..config.world_size).map(rank).collect()
}

/// All indices of all ranks in an epoch, in step and then rank order.
fn seen(config: SamplerConfig, epoch: usize) -> Vec<u32> {
    let ranks = ranks(config, epoch);
    (0..ranks[0].steps()).flat_map(|step| ranks.iter().flat_map(move |r| r.batch(step))).collect()
}

fn sorted(mut indices: Vec<u32>) -> Vec<u32> {
    indices.sort_unstable();
    indices
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_union_over_ranks_is_the_batch_of_a_single_rank(config in any_config(), epoch in 0_usize..3) {
        let single = SamplerConfig {
            world_size: 1,
            batch_size: config.batch_size * config.world_size,
            ..config
        };
        let single = DistributedSampler::new(single).unwrap().epoch(epoch);
        let ranks = ranks(config, epoch);
        for rank in &ranks {
            prop_assert_eq!(rank.steps(), single.steps());
        }
        for step in 0..single.steps() {
            let union: Vec<u32> = ranks.iter().flat_map(|rank| rank.batch(step)).collect();
            prop_assert_eq!(union, single.batch(step));
        }
    }

    #[test]
    fn drop_sees_no_sample_twice_and_counts_the_rest(config in configs(Remainder::Drop)) {
        let dropped = DistributedSampler::new(config).unwrap().dropped_per_epoch();
        let seen = sorted(seen(config, 1));
        prop_assert!(seen.windows(2).all(|pair| pair[0] < pair[1]));
        prop_assert_eq!(seen.len() + dropped, config.len);
        prop_assert!(dropped < config.batch_size * config.world_size);
    }

    #[test]
    fn keep_sees_every_sample_exactly_once(config in configs(Remainder::Keep)) {
        prop_assert_eq!(sorted(seen(config, 1)), (0..config.len as u32).collect::<Vec<_>>());
    }

    #[test]
    fn pad_sees_every_sample_in_full_batches(config in configs(Remainder::Pad)) {
        for rank in ranks(config, 1) {
            prop_assert!(rank.batches().all(|batch| batch.len() == config.batch_size));
        }
        let padded = DistributedSampler::new(config).unwrap().padded_per_epoch();
        let mut seen = sorted(seen(config, 1));
        prop_assert_eq!(seen.len(), config.len + padded);
        seen.dedup();
        prop_assert_eq!(seen.len(), config.len);
    }

    #[test]
    fn epochs_differ_and_ranks_agree_on_the_order(seed in any::<u64>(), epoch in 0_usize..1000) {
        let config = SamplerConfig {
            len: 100, global_rank: 0, world_size: 3, batch_size: 7, seed, shuffle: true,
            remainder: Remainder::Drop,
        };
        let now = ranks(config, epoch);
        prop_assert_eq!(now[0].permutation(), now[2].permutation());
        let later = ranks(config, epoch + 1);
        prop_assert_ne!(now[0].permutation(), later[0].permutation());
        prop_assert_eq!(sorted(now[0].permutation().to_vec()), (0..100).collect::<Vec<_>>());
    }
}
