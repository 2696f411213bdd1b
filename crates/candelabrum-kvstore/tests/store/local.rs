//! The store of one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candelabrum_dist::World;
use candelabrum_kvstore::{Compression, Key, KvStore, RowInit, RowSparse, StoreConfig, StoreKind};
use candelabrum_optim::{Adafactor, AdamW, AdamW8bit, Muon, Recipe};

use crate::numbers::{ByHand, Compressor, assert_same_bits, flat, numbers, sum, tensor};

fn store() -> KvStore {
    KvStore::create("local", &World::single()).expect("a store")
}

#[test]
fn an_updater_gets_the_key_the_sum_and_the_stored_value() {
    let (store, calls) = (store(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&calls);
    store
        .set_updater(move |key, received, stored| {
            count.fetch_add(1, Ordering::Relaxed);
            let factor = if *key == Key::from("a") { 1.0 } else { -1.0 };
            stored.iter_mut().zip(received).for_each(|(stored, x)| *stored += factor * x);
        })
        .expect("a local store has an updater");
    for (key, factor) in [("a", 1.0_f32), ("b", -1.0)] {
        store.init(key, &tensor(&[1.0, 2.0], &[2])).expect("a new key");
        let list = [tensor(&[3.0, 4.0], &[2]), tensor(&[0.5, 0.5], &[2])];
        store.push(key, &list, 0).expect("a push");
        let got = flat(&store.pull(key, 0).and_then(|pull| pull.wait()).expect("a value"));
        assert_eq!(got, [1.0 + factor * 3.5, 2.0 + factor * 4.5]);
    }
    store.init_rows("c", 3, 2, RowInit::Zeros).expect("a new table");
    let rows = RowSparse { rows: vec![2, 2], values: vec![1.0, 2.0, 3.0, 4.0] };
    store.push_rows("c", &rows, 0).expect("a push");
    let got = store.row_sparse_pull("c", &[2], 0).and_then(|pull| pull.wait()).expect("a row");
    assert_eq!(got.values, [-4.0, -6.0]);
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    assert_eq!((store.rank(), store.num_workers()), (0, 1));
}

#[test]
fn a_loaded_state_forgets_what_compression_has_not_sent() {
    let (store, dir) = (store(), tempfile::tempdir().expect("a directory"));
    store.init("w", &tensor(&[0.0; 2], &[2])).expect("a new key");
    store.save_optimizer_states(dir.path()).expect("a file");
    store.set_gradient_compression(Compression::TwoBit { threshold: 0.5 }).expect("good settings");
    store.push("w", &[0.75_f32, 0.25][..], 0).expect("a push");
    store.flush().expect("nothing is on its way");
    assert_eq!(store.residual_norm(), f64::from(0.125_f32).sqrt());
    store.load_optimizer_states(dir.path()).expect("a state");
    assert_eq!(store.residual_norm(), 0.0);
}

#[test]
fn an_optimizer_a_compression_and_a_saved_state_work_without_servers() {
    let recipe = Recipe::from(AdamW::new(0.05));
    let compression = Compression::TwoBit { threshold: 0.25 };
    let mut sent = Compressor::new(compression, 9);
    let mut by_hand = ByHand::new(&recipe, 2.0, "w", numbers(1, 0, 0, 9));
    let prepare = || {
        let store = store();
        store.init("w", &tensor(&numbers(1, 0, 0, 9), &[9])).expect("a new key");
        store.set_optimizer(recipe.clone(), 2.0).expect("good settings");
        store.set_gradient_compression(compression).expect("good settings");
        store
    };
    let (mut store, dir) = (prepare(), tempfile::tempdir().expect("a directory"));
    for step in 0..8 {
        if step == 4 {
            // The residual is the worker's, and in no file.
            let sent_again = vec![0.0; 9];
            store.set_gradient_compression(Compression::None).expect("good settings");
            store.push("w", &sent_again[..], 0).expect("a push");
            by_hand.update(sum(&[sent.residual().to_vec(), sent_again]));
            sent = Compressor::new(compression, 9);
            store.save_optimizer_states(dir.path()).expect("a directory");
            store = prepare();
            store.load_optimizer_states(dir.path()).expect("the state");
        }
        let gradient = numbers(2, 0, step, 9);
        store.push("w", &gradient[..], 0).expect("a push");
        by_hand.update(sent.send(&gradient));
        let got = flat(&store.pull("w", 0).and_then(|pull| pull.wait()).expect("a value"));
        assert_same_bits(&got, &by_hand.values, &format!("step {step}"));
    }
}

#[test]
fn a_state_with_vectors_of_other_lengths_than_the_value_comes_back() {
    let recipes: [Recipe; 4] = [
        Adafactor::new(0.05).into(),
        Muon::new(0.05).into(),
        AdamW8bit::new(0.05).min_8bit_size(0).into(),
        AdamW::new(0.05).bf16_state().into(),
    ];
    for recipe in recipes {
        let prepare = || {
            let store = store();
            store.init("w", &tensor(&numbers(1, 0, 0, 35), &[7, 5])).expect("a new key");
            store.set_optimizer(recipe.clone(), 1.0).expect("good settings");
            store
        };
        let push = |store: &KvStore, step| {
            store.push("w", &numbers(2, 0, step, 35)[..], 0).expect("a push");
            flat(&store.pull("w", 0).and_then(|pull| pull.wait()).expect("a value"))
        };
        let (whole, dir) = (prepare(), tempfile::tempdir().expect("a directory"));
        push(&whole, 0);
        whole.save_optimizer_states(dir.path()).expect("a directory");
        let continued = prepare();
        continued.load_optimizer_states(dir.path()).expect("the state");
        for step in 1..4 {
            let what = format!("step {step} of {recipe:?}");
            assert_same_bits(&push(&continued, step), &push(&whole, step), &what);
        }
    }
}

#[test]
fn a_kind_has_the_name_of_mxnet() {
    for kind in StoreKind::ALL {
        assert_eq!(kind.to_string().parse::<StoreKind>().expect("a kind"), kind);
        StoreConfig::new(kind).check().expect("good settings");
    }
}

#[test]
fn a_pull_that_is_dropped_or_late_harms_nothing() {
    let store = store();
    store.init(1, &tensor(&[1.0], &[1])).expect("a new key");
    drop(store.pull(1, 0).expect("a pull"));
    let early = store.pull(1, 0).expect("a pull");
    store.push(1, &[2.0_f32][..], 0).expect("a push");
    let late = store.pull(1, 0).expect("a pull");
    assert!(late.is_complete().expect("no failure"));
    assert_eq!(flat(&late.wait().expect("a value")), [2.0]);
    assert_eq!(flat(&early.wait().expect("a value")), [1.0]);
    // A pull keeps its store.
    let last = store.pull(1, 0).expect("a pull");
    drop(store);
    assert_eq!(flat(&last.wait().expect("a value")), [2.0]);
}
