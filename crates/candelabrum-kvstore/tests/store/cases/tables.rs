//! Tables of rows: first values, pushes in any order with repetitions, and pulls of some rows.

use candelabrum_kvstore::{Key, Result, RowInit, RowSparse};
use candelabrum_optim::{AdamW, Recipe, Sgd};

use super::suite::Suite;
use crate::numbers::{ByHand, Digest, assert_same_bits, numbers};

const ROWS: usize = 23;
const DIM: usize = 3;

const NORMAL: RowInit = RowInit::Normal { std: 0.5, seed: 7 };

/// Returns the digest of the first values.
pub(super) fn all(suite: &Suite<'_>) -> Result<Digest> {
    let store = suite.store;
    let every: Vec<u32> = (0..ROWS as u32).collect();
    store.init_rows("zeros", ROWS, DIM, RowInit::Zeros)?;
    let zeros = store.row_sparse_pull("zeros", &every, 0)?.wait()?;
    assert_eq!(zeros, RowSparse { rows: every.clone(), values: vec![0.0; ROWS * DIM] });
    // Fewer rows than some worlds have servers.
    store.init_rows("short", 1, 5, NORMAL)?;
    assert_eq!(store.row_sparse_pull("short", &[0, 0], 0)?.wait()?.values.len(), 5);

    store.init_rows("normal", ROWS, DIM, NORMAL)?;
    // Rows exist from their first use on, and their values depend on neither.
    let some = store.row_sparse_pull("normal", &[22, 3, 3, 0], 0)?.wait()?;
    assert_eq!(some.rows, [0, 3, 22]);
    let first = store.row_sparse_pull("normal", &every, 0)?.wait()?.values;
    for (row, values) in some.rows.iter().zip(some.values.chunks(DIM)) {
        let row = *row as usize;
        assert_same_bits(values, &first[row * DIM..(row + 1) * DIM], "a row that was pulled twice");
    }
    assert!(first.iter().all(|x| *x != 0.0 && x.abs() < 5.0), "{first:?}");
    assert_eq!(store.row_sparse_pull("normal", &[], 0)?.wait()?, RowSparse::default());
    let mut digest = Digest::default();
    digest.add(&first);

    assigned(suite)?;
    let divide_by = suite.workers as f32;
    for (number, recipe) in
        [Recipe::from(Sgd::new(0.1).momentum(0.9)), Recipe::from(AdamW::new(0.01))]
            .into_iter()
            .enumerate()
    {
        store.barrier()?;
        store.set_optimizer(recipe.clone(), divide_by)?;
        trained(suite, &Key::from(format!("table {number}")), &recipe, divide_by)?;
    }
    store.barrier()?;
    Ok(digest)
}

/// The rows that a worker pushes in a round: unsorted, some twice, and none on one worker.
fn pushed(worker: usize, round: usize) -> RowSparse {
    let all = [[5_u32, 22, 5, 1], [0, 5, 21, 0], [9, 8, 7, 9], [22, 0, 11, 11]];
    let rows = match (worker, round) {
        (1, 1) => Vec::new(),
        (worker, round) => all[(worker + round) % all.len()].to_vec(),
    };
    let values = numbers(12, worker, round, rows.len() * DIM);
    RowSparse { rows, values }
}

/// By row: the sum of the pushes, in their order. `None` for a row that was not pushed.
fn sums(pushes: &[RowSparse]) -> Vec<Option<Vec<f32>>> {
    let mut sums = vec![None; ROWS];
    for push in pushes {
        for (row, values) in push.rows.iter().zip(push.values.chunks(DIM)) {
            match &mut sums[*row as usize] {
                none @ None => *none = Some(values.to_vec()),
                Some(sum) => sum.iter_mut().zip(values).for_each(|(sum, x)| *sum += x),
            }
        }
    }
    sums
}

/// Every worker pushes rows. Returns the pushes, update by update.
fn round(suite: &Suite<'_>, key: &Key, round: usize) -> Result<Vec<Vec<RowSparse>>> {
    let all: Vec<RowSparse> = (0..suite.workers).map(|worker| pushed(worker, round)).collect();
    let turns = if suite.is_sync { 1 } else { suite.workers };
    for turn in 0..turns {
        if suite.is_sync || turn == suite.rank {
            suite.store.push_rows(key, &all[suite.rank], 0)?;
            // A pull waits for the own pushes on the servers of its rows.
            let every: Vec<u32> = (0..ROWS as u32).collect();
            suite.store.row_sparse_pull(key, &every, 0)?.wait()?;
        }
        suite.store.barrier()?;
    }
    Ok(if suite.is_sync { vec![all] } else { all.into_iter().map(|push| vec![push]).collect() })
}

fn assigned(suite: &Suite<'_>) -> Result<()> {
    let key = Key::from("assigned");
    let store = suite.store;
    store.init_rows(&key, ROWS, DIM, NORMAL)?;
    let every: Vec<u32> = (0..ROWS as u32).collect();
    let mut expected = store.row_sparse_pull(&key, &every, 0)?.wait()?.values;
    store.barrier()?;
    for number in 0..3 {
        for update in round(suite, &key, number)? {
            for (row, sum) in sums(&update).into_iter().enumerate() {
                if let Some(sum) = sum {
                    expected[row * DIM..(row + 1) * DIM].copy_from_slice(&sum);
                }
            }
        }
        let got = store.row_sparse_pull(&key, &every, 0)?.wait()?;
        assert_same_bits(&got.values, &expected, "assigned rows");
        store.barrier()?;
    }
    Ok(())
}

/// One optimizer by hand for each row. A row that is not pushed stays as it is, but the steps of its
/// optimizer are counted.
fn trained(suite: &Suite<'_>, key: &Key, recipe: &Recipe, divide_by: f32) -> Result<()> {
    let store = suite.store;
    store.init_rows(key, ROWS, DIM, NORMAL)?;
    let every: Vec<u32> = (0..ROWS as u32).collect();
    let first = store.row_sparse_pull(key, &every, 0)?.wait()?.values;
    store.barrier()?;
    let row = |values: &[f32]| ByHand::new(recipe, divide_by, "a row", values.to_vec());
    let mut rows: Vec<ByHand> = first.chunks(DIM).map(row).collect();
    for number in 0..5 {
        for update in round(suite, key, number)? {
            for (row, sum) in rows.iter_mut().zip(sums(&update)) {
                match sum {
                    Some(sum) => row.update(sum),
                    None => row.pass(),
                }
            }
        }
        let expected: Vec<f32> = rows.iter().flat_map(|row| row.values.iter().copied()).collect();
        let got = store.row_sparse_pull(key, &every, 0)?.wait()?;
        let what = format!("rows after round {number} of {}", recipe.build().describe());
        assert_same_bits(&got.values, &expected, &what);
        store.barrier()?;
    }
    Ok(())
}
