//! Misuse: typed errors that name the key and the rank, on all ranks that wait for the one with the
//! error. The store works afterwards.

use candelabrum_dist::{Error as DistError, World};
use candelabrum_kvstore::{
    Compression, Error, Key, KvStore, Result, RowInit, RowSparse, Server, StoreConfig, StoreKind,
};
use candelabrum_optim::{Lamb, Lars, Sgd};
use candle_core::{DType, Device, Tensor};

use crate::harness::{Job, stage};
use crate::numbers::{flat, tensor};

pub(crate) fn run(case: &str, world: &World) -> Result<String> {
    match case {
        "misuse of one" => of_one(world)?,
        "misuse of roles" => of_roles(world)?,
        "misuse: a world without servers" => drop(KvStore::create("dist_sync", world)?),
        difference => differ(&difference["misuse: ".len()..], world)?,
    }
    Ok(case.to_owned())
}

/// A result is an error of this variant, whose message has all parts.
macro_rules! assert_error {
    ($result:expr, $variant:ident, $parts:expr) => {
        check_error($result, |error| matches!(error, Error::$variant { .. }), $parts)
    };
}

#[track_caller]
fn check_error<T>(result: Result<T>, is: impl Fn(&Error) -> bool, parts: &[&str]) {
    let Err(error) = result else { panic!("{parts:?} is no error") };
    assert!(is(&error), "{error:?}");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "no `{part}` in `{text}`");
    }
}

fn zeros(dims: &[usize]) -> Tensor {
    Tensor::zeros(dims, DType::F32, &Device::Cpu).expect("a tensor")
}

/// Errors that a worker finds by itself.
fn of_one(world: &World) -> Result<()> {
    for kind in [StoreKind::DistSync, StoreKind::DistAsync] {
        let config = StoreConfig { big_array_bound: 6, ..StoreConfig::new(kind) };
        stage(world, &config, |store| {
            store.init(5, &zeros(&[2, 3]))?;
            store.init(6, &zeros(&[3]))?;
            store.init_rows(7, 4, 2, RowInit::Zeros)?;
            values(store);
            tables(store);
            keys(store);
            settings(store);
            // Nothing of all this has begun a round or left a residual.
            let each = store.num_workers() as f32;
            let expected = if kind == StoreKind::DistSync { each } else { 1.0 };
            let one = store.pushpull(5, &[1.0_f32; 6][..], 0)?.wait()?;
            assert_eq!(flat(&one), [expected; 6]);
            // Of all pushes, that one and one of the key 6 have reached the servers.
            let stats = store.stats()?;
            for (server, stats) in stats.iter().enumerate() {
                let expected = 1 + u64::from(server == 6 * 9973 % world.servers());
                assert_eq!(stats.pushes[store.rank()], expected, "{stats:?}");
            }
            store.barrier()
        })?;
    }
    Ok(())
}

fn values(store: &KvStore) {
    let own = format!("rank {}", store.rank());
    let parts = [&*own, "`5`", "[2, 3]", "[3, 2]"];
    assert_error!(store.push(5, &zeros(&[3, 2]), 0), Shape, &parts);
    assert_error!(store.pushpull(5, &zeros(&[3, 2]), 0), Shape, &parts);
    assert_error!(store.push(5, &[1.0_f32; 5][..], 0), Shape, &[&own, "`5`", "[2, 3]", "[5]"]);
    assert_error!(store.push(5, &[][..] as &[Tensor], 0), NoValues, &[&own, "`5`", "empty list"]);
    let list = [zeros(&[2, 3]), zeros(&[6])];
    assert_error!(store.push(5, &list, 0), Shape, &[&own, "`5`", "[6]"]);
    let pull = store.pull(5, 0).expect("a pull");
    assert_error!(pull.wait_into(&mut [0.0; 7]), Shape, &[&own, "`5`", "[2, 3]", "[7]"]);

    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        // In the part of the last server, of which the first one must not hear.
        let mut values = [1.0; 6];
        values[5] = value;
        let parts = [&*own, "`5`", &value.to_string(), "position 5"];
        assert_error!(store.push(5, &values[..], 0), NotFinite, &parts);
        assert_error!(store.push(5, &tensor(&values, &[2, 3]), 0), NotFinite, &parts);
        assert_error!(store.init(50, &tensor(&values, &[6])), NotFinite, &[&own, "`50`"]);
    }
    let large = [tensor(&[3e38; 6], &[2, 3]), tensor(&[3e38; 6], &[2, 3])];
    assert_error!(store.push(5, &large, 0), NotFinite, &[&own, "`5`", "inf", "position 0"]);

    for (compression, value) in [(Compression::Fp16, 70_000.0), (Compression::Bf16, f32::MAX)] {
        let mut values = [1.0; 6];
        values[4] = value;
        let result = store.pushpull_with(5, &values[..], 0, compression);
        let parts = [&*own, "`5`", "position 4", &value.to_string(), &format!("{compression:?}")];
        assert_error!(result, OutOfRange, &parts);
    }
    // What has not been sent, and the next value, are too large together.
    let threshold = Compression::Threshold { magnitude: f32::MAX };
    store.set_gradient_compression(threshold).expect("a good setting");
    store.push(6, &[3e38_f32; 3][..], 0).expect("a push of nothing");
    assert_error!(store.push(6, &[3e38_f32; 3][..], 0), NotFinite, &[&own, "`6`", "inf"]);
    store.set_gradient_compression(Compression::None).expect("a good setting");

    let f64s = Tensor::zeros((2, 3), DType::F64, &Device::Cpu).expect("a tensor");
    assert_error!(store.push(5, &f64s, 0), ElementType, &[&own, "`5`", "F64"]);
    assert_error!(store.init(51, &f64s), ElementType, &[&own, "`51`", "F64"]);
}

fn tables(store: &KvStore) {
    let own = format!("rank {}", store.rank());
    let rows = |rows: &[u32], len| RowSparse { rows: rows.to_vec(), values: vec![1.0; len] };
    assert_error!(store.push(7, &zeros(&[4, 2]), 0), Form, &[&own, "`7`", "push_rows"]);
    assert_error!(store.pull(7, 0), Form, &[&own, "`7`", "row_sparse_pull"]);
    assert_error!(store.push_rows(5, &rows(&[0], 3), 0), Form, &[&own, "`5`", "use push"]);
    assert_error!(store.row_sparse_pull(5, &[0], 0), Form, &[&own, "`5`", "dense"]);
    let row = |error: &Error| matches!(error, Error::Row { row: 4, rows: 4, .. });
    check_error(store.push_rows(7, &rows(&[0, 4], 4), 0), row, &[&own, "`7`", "4 rows"]);
    check_error(store.row_sparse_pull(7, &[1, 4], 0), row, &[&own, "`7`", "4 rows"]);
    let parts = [&*own, "2 row(s) of 2 elements", "`7` with 3 values"];
    assert_error!(store.push_rows(7, &rows(&[0, 1], 3), 0), RowValues, &parts);
    let nan = RowSparse { rows: vec![3], values: vec![0.0, f32::NAN] };
    assert_error!(store.push_rows(7, &nan, 0), NotFinite, &[&own, "`7`", "NaN"]);
    for (rows, dim) in [(0, 1), (1, 0), (1 << 33, 1), (2, usize::MAX), (1 << 31, 1 << 40)] {
        assert_error!(
            store.init_rows(70, rows, dim, RowInit::Zeros),
            Setting,
            &["size of a table"]
        );
    }
    for std in [-1.0, f32::NAN, f32::INFINITY] {
        let init = RowInit::Normal { std, seed: 0 };
        assert_error!(store.init_rows(70, 1, 1, init), Setting, &["deviation", &std.to_string()]);
    }
    // No server has this memory. The key is used up, as after every failed initialisation.
    let refused = store.init_rows(71, 1 << 31, 1 << 28, RowInit::Zeros);
    assert_error!(refused, Refused, &["server ", "no memory", "`71`"]);
    store.barrier().expect("all workers are there");
}

fn keys(store: &KvStore) {
    let own = format!("rank {}", store.rank());
    let parts = [&*own, "`8`", "not initialised", "5, 6, 7"];
    assert_error!(store.push(8, &zeros(&[1]), 0), UnknownKey, &parts);
    assert_error!(store.pull(8, 0), UnknownKey, &parts);
    assert_error!(store.pushpull(8, &zeros(&[1]), 0), UnknownKey, &parts);
    assert_error!(store.push_rows(8, &RowSparse::default(), 0), UnknownKey, &parts);
    assert_error!(store.row_sparse_pull(8, &[], 0), UnknownKey, &parts);
    assert_error!(store.pull("w", 0), UnknownKey, &[&own, "`w`"]);
    assert_error!(store.init(5, &zeros(&[2, 3])), KeyTwice, &[&own, "`5`", "already"]);
    assert_error!(store.init_rows(5, 1, 1, RowInit::Zeros), KeyTwice, &[&own, "`5`"]);
    assert_error!(store.broadcast(7, &zeros(&[1])), KeyTwice, &[&own, "`7`"]);
    assert_error!(store.init("w", &zeros(&[1])), KeyKinds, &[&own, "`w`", "string"]);
}

fn settings(store: &KvStore) {
    let own = format!("worker {}", store.rank());
    assert_error!(store.set_updater(|_, _, _| ()), Setting, &[&own, "Server::updater"]);
    for divide_by in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert_error!(store.set_optimizer(Sgd::new(0.1), divide_by), Setting, &["divide_by"]);
    }
    assert_error!(store.set_optimizer(Sgd::new(f64::NAN), 1.0), Optim, &["Sgd"]);
    for compression in [
        Compression::TwoBit { threshold: 0.0 },
        Compression::OneBit { threshold: f32::NAN },
        Compression::TopK { share: 0.0 },
        Compression::Threshold { magnitude: -1.0 },
    ] {
        assert_error!(store.set_gradient_compression(compression), Setting, &["is"]);
        let push = store.pushpull_with(5, &[1.0_f32; 6][..], 0, compression);
        assert_error!(push, Setting, &["is"]);
    }
    // The key 5 is divided if there are several servers, and 7 is a table in any case.
    for lamb in [true, false] {
        let result = match lamb {
            true => store.set_optimizer(Lamb::new(0.1), 1.0),
            false => store.set_optimizer(Lars::new(0.1), 1.0),
        };
        assert_error!(result, Refused, &["server ", if lamb { "Lamb" } else { "Lars" }, "alone"]);
    }
    store.barrier().expect("all workers are there");
}

/// Ranks that do what only the others may do. None of this makes another rank wait.
fn of_roles(world: &World) -> Result<()> {
    let bound =
        |kind, bound| StoreConfig { staleness_bound: Some(bound), ..StoreConfig::new(kind) };
    for config in [bound(StoreKind::DistAsync, 0), bound(StoreKind::DistSync, 1)] {
        assert_error!(KvStore::with_config(&config, world), Setting, &["staleness bound"]);
    }
    let none = StoreConfig { big_array_bound: 0, ..StoreConfig::new(StoreKind::DistSync) };
    assert_error!(KvStore::with_config(&none, world), Setting, &["big_array_bound is 0"]);
    for name in ["nccl", "dist", "", "DIST_SYNC"] {
        let parts = [&*format!("`{name}`"), "local, dist_sync and dist_async"];
        assert_error!(KvStore::create(name, world), Kind, &parts);
    }
    if world.is_server() {
        assert_error!(KvStore::create("dist_sync", world), Roles, &["server", "Server::run"]);
    } else {
        assert_error!(Server::new().run(world), Roles, &["is a worker"]);
    }
    stage(world, &StoreConfig::new(StoreKind::DistSync), KvStore::barrier)?;
    Ok(())
}

/// Workers that differ: the last one from the others.
fn differ(difference: &str, world: &World) -> Result<()> {
    let is_other = !world.is_server() && world.rank() + 1 == world.world_size();
    let other = |of: &str| is_other && difference == of;
    let kind = if other("kind") { StoreKind::DistAsync } else { StoreKind::DistSync };
    let big_array_bound = if other("bound") { 2 } else { 100 };
    let config = StoreConfig { big_array_bound, ..StoreConfig::new(kind) };
    stage(world, &config, |store| {
        let key = if other("key") { "v" } else { "w" };
        store.init(key, &zeros(if other("shape") { &[3, 3] } else { &[9] }))?;
        let std = if other("rows") { 2.0 } else { 1.0 };
        store.init_rows("t", 5, 2, RowInit::Normal { std, seed: 1 })?;
        store.set_optimizer(Sgd::new(if other("optimizer") { 0.2 } else { 0.1 }), 1.0)?;
        if other("a push less") {
            return Ok(());
        }
        store.pushpull("w", &[1.0_f32; 9][..], 0)?.wait().map(drop)
    })?;
    Ok(())
}

#[test]
fn what_a_worker_does_wrong_is_named_and_leaves_no_trace() {
    for (workers, servers) in [(1, 1), (2, 2)] {
        Job::new("misuse of one", workers, servers).run_here().assert_succeeded();
    }
}

#[test]
fn ranks_in_the_wrong_role_are_told_and_may_do_better() {
    Job::new("misuse of roles", 2, 2).run_here().assert_succeeded();
}

#[test]
fn a_world_without_servers_is_told_how_to_start_some() {
    let ended = Job::new("misuse: a world without servers", 2, 0).run_here();
    for rank in [0, 1] {
        ended.assert_failed(rank, &["needs servers", "--servers", "none of the 2"]);
    }
    let alone = KvStore::create("dist_async", &World::single());
    assert_error!(alone, Roles, &["none of the 1"]);
}

#[test]
fn workers_that_differ_are_told_in_what() {
    for (difference, parts) in [
        ("kind", &["rank 0 has dist_sync", "rank 2 has dist_async"] as &[&str]),
        ("bound", &["division from 100 elements", "rank 2", "from 2 elements"]),
        ("key", &["`w` of shape [9]", "`v` of shape [9]", "rank 2"]),
        ("shape", &["`w` of shape [9]", "`w` of shape [3, 3]", "rank 2"]),
        ("rows", &["`t`", "std: 1.0", "std: 2.0", "rank 2"]),
        ("optimizer", &["the optimizer differs", "lr=0.1", "lr=0.2", "rank 2"]),
        ("a push less", &["rank 2 has left", "`w`"]),
    ] {
        let ended = Job::new(&format!("misuse: {difference}"), 3, 2).run_here();
        let failing = if difference == "a push less" { 0..2 } else { 0..3 };
        for rank in failing {
            // Which worker is the first one is left to chance.
            let text = &ended.outputs[rank].text;
            assert_eq!(ended.outputs[rank].code, Some(3), "{difference}: {}", ended.text());
            let known = parts.iter().filter(|part| !part.starts_with("rank 0 has"));
            for part in known {
                assert!(text.contains(part), "{difference}: no `{part}` in {text}");
            }
        }
        assert!(ended.took.as_secs() < 10, "{difference}: {:?}", ended.took);
    }
}

#[test]
fn a_local_store_finds_the_same_faults() {
    let store = KvStore::create("local", &World::single()).expect("a store");
    for (key, value) in [(5, zeros(&[2, 3])), (6, zeros(&[3]))] {
        store.init(key, &value).expect("a new key");
    }
    store.init_rows(7, 4, 2, RowInit::Zeros).expect("a new table");
    values(&store);
    keys(&store);
    let refused = store.set_optimizer(Lamb::new(0.1), 1.0);
    assert_error!(refused, Refused, &["`7` is a table"]);
}

/// candle's errors keep the type on their way through a backward pass.
#[test]
fn an_error_survives_candle() {
    let store = KvStore::create("local", &World::single()).expect("a store");
    let error = store.pull("nothing", 0).expect_err("an unknown key");
    let again = Error::from(candle_core::Error::from(error).context("a layer"));
    assert!(matches!(again, Error::UnknownKey { .. }), "{again:?}");
    let other = Error::from(candle_core::Error::Msg("shapes".to_owned()));
    assert!(matches!(other, Error::Dist(DistError::Tensor { .. })), "{other:?}");
    assert_eq!(Key::from("a").to_string(), "a");
}
