//! Saved states: a second world continues as if there had been no end, and a file that cannot be used is
//! named on all workers while nothing changes.

use std::fs;
use std::path::{Path, PathBuf};

use candelabrum_dist::World;
use candelabrum_kvstore::{Error, KvStore, Result, RowInit, RowSparse, StoreConfig, StoreKind};
use candelabrum_optim::{AdamW, Schedule, Sgd};
use tempfile::TempDir;

use crate::harness::{Backend, EndedProgram, Job, StageResult, say, stage};
use crate::numbers::{Digest, flat, numbers, tensor};

/// The variable with the directory of the files.
const DIR: &str = "STORE_TEST_DIR";

const LEN: usize = 50;
const ROWS: usize = 12;
const DIM: usize = 3;

fn directory() -> PathBuf {
    std::env::var_os(DIR).expect("the test names a directory").into()
}

fn config() -> StoreConfig {
    // One key is divided, two are not.
    StoreConfig { big_array_bound: 20, ..StoreConfig::new(StoreKind::DistSync) }
}

/// Makes the keys, with other first values than a store that loads them has.
fn prepare(store: &KvStore, what: u64) -> Result<()> {
    for (key, len) in [("small", 7), ("large", LEN), ("other", 9)] {
        store.init(key, &tensor(&numbers(what, 0, 0, len), &[len]))?;
    }
    store.init_rows("table", ROWS, DIM, RowInit::Normal { std: 1.0, seed: 7 })
}

fn train(store: &KvStore, steps: std::ops::Range<usize>) -> Result<()> {
    for step in steps {
        for (key, len) in [("small", 7), ("large", LEN)] {
            let gradient = numbers(20, store.rank(), step, len);
            drop(store.pushpull(key, &gradient[..], 0)?.wait()?);
        }
        let rows = vec![(step % 3) as u32, 3 + store.rank() as u32, (step % 5) as u32];
        let values = numbers(21, store.rank(), step, rows.len() * DIM);
        store.push_rows("table", &RowSparse { rows, values }, 0)?;
    }
    Ok(())
}

/// The digest of everything that a worker can pull.
fn digest(store: &KvStore) -> Result<String> {
    let mut digest = Digest::default();
    for key in ["small", "large", "other"] {
        digest.add(&flat(&store.pull(key, 0)?.wait()?));
    }
    let every: Vec<u32> = (0..ROWS as u32).collect();
    digest.add(&store.row_sparse_pull("table", &every, 0)?.wait()?.values);
    Ok(format!("{:016x}", digest.0))
}

fn set_optimizer(store: &KvStore) -> Result<()> {
    store.set_optimizer(AdamW::new(Schedule::Constant(0.1).then(7, 0.02)), 2.0)
}

pub(crate) fn run(case: &str, world: &World) -> Result<String> {
    let dir = directory();
    let part = match case {
        "state saved" => stage(world, &config(), |store| {
            // A key that is on the first server only comes first.
            set_optimizer(store)?;
            prepare(store, 30)?;
            train(store, 0..5)?;
            store.save_optimizer_states(&dir)?;
            let at_save = digest(store)?;
            train(store, 5..10)?;
            Ok(format!("{at_save} {}", digest(store)?))
        })?,
        "state loaded" => stage(world, &config(), |store| {
            prepare(store, 31)?;
            set_optimizer(store)?;
            // What happened before makes no difference.
            train(store, 90..92)?;
            store.load_optimizer_states(&dir)?;
            let at_load = digest(store)?;
            train(store, 5..10)?;
            let at_end = digest(store)?;
            // The files are replaced by the same bytes.
            store.load_optimizer_states(&dir)?;
            store.save_optimizer_states(&dir.join("again"))?;
            Ok(format!("{at_load} {at_end}"))
        })?,
        "state refused" => stage(world, &config(), |store| {
            prepare(store, 31)?;
            set_optimizer(store)?;
            train(store, 0..2)?;
            let before = digest(store)?;
            let Err(error) = store.load_optimizer_states(&dir) else {
                panic!("a file that cannot be used")
            };
            let is_refusal = matches!(error, Error::Refused { .. });
            assert!(is_refusal, "{error:?}");
            store.barrier()?;
            assert_eq!(digest(store)?, before, "a failed load has changed something");
            // The store works, and so does the optimizer's state.
            train(store, 2..4)?;
            Ok(format!("{error} -- {}", digest(store)?))
        })?,
        "state of others" => others(world, &dir)?,
        "state in a round" => stage(world, &config(), |store| {
            prepare(store, 30)?;
            store.save_optimizer_states(&dir)?;
            let wait = numbers(20, 0, 0, 7);
            if store.rank() == 0 {
                store.push("small", &wait[..], 0)?;
            }
            let saved = store.save_optimizer_states(&dir).expect_err("an open round");
            let loaded = store.load_optimizer_states(&dir).expect_err("an open round");
            if store.rank() != 0 {
                store.push("small", &wait[..], 0)?;
            }
            drop(store.pull("small", 0)?.wait()?);
            store.barrier()?;
            store.save_optimizer_states(&dir)?;
            let nowhere = store.save_optimizer_states(Path::new("/proc/nowhere"));
            let nowhere = nowhere.expect_err("no such directory");
            Ok(format!("{saved} -- {loaded} -- {nowhere}"))
        })?,
        other => panic!("there is no case `{other}`"),
    };
    if let Some(text) = part.worker() {
        say(&format!("state: {text}"));
    }
    Ok(case.to_owned())
}

/// Stores that differ from the one of the files: each names the difference.
fn others(world: &World, dir: &Path) -> Result<StageResult<String>> {
    let mut texts = Vec::new();
    for difference in ["no optimizer", "another optimizer", "a missing key", "another shape"] {
        let part = stage(world, &config(), |store| {
            match difference {
                "a missing key" => store.init("small", &tensor(&[0.0; 7], &[7]))?,
                "another shape" => {
                    store.init("small", &tensor(&[0.0; 7], &[7, 1]))?;
                    store.init("large", &tensor(&[0.0; LEN], &[LEN]))?;
                    store.init("other", &tensor(&[0.0; 9], &[9]))?;
                    store.init_rows("table", ROWS, DIM, RowInit::Normal { std: 1.0, seed: 7 })?;
                }
                _ => prepare(store, 30)?,
            }
            match difference {
                "no optimizer" => {}
                "another optimizer" => store.set_optimizer(Sgd::new(0.5), 2.0)?,
                _ => set_optimizer(store)?,
            }
            Ok(store.load_optimizer_states(dir).expect_err("another store").to_string())
        })?;
        texts.extend(part.worker());
    }
    match texts.is_empty() {
        true => Ok(StageResult::OfServer(Default::default())),
        false => Ok(StageResult::OfWorker(texts.join(" -- "))),
    }
}

fn job(case: &str, dir: &Path, workers: usize, servers: usize) -> Job {
    Job::new(case, workers, servers).variable(DIR, &dir.display().to_string())
}

/// What all workers said, which must be the same.
#[track_caller]
fn said(ended: &EndedProgram, workers: usize) -> String {
    ended.assert_succeeded();
    let words = ended.words("state: ");
    assert_eq!(words.len(), workers, "{}", ended.text());
    assert!(words.iter().all(|word| *word == words[0]), "workers differ: {words:?}");
    words[0].to_owned()
}

fn saved(workers: usize, servers: usize) -> (TempDir, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let text = said(&job("state saved", dir.path(), workers, servers).run_here(), workers);
    (dir, text)
}

fn file(dir: &Path, server: usize) -> PathBuf {
    dir.join(format!("server-{server}-of-2.safetensors"))
}

#[test]
fn a_world_that_loads_a_state_repeats_what_followed_bit_for_bit() {
    for (workers, servers) in [(1, 1), (2, 2), (3, 2)] {
        let (dir, text) = saved(workers, servers);
        let again = said(&job("state loaded", dir.path(), workers, servers).run_here(), workers);
        assert_eq!(again, text);
        for server in 1..=servers {
            let name = format!("server-{server}-of-{servers}.safetensors");
            let read = |path: PathBuf| fs::read(path).expect("a file of the state");
            assert_eq!(read(dir.path().join(&name)), read(dir.path().join("again").join(&name)));
        }
    }
}

#[test]
fn under_mpiexec_a_world_continues_from_the_local_backends_files() {
    let (dir, text) = saved(2, 2);
    let job = job("state loaded", dir.path(), 2, 2).over(Backend::Mpiexec);
    let Some(ended) = job.run() else { return };
    assert_eq!(said(&ended, 2), text);
}

#[test]
fn a_file_that_cannot_be_used_is_named_to_all_workers_and_nothing_changes() {
    let (dir, _) = saved(2, 2);
    let (first, second) = (file(dir.path(), 1), file(dir.path(), 2));
    let (good, other) = (fs::read(&second).expect("a file"), fs::read(&first).expect("a file"));
    let flipped = |place: usize| {
        let mut bytes = good.clone();
        bytes[place] ^= 1;
        bytes
    };
    let foreign = {
        let none: Vec<(&str, safetensors::tensor::TensorView<'_>)> = Vec::new();
        safetensors::serialize(none, None).expect("a file of safetensors")
    };
    let version = good.windows(9).position(|bytes| bytes == b"version\\\"").expect("a version");
    let cases: [(&str, Option<Vec<u8>>); 8] = [
        ("cannot be read", None),
        ("is damaged", Some(Vec::new())),
        ("is damaged", Some(good[..good.len() - 1].to_vec())),
        ("is damaged", Some(good[..good.len() / 2].to_vec())),
        ("is damaged", Some(flipped(good.len() - 1))),
        // A digit of a number that the file says in words.
        ("is damaged", Some(flipped(version + 10))),
        ("is no state of a server", Some(foreign)),
        ("is of server 1 of 2", Some(other)),
    ];
    let mut after = Vec::new();
    for (part, bytes) in cases {
        match bytes {
            None => fs::remove_file(&second).expect("the file was there"),
            Some(bytes) => fs::write(&second, bytes).expect("the test's directory"),
        }
        let text = said(&job("state refused", dir.path(), 2, 2).run_here(), 2);
        let (error, digest) = text.split_once(" -- ").expect("two parts");
        let name = format!("{}", second.display());
        for part in ["server 3: ", part, &name] {
            assert!(error.contains(part), "no `{part}` in {error}");
        }
        after.push(digest.to_owned());
    }
    // The first server had read its good file.
    assert!(after.iter().all(|digest| *digest == after[0]), "{after:?}");
}

#[test]
fn a_state_of_another_store_is_refused_and_named() {
    let (dir, _) = saved(2, 2);
    let text = said(&job("state of others", dir.path(), 2, 2).run_here(), 2);
    let said: Vec<&str> = text.split(" -- ").collect();
    let expected: [&[&str]; 4] = [
        &["AdamW", "and this store has no optimizer"],
        &["AdamW", "and this store has Sgd"],
        &["`other` of shape [9]", "this store has nothing"],
        &["`small` of shape [7]", "`small` of shape [7, 1]"],
    ];
    for (said, parts) in said.iter().zip(expected) {
        for part in parts {
            // A key is on one of two servers, and either may be the first to refuse.
            let is_there =
                said.contains(part) || (part.contains("other") && said.contains("large"));
            assert!(is_there, "no `{part}` in {said}");
        }
    }
    // The state of two servers is none of one server.
    let text = self::said(&job("state refused", dir.path(), 2, 1).run_here(), 2);
    assert!(
        text.contains("server-1-of-1.safetensors: does not exist: 2 server(s) saved"),
        "{text}"
    );
}

#[test]
fn an_open_round_is_neither_saved_nor_overwritten() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = said(&job("state in a round", dir.path(), 2, 2).run_here(), 2);
    let said: Vec<&str> = text.split(" -- ").collect();
    assert!(said[..2].iter().all(|said| said.contains("a round of `small` is open")), "{text}");
    assert!(said[2].contains("/proc/nowhere") && said[2].contains("cannot be written"), "{text}");
}
