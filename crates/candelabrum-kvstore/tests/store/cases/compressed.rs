//! Compressed pushes against a sequential reference that keeps the residuals of every worker.

use candelabrum_kvstore::{Compression, Key, Result};
use candelabrum_optim::{Recipe, Sgd};

use super::suite::Suite;
use crate::numbers::{ByHand, Compressor, assert_same_bits, numbers, tensor};

const LEN: usize = 64;

const ALL: [Compression; 8] = [
    Compression::None,
    Compression::Fp16,
    Compression::Bf16,
    Compression::TwoBit { threshold: 0.5 },
    Compression::OneBit { threshold: 0.125 },
    Compression::TopK { share: 0.25 },
    Compression::Threshold { magnitude: 0.75 },
    Compression::Threshold { magnitude: 0.0 },
];

pub(super) fn all(suite: &mut Suite<'_>) -> Result<()> {
    let recipe = Recipe::from(Sgd::new(0.5));
    suite.store.set_optimizer(recipe.clone(), 1.0)?;
    for (number, compression) in ALL.into_iter().enumerate() {
        // The best K of a divided value are the best of each part.
        let digest = suite.digest;
        one(suite, &Key::Int(700 + number as i64), compression, &recipe)?;
        if matches!(compression, Compression::TopK { .. }) {
            suite.digest = digest;
        }
    }
    suite.store.set_gradient_compression(Compression::None)?;
    suite.store.barrier()
}

fn one(suite: &mut Suite<'_>, key: &Key, compression: Compression, recipe: &Recipe) -> Result<()> {
    suite.store.init(key, &tensor(&numbers(10, 0, 0, LEN), &[LEN]))?;
    suite.store.set_gradient_compression(compression)?;
    let parts = if suite.store.config().big_array_bound <= LEN { servers(suite)? } else { 1 };
    assert_eq!(LEN % (4 * parts), 0, "the test's arithmetic");
    let len = LEN / parts;
    let none = Compressor::new(compression, len);
    let mut workers = vec![vec![none; parts]; suite.workers];
    let mut by_hand = ByHand::new(recipe, 1.0, &key.to_string(), numbers(10, 0, 0, LEN));
    for round in 0..6 {
        let pushed = |worker: usize| numbers(11, worker, round, LEN);
        let sent: Vec<Vec<f32>> = (0..suite.workers)
            .map(|worker| {
                let values = pushed(worker);
                let parts = workers[worker].iter_mut().zip(values.chunks(len));
                parts.flat_map(|(part, values)| part.send(values)).collect()
            })
            .collect();
        let push = |_: &[f32]| suite.store.push(key, &pushed(suite.rank)[..], 0);
        let updates = suite.round(key, |worker| sent[worker].clone(), push)?;
        updates.into_iter().for_each(|update| by_hand.update(update));
        let what = format!("round {round} of {compression:?}");
        assert_same_bits(&suite.pull(key)?, &by_hand.values, &what);
        suite.store.barrier()?;
    }
    let rest = workers[suite.rank].iter().flat_map(Compressor::residual).map(|x| f64::from(*x));
    let expected = rest.map(|x| x * x).sum::<f64>().sqrt();
    let all = suite.store.residual_norm();
    assert!(!compression.keeps_residual() || (all > 0.0 || expected == 0.0), "{all}");
    assert!(all.is_finite() && all >= expected * (1.0 - 1e-9), "{all} for {expected}");
    // A push without compression sends the rest, too.
    let last: Vec<Vec<f32>> = workers
        .iter()
        .map(|parts| {
            let rest = parts.iter().flat_map(|part| part.residual().iter().copied());
            match compression.keeps_residual() {
                true => rest.map(|rest| 1.0 + rest).collect(),
                false => vec![1.0; LEN],
            }
        })
        .collect();
    suite.store.set_gradient_compression(Compression::None)?;
    let push = |_: &[f32]| suite.store.push(key, &[1.0_f32; LEN][..], 0);
    let updates = suite.round(key, |worker| last[worker].clone(), push)?;
    updates.into_iter().for_each(|update| by_hand.update(update));
    assert_same_bits(&suite.pull(key)?, &by_hand.values, &format!("the rest of {compression:?}"));
    let left = suite.store.residual_norm();
    assert!(left <= 1e-6, "{left}");
    suite.store.barrier()
}

/// The number of servers.
fn servers(suite: &Suite<'_>) -> Result<usize> {
    Ok(suite.store.stats()?.len())
}
