//! The promise of the sampler: N ranks with batches of B samples see together, step by step, what one
//! rank with batches of N * B sees. Not only the numbers of the samples are equal, but all numbers in
//! the batches.

use std::sync::Arc;

use candelabrum_datasets::{Dataset, DistributedSampler, Remainder, SamplerConfig, Shuffle};

use super::{
    contents::{Open, Row, all, loader},
    kinds::{ForEach, for_each_kind},
};

/// How many batches were compared.
#[derive(Default)]
struct Compared {
    settings: usize,
    batches: usize,
    samples: usize,
}

impl ForEach for Compared {
    fn run<D: Dataset<Batch: Open>>(&mut self, kind: &str, data: Arc<D>) {
        for (world_size, batch_size) in [(2, 1), (2, 4), (3, 2), (4, 2), (5, 1)] {
            for remainder in [Remainder::Drop, Remainder::Pad, Remainder::Keep] {
                for shuffle in [Shuffle::No, Shuffle::Full, Shuffle::Window(7)] {
                    let setting = (world_size, batch_size, remainder, shuffle);
                    for epoch_size in [data.len(), data.len() / 2 + 3] {
                        for epoch in [0, 3] {
                            let setting = (setting, epoch_size, epoch);
                            self.compare(kind, &data, setting);
                        }
                    }
                }
            }
        }
        // An evaluation, in which nothing is random.
        let sampler = |rank, world_size, batch_size| {
            let setting = (world_size, batch_size, Remainder::Keep, Shuffle::No);
            sampler(data.len(), rank, setting, data.len())
        };
        let expected = all(loader(&data, sampler(0, 1, 6), 0).evaluation().unwrap());
        let ranks: Vec<_> = (0..3)
            .map(|rank| all(loader(&data, sampler(rank, 3, 2), 2).evaluation().unwrap()))
            .collect();
        self.settings += 1;
        self.join(kind, &ranks, &expected);
    }
}

type Setting = (usize, usize, Remainder, Shuffle);

fn sampler(
    len: usize,
    global_rank: usize,
    (world_size, batch_size, remainder, shuffle): Setting,
    epoch_size: usize,
) -> DistributedSampler {
    let config = SamplerConfig {
        len,
        global_rank,
        world_size,
        batch_size,
        seed: 9,
        shuffle: true,
        remainder,
    };
    let sampler = DistributedSampler::new(config).unwrap().with_shuffle(shuffle);
    sampler.with_epoch_size(epoch_size).unwrap()
}

impl Compared {
    fn compare<D: Dataset<Batch: Open>>(
        &mut self,
        kind: &str,
        data: &Arc<D>,
        (setting, epoch_size, epoch): (Setting, usize, usize),
    ) {
        let (world_size, batch_size, remainder, shuffle) = setting;
        let alone = (1, world_size * batch_size, remainder, shuffle);
        let alone = sampler(data.len(), 0, alone, epoch_size);
        let expected = all(loader(data, alone, 0).epoch(epoch, 0).unwrap());
        let rank = |rank| {
            let sampler = sampler(data.len(), rank, setting, epoch_size);
            // Ranks need not have the same number of threads.
            all(loader(data, sampler, rank % 3).epoch(epoch, 0).unwrap())
        };
        let ranks: Vec<_> = (0..world_size).map(rank).collect();
        self.settings += 1;
        self.join(&format!("{kind}, {setting:?}, {epoch_size}, {epoch}"), &ranks, &expected);
    }

    /// Joins the batches of the ranks at each step, and compares them with those of one rank.
    fn join(&mut self, what: &str, ranks: &[Vec<Vec<Row>>], expected: &[Vec<Row>]) {
        assert!(ranks.iter().all(|rank| rank.len() == expected.len()), "{what}: in step");
        for (step, expected) in expected.iter().enumerate() {
            let union: Vec<&Row> = ranks.iter().flat_map(|rank| &rank[step]).collect();
            assert_eq!(union, expected.iter().collect::<Vec<_>>(), "{what}, step {step}");
            self.samples += union.len();
        }
        self.batches += expected.len();
    }
}

#[test]
fn ranks_see_together_what_one_rank_sees() {
    let folder = tempfile::tempdir().unwrap();
    let mut compared = Compared::default();
    for_each_kind(folder.path(), &mut compared);
    let Compared { settings, batches, samples } = compared;
    println!("{settings} settings: {batches} global batches of {samples} samples are equal");
    assert_eq!(settings, 10 * (5 * 3 * 3 * 2 * 2 + 1));
}
