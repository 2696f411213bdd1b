//! Fairness and bounds of memory between real processes. Rounds and staleness are those of `src/shard/tests/schedule.rs`.

use std::thread;
use std::time::{Duration, Instant};

use candelabrum_dist::{Collective, ElementType, Payload, World};
use candelabrum_kvstore::{Result, StoreConfig, StoreKind};

use crate::harness::{Job, stage};
use crate::numbers::{flat, tensor};

pub(crate) fn run(case: &str, world: &World) -> Result<String> {
    match case {
        "round flood" => flood(world)?,
        "round ahead" => ahead(world)?,
        "round ahead alone" => ahead_alone(world)?,
        other => panic!("there is no case `{other}`"),
    }
    Ok(case.to_owned())
}

/// One worker sends requests without a break, the other one now and then.
fn flood(world: &World) -> Result<()> {
    stage(world, &StoreConfig::new(StoreKind::DistAsync), |store| {
        store.init(0, &tensor(&[0.0; 1000], &[1000]))?;
        store.barrier()?;
        for _ in 0..20 {
            if store.rank() == 0 {
                for _ in 0..200 {
                    drop(store.pushpull(0, &[1.0_f32; 1000][..], 0)?);
                }
            } else {
                drop(store.pull(0, 0)?.wait()?);
                thread::sleep(Duration::from_millis(1));
            }
        }
        // A worker's requests are served in their order, so all of them have been after this.
        drop(store.pull(0, 0)?.wait()?);
        store.barrier()?;
        let stats = &store.stats()?[0];
        assert_eq!(stats.longest_run, 1, "{stats:?}");
        assert_eq!(stats.pushes[0], 4000, "{stats:?}");
        store.barrier()
    })?;
    Ok(())
}

/// The pushes of a worker for one key that a server keeps.
const MOST_AHEAD: u64 = 32;

/// One worker pushes without a pull while the other one does not push. Of its other key, pushes leave
/// meanwhile.
fn ahead(world: &World) -> Result<()> {
    const PUSHES: usize = 100;
    let bounded =
        StoreConfig { staleness_bound: Some(1), ..StoreConfig::new(StoreKind::DistAsync) };
    for config in [StoreConfig::new(StoreKind::DistSync), bounded] {
        let kept = MOST_AHEAD + config.staleness_bound.unwrap_or(0);
        stage(world, &config, |store| {
            let value = |push: usize| [(push + 1000 * store.rank()) as f32; 3];
            store.init("w", &tensor(&[0.0; 3], &[3]))?;
            store.init("other", &tensor(&[0.0; 3], &[3]))?;
            store.barrier()?;
            let workers = store.workers();
            if store.rank() == 0 {
                for push in 0..PUSHES {
                    store.push("w", &value(push)[..], 0)?;
                }
                store.push("other", &value(0)[..], 0)?;
                workers.send(&[0_u8], 1)?;
            } else {
                workers.recv(&mut [0_u8], 0)?;
                // What has left has arrived when this is over, and no more leaves.
                let until = Instant::now() + Duration::from_millis(300);
                while Instant::now() < until {
                    let pushes = store.stats()?[0].pushes[0];
                    assert!(pushes <= kept + 1, "the server keeps {pushes} pushes");
                    thread::sleep(Duration::from_millis(10));
                }
                assert_eq!(store.stats()?[0].pushes[0], kept + 1);
                store.push("other", &value(0)[..], 0)?;
                for push in 0..PUSHES {
                    store.push("w", &value(push)[..], 0)?;
                }
            }
            let got = flat(&store.pull("w", 0)?.wait()?);
            if config.kind == StoreKind::DistSync {
                assert_eq!(got, [(1000 + 2 * (PUSHES - 1)) as f32; 3]);
            }
            store.barrier()?;
            assert_eq!(store.stats()?[0].pushes, [PUSHES as u64 + 1; 2]);
            store.barrier()
        })?;
    }
    Ok(())
}

/// One worker pushes without a pull, and the other one comes never, or leaves.
fn ahead_alone(world: &World) -> Result<()> {
    for leaves in [false, true] {
        let config = StoreConfig::new(StoreKind::DistSync);
        stage(world, &config, |store| {
            store.init("w", &tensor(&[0.0; 3], &[3]))?;
            store.barrier()?;
            if store.rank() == 1 {
                if !leaves {
                    let room = Payload::zeros(ElementType::U8, 1);
                    let mut over = store.workers().start(Collective::Recv { from: 0 }, room);
                    assert!(over.wait_for(Duration::from_secs(30)), "rank 0 still waits");
                }
                return Ok(());
            }
            let pushed = (0..100).try_for_each(|_| store.push("w", &[1.0_f32; 3][..], 0));
            let mut flushed = pushed.and_then(|()| store.flush());
            assert!(leaves || flushed.is_err(), "nobody catches up");
            // A server holds refusals for a second after a worker has left.
            let until = Instant::now() + Duration::from_secs(20);
            while flushed.is_ok() && Instant::now() < until {
                thread::sleep(Duration::from_millis(10));
                flushed = store.flush();
            }
            let error = flushed.expect_err("the rounds are not complete");
            let error = error.to_string();
            let parts = if leaves { ["rank 1 has left", "`w`"] } else { ["rank(s) 1", "`w`"] };
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
            if !leaves {
                store.workers().send(&[0_u8], 1)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_server_keeps_few_pushes_of_a_worker_that_is_ahead() {
    Job::new("round ahead", 2, 1).run_here().assert_succeeded();
}

#[test]
fn a_worker_that_is_ahead_alone_gets_an_error() {
    Job::new("round ahead alone", 2, 1).deadline(2).run_here().assert_succeeded();
}

#[test]
fn a_worker_with_many_requests_delays_the_others_by_one() {
    Job::new("round flood", 2, 1).run_here().assert_succeeded();
}
