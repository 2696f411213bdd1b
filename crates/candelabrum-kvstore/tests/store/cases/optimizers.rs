//! Updates by optimizers and by updaters, bit for bit those of the same optimizer run by hand.

use candelabrum_dist::World;
use candelabrum_kvstore::{Key, Result, Server, StoreConfig};
use candelabrum_optim::{
    Adafactor, Adam, AdamW, AdamW8bit, Lamb, Muon, ParamGroup, Recipe, Schedule, Sgd,
};

use super::suite::Suite;
use crate::harness::stage_with;
use crate::numbers::{ByHand, assert_same_bits, numbers, tensor};

const STEPS: usize = 4;

pub(super) fn all(suite: &mut Suite<'_>) -> Result<()> {
    let (mean, scheduled) = (suite.workers as f32, Schedule::Constant(0.1).then(2, 0.01));
    let sgd = Recipe::from(Sgd::new(scheduled).momentum(0.9).weight_decay(0.01));
    let adam_w = Recipe::from(AdamW::new(0.01));
    // A group selects keys by their names.
    let grouped = Recipe::from(Sgd::new(0.1).group(ParamGroup::matching("*13").lr_scale(0.5)));
    let plain = Recipe::from(Sgd::new(0.1));
    let cases = [
        (610, &sgd, &sgd, mean),
        (611, &adam_w, &adam_w, mean),
        (612, &adam_w, &adam_w, 1.0),
        (613, &grouped, &grouped, 3.0),
        (614, &grouped, &plain, 3.0),
    ];
    for (key, ..) in cases {
        suite.store.init(key, &tensor(&numbers(7, 0, 0, 101), &[101]))?;
    }
    for (key, recipe, by_hand, divide_by) in cases {
        // The state is lost with the next optimizer, even the same one.
        for _ in 0..2 {
            suite.store.set_optimizer(recipe.clone(), divide_by)?;
            train(suite, &key.into(), by_hand, divide_by)?;
        }
    }
    // An optimizer that needs a whole value has it if no value is divided.
    if suite.store.config().big_array_bound == usize::MAX {
        let digest = suite.digest;
        suite.store.init(620, &tensor(&numbers(7, 0, 0, 101), &[101]))?;
        let whole: [Recipe; 5] = [
            Lamb::new(0.05).into(),
            Muon::new(0.05).into(),
            Adafactor::new(0.05).into(),
            AdamW8bit::new(0.05).min_8bit_size(0).into(),
            Adam::new(0.05).bf16_state().into(),
        ];
        for recipe in whole {
            suite.store.set_optimizer(recipe.clone(), 1.0)?;
            train(suite, &620.into(), &recipe, 1.0)?;
        }
        // The store with divided values takes no such steps.
        suite.digest = digest;
    }
    suite.store.set_optimizer(Sgd::new(0.5), 1.0)
}

fn train(suite: &mut Suite<'_>, key: &Key, recipe: &Recipe, divide_by: f32) -> Result<()> {
    let start = suite.pull(key)?;
    suite.store.barrier()?;
    let mut by_hand = ByHand::new(recipe, divide_by, &key.to_string(), start);
    for step in 0..STEPS {
        let (push, len) = (|values: &[f32]| suite.store.push(key, values, 0), by_hand.values.len());
        let updates = suite.round(key, |worker| numbers(8, worker, step, len), push)?;
        updates.into_iter().for_each(|update| by_hand.update(update));
        let what = format!("step {step} of {}", recipe.build().describe());
        assert_same_bits(&suite.pull(key)?, &by_hand.values, &what);
        suite.store.barrier()?;
    }
    Ok(())
}

/// An updater of each server, in the program that all ranks run.
pub(super) fn by_the_servers_updater(world: &World, config: &StoreConfig) -> Result<()> {
    let server = Server::new().updater(|key, received, stored| {
        let factor = if *key == Key::Int(1) { 1.0 } else { 0.5 };
        stored.iter_mut().zip(received).for_each(|(stored, x)| *stored += factor * x);
    });
    stage_with(world, config, server, |store| {
        let mut suite = Suite::new(store);
        for (key, factor) in [(1, 1.0), (2, 0.5)] {
            let key = Key::Int(key);
            let mut expected = numbers(9, 0, 0, 33);
            store.init(&key, &tensor(&expected, &[33]))?;
            for round in 0..3 {
                let push = |values: &[f32]| store.push(&key, values, 0);
                for update in suite.round(&key, |worker| numbers(9, worker, round, 33), push)? {
                    expected.iter_mut().zip(update).for_each(|(x, update)| *x += factor * update);
                }
                assert_same_bits(&suite.pull(&key)?, &expected, "an updater");
                store.barrier()?;
            }
        }
        // An optimizer takes the place of the updater.
        store.set_optimizer(Sgd::new(1.0), 1.0)?;
        let key = Key::Int(1);
        let before = suite.pull(&key)?;
        store.barrier()?;
        let updates = suite.round(&key, |_| vec![1.0; 33], |x| store.push(&key, x, 0))?;
        let mut by_hand = ByHand::new(&Sgd::new(1.0).into(), 1.0, "1", before);
        updates.into_iter().for_each(|update| by_hand.update(update));
        assert_same_bits(&suite.pull(&key)?, &by_hand.values, "an optimizer after an updater");
        store.barrier()
    })?;
    Ok(())
}
