//! Parts of a dataset, each of which a rank may iterate alone.

use std::{path::Path, sync::Arc};

use candelabrum_datasets::{Dataset, Error, Remainder, ShardOptions, Shards, Shuffle, Subset};

use super::{
    contents::{Row, all, loader, single},
    kinds::{numbers, write_numbers},
};

/// 23 records in three shards, one of them empty.
fn shards(folder: &Path) -> Shards {
    let paths = ["a", "b", "c"].map(|name| folder.join(name).with_extension("tfrecord"));
    write_numbers(&paths[0], 0..9);
    write_numbers(&paths[1], []);
    write_numbers(&paths[2], 9..23);
    Shards::open(paths, &ShardOptions::default()).unwrap()
}

/// The samples of each part of so many, in the order of the first epoch of a run with a window.
fn parts(folder: &Path, count: usize, remainder: Remainder) -> Vec<Vec<Row>> {
    let part = |index| {
        let part = Subset::new(numbers(shards(folder)), index, count, remainder).unwrap();
        assert_eq!(part.shared_by(), count);
        let part = Arc::new(part);
        let sampler = single(part.len(), 3, 7).with_shuffle(Shuffle::Window(4));
        let loader = loader(&part, sampler, index % 3);
        assert_eq!(loader.epoch(0, 0).unwrap().count(), part.len().div_ceil(3));
        all(loader.epoch(0, 0).unwrap()).concat()
    };
    (0..count).map(part).collect()
}

fn numbers_in(rows: &[Row]) -> Vec<u32> {
    let mut numbers: Vec<u32> = rows.iter().map(|row| f64::from_bits(row[0]) as u32).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn parts_of_shards_have_each_sample_once_or_are_equal_in_size() {
    let folder = tempfile::tempdir().unwrap();
    for count in 1..=5_usize {
        let kept = parts(folder.path(), count, Remainder::Keep);
        assert_eq!(numbers_in(&kept.concat()), (0..23).collect::<Vec<_>>());
        let sizes: Vec<usize> = kept.iter().map(Vec::len).collect();
        assert!(sizes.iter().all(|size| (23 / count..=23 / count + 1).contains(size)));

        let dropped = parts(folder.path(), count, Remainder::Drop);
        assert!(dropped.iter().all(|part| part.len() == 23 / count));
        let seen = numbers_in(&dropped.concat());
        assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "no sample twice");

        let padded = parts(folder.path(), count, Remainder::Pad);
        assert!(padded.iter().all(|part| part.len() == 23_usize.div_ceil(count)));
        let mut seen = numbers_in(&padded.concat());
        seen.dedup();
        assert_eq!(seen.len(), 23, "every sample");
    }
}

#[test]
fn a_sample_is_augmented_in_a_part_as_in_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Arc::new(numbers(shards(folder.path())));
    let mut of_whole = all(loader(&whole, single(23, 3, 7), 1).epoch(0, 0).unwrap()).concat();
    let mut of_parts = parts(folder.path(), 3, Remainder::Keep).concat();
    of_whole.sort();
    of_parts.sort();
    assert_eq!(of_parts, of_whole);
    let distinct: std::collections::BTreeSet<u64> = of_whole.iter().map(|row| row[1]).collect();
    assert!(distinct.len() > 20, "the random numbers of samples differ");
}

#[test]
fn parts_of_parts_chosen_samples_and_first_ones_are_datasets() {
    let folder = tempfile::tempdir().unwrap();
    let half = || Subset::new(numbers(shards(folder.path())), 1, 2, Remainder::Keep).unwrap();
    let quarter = Subset::new(half(), 0, 2, Remainder::Keep).unwrap();
    assert_eq!((quarter.len(), quarter.shared_by()), (6, 4));
    let read = |data: &dyn Dataset<Batch = (candle_core::Tensor, candle_core::Tensor)>| {
        let samples: Vec<u32> = (0..data.len() as u32).collect();
        let (xs, _) = data.read(&samples, &candelabrum_datasets::Pass::evaluation()).unwrap();
        xs.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    assert_eq!(read(&quarter), [12.0, 13.0, 14.0, 15.0, 16.0, 17.0]);
    assert_eq!(read(&Subset::first(half(), 2)), [12.0, 13.0]);
    assert_eq!(Subset::first(half(), 1000).len(), 11);
    assert_eq!(read(&Subset::from_samples(half(), vec![3, 0, 3]).unwrap()), [15.0, 12.0, 15.0]);
    assert!(matches!(
        Subset::from_samples(half(), vec![11]),
        Err(Error::NoSuchSample { sample: 11, len: 11 })
    ));
    let Err(error) = Subset::new(half(), 2, 2, Remainder::Drop) else { panic!("no error") };
    assert!(error.to_string().starts_with("global rank 2 in a world of 2"), "{error}");
    let fingerprints = [half().fingerprint(), quarter.fingerprint()].map(|text| text.unwrap());
    assert_ne!(fingerprints[0], fingerprints[1]);
}
