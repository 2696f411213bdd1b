//! A position is enough to go on exactly, from any step, with any number of threads.

use std::sync::Arc;

use candelabrum_datasets::{Dataset, LoaderPosition, Shuffle};

use super::{
    contents::{Open, Row, all, loader, rows, single},
    kinds::{ForEach, for_each_kind, noisy},
};

/// The number of positions from which a loader went on.
#[derive(Default)]
struct Resumed(usize);

impl ForEach for Resumed {
    fn run<D: Dataset<Batch: Open>>(&mut self, kind: &str, data: Arc<D>) {
        let sampler = single(data.len(), 4, 1).with_shuffle(Shuffle::Window(9));
        let whole = loader(&data, sampler, 2);
        for epoch in 0..2 {
            let expected = all(whole.epoch(epoch, 0).unwrap());
            for taken in 0..=expected.len() {
                let mut before = whole.epoch(epoch, 0).unwrap();
                let first: Vec<Vec<Row>> =
                    before.by_ref().take(taken).map(|batch| rows(&batch.unwrap())).collect();
                assert_eq!(before.position(), LoaderPosition { epoch, step: taken });
                // A checkpoint is a file, and the program that reads it is another one.
                let saved = serde_json::to_string(&before.position()).unwrap();
                drop(before);
                let position = serde_json::from_str(&saved).unwrap();
                let rest = loader(&data, sampler, taken % 3).resume(position).unwrap();
                assert_eq!(rest.remaining(), expected.len() - taken);
                let both = [first, all(rest)].concat();
                assert_eq!(both, expected, "{kind}, epoch {epoch}, step {taken}");
                self.0 += 1;
            }
        }
    }
}

#[test]
fn a_loader_that_resumes_gives_exactly_the_batches_that_are_left() {
    let folder = tempfile::tempdir().unwrap();
    let mut resumed = Resumed::default();
    for_each_kind(folder.path(), &mut resumed);
    println!("{} positions: the rest of the epoch is equal", resumed.0);
    assert!(resumed.0 > 100);
}

#[test]
fn batches_in_the_queue_do_not_count_as_given() {
    let data = Arc::new(noisy(40));
    let mut batches = loader(&data, single(40, 2, 0), 3).epoch(5, 2).unwrap();
    assert_eq!(batches.position(), LoaderPosition { epoch: 5, step: 2 });
    batches.next().unwrap().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20)); // the threads read on
    assert_eq!(batches.position(), LoaderPosition { epoch: 5, step: 3 });
    assert_eq!(batches.count(), 17);
}

#[test]
fn a_position_after_the_end_leaves_nothing() {
    let data = Arc::new(noisy(10));
    let loader = loader(&data, single(10, 5, 0), 1);
    let mut batches = loader.resume(LoaderPosition { epoch: 1, step: 7 }).unwrap();
    assert!(batches.next().is_none());
    assert_eq!(batches.position(), LoaderPosition { epoch: 1, step: 2 });
}
