//! The limits of a run beside its epochs: steps, time, and the batches of an epoch.

use std::path::Path;
use std::thread;
use std::time::Duration;

use candelabrum::kvstore::Server;
use candelabrum::prelude::*;
use candelabrum::train::checkpoint::Position;
use candelabrum::train::hooks::{Action, Run};
use candelabrum::train::{EpochReport, Result};

use crate::line::{self, Line, SAMPLES, data, trainer_with};
use crate::options::args;

/// The steps of an epoch.
const EPOCH: u64 = 12;

fn trainer(world: &World) -> Trainer<Line> {
    line::trainer(world, 0.01)
}

fn config(dir: Option<&Path>, epochs: usize) -> FitConfig {
    let checkpoints = dir.map(|dir| (dir.to_owned(), CheckpointConfig::default()));
    FitConfig { epochs, batch_size: 8, checkpoints, ..FitConfig::default() }
}

/// What the hooks of a run hear.
#[derive(Default)]
struct Heard {
    evaluations: Vec<u64>,
    epochs: Vec<usize>,
    notes: Vec<String>,
    /// Why it has ended.
    end: Option<Option<String>>,
}

impl Hook for Heard {
    fn name(&self) -> &str {
        "heard"
    }

    fn on_evaluate(&mut self, run: &mut Run<'_, '_>, _: &Metrics) -> Result<Action> {
        self.evaluations.push(run.position.step);
        Ok(Action::NOTHING)
    }

    fn on_epoch_end(&mut self, _: &mut Run<'_, '_>, report: &EpochReport) -> Result<Action> {
        self.epochs.push(report.epoch);
        Ok(Action::NOTHING)
    }

    fn on_note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }

    fn on_end(&mut self, _: &mut Run<'_, '_>, reason: Option<&str>) -> Result<()> {
        self.end = Some(reason.map(str::to_owned));
        Ok(())
    }
}

/// A run of one process.
fn run(config: FitConfig) -> (Trainer<Line>, Vec<EpochReport>, Heard) {
    let (mut trainer, mut heard) = (trainer(&World::single()), Heard::default());
    let fit = Fit::new(config).hook(&mut heard);
    let reports = trainer.fit_with(fit, &data(), Some(&data())).unwrap();
    (trainer, reports, heard)
}

#[test]
fn a_run_ends_after_its_steps_with_an_evaluation_a_report_and_a_checkpoint() {
    let [whole, parts] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let limited = |max| FitConfig { max_steps: Some(max), ..config(Some(parts.path()), 3) };
    let (first, reports, heard) = run(limited(EPOCH + 5));
    assert_eq!(first.position(), Position { epoch: 1, step_in_epoch: 5, step: EPOCH + 5 });
    assert_eq!((&*heard.evaluations, &*heard.epochs), (&[EPOCH, EPOCH + 5][..], &[0, 1][..]));
    assert_eq!(heard.end, Some(None));
    assert!(reports.len() == 2 && reports[1].eval_loss.is_some());
    assert_eq!(heard.notes, ["epoch 1 ends after 5 of its 12 steps: the run has had its 17 steps"]);
    assert!(parts.path().join("step-00000017").is_dir());
    // Again, and with a smaller bound, nothing is trained.
    for max in [EPOCH + 5, 4] {
        let (again, reports, heard) = run(limited(max));
        assert_eq!(again.position().step, EPOCH + 5);
        let done = heard.evaluations.is_empty() && heard.epochs.is_empty() && reports.is_empty();
        assert!(done && heard.notes[0].contains("17 step(s) are done, so nothing is trained"));
        assert_eq!(again.parameters_sha256().unwrap(), first.parameters_sha256().unwrap());
    }
    // A larger bound goes on, and reports the whole epoch. A bound at the end of an epoch adds nothing.
    let (_, reports, heard) = run(limited(2 * EPOCH));
    assert_eq!((&*heard.evaluations, &*heard.epochs), (&[2 * EPOCH][..], &[1][..]));
    let (end, last, _) = run(limited(100));
    let (expected, all, _) = run(config(Some(whole.path()), 3));
    assert_eq!(end.position(), expected.position());
    assert_eq!(end.parameters_sha256().unwrap(), expected.parameters_sha256().unwrap());
    let losses = |reports: &[EpochReport]| -> Vec<_> {
        reports.iter().map(|report| (report.epoch, report.train_loss, report.eval_loss)).collect()
    };
    assert_eq!(losses(&[reports, last].concat()), losses(&all[1..]));
    // A second call of the same process, too.
    let mut twice = trainer(&World::single());
    for (max, count) in [(5, 1), (5, 0), (9, 1)] {
        let fit = Fit::new(FitConfig { max_steps: Some(max), ..config(None, 3) });
        let reports = twice.fit_with(fit, &data(), Some(&data())).unwrap();
        assert_eq!((reports.len(), twice.position().step), (count, max));
    }
    assert_eq!(run(FitConfig { max_steps: Some(0), ..config(None, 3) }).0.position().step, 0);
}

#[test]
fn an_epoch_of_few_batches_has_the_first_ones_of_its_order() {
    let dir = tempfile::tempdir().unwrap();
    let limited = |most| FitConfig { limit_train_batches: most, ..config(Some(dir.path()), 3) };
    let (first, reports, heard) = run(FitConfig { max_steps: Some(7), ..limited(Some(5)) });
    assert_eq!(first.position(), Position { epoch: 1, step_in_epoch: 2, step: 7 });
    assert_eq!((&*heard.evaluations, reports.len()), (&[5, 7][..], 2));
    for other in [None, Some(4)] {
        let mut trainer = trainer(&World::single());
        let refused = trainer.fit_with(Fit::new(limited(other)), &data(), Some(&data()));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("shuffled, at most 5 steps in an epoch"), "{refused}");
    }
    let (end, _, _) = run(limited(Some(5)));
    assert_eq!(end.position(), Position { epoch: 3, step_in_epoch: 0, step: 15 });
    let (whole, _, _) = run(FitConfig { limit_train_batches: Some(5), ..config(None, 3) });
    assert_eq!(end.parameters_sha256().unwrap(), whole.parameters_sha256().unwrap());
    let (all, _, _) = run(FitConfig { limit_train_batches: Some(99), ..config(None, 1) });
    assert_eq!(all.position().step, EPOCH);
    let none = Fit::new(FitConfig { limit_train_batches: Some(0), ..config(None, 1) });
    let refused = trainer(&World::single()).fit_with(none, &data(), Some(&data())).unwrap_err();
    assert!(refused.to_string().contains("--limit-train-batches) is 0"), "{refused}");
}

/// The steps of each worker in a call. `kind` trains by a store with one server.
fn steps_of(workers: usize, kind: Option<StoreKind>, config: &FitConfig) -> Vec<u64> {
    let servers = usize::from(kind.is_some());
    let worlds = World::threads(workers + servers).unwrap();
    let work = |world: World| {
        let world = world.with_servers(servers).unwrap();
        if world.is_server() {
            Server::new().run(&world).unwrap();
            return None;
        }
        let mut trainer = match kind {
            None => trainer(&world),
            Some(kind) => {
                let params = Params::new(1);
                let store = KvStore::with_config(&StoreConfig::new(kind), &world).unwrap();
                let config = DistOptConfig::default();
                let opt = DistOpt::with_servers(Sgd::new(0.01), &params, store.servers(), config);
                trainer_with(&params, opt.unwrap())
            }
        };
        let config = FitConfig { batch_size: 8 / workers, ..config.clone() };
        trainer.fit_with(Fit::new(config), &data(), Some(&data())).unwrap();
        Some(trainer.position().step)
    };
    thread::scope(|scope| {
        let ranks: Vec<_> = worlds.into_iter().map(|world| scope.spawn(|| work(world))).collect();
        ranks.into_iter().filter_map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_call_whose_time_is_over_ends_on_all_ranks_after_the_same_step_and_goes_on() {
    let max_time = |time| FitConfig { max_time: Some(time), ..config(None, 1) };
    for workers in [1, 2] {
        assert_eq!(steps_of(workers, None, &max_time(Duration::MAX)), vec![EPOCH; workers]);
        assert_eq!(steps_of(workers, None, &max_time(Duration::ZERO)), vec![1; workers]);
        let sync = Some(StoreKind::DistSync);
        assert_eq!(steps_of(workers, sync, &max_time(Duration::ZERO)), vec![1; workers]);
    }
    // Workers that do not wait for each other end where they meet.
    let dir = tempfile::tempdir().unwrap();
    let (path, every) = (dir.path().to_owned(), Some(3));
    let checkpoints = Some((path, CheckpointConfig { every, ..CheckpointConfig::default() }));
    let zero = FitConfig { checkpoints, ..max_time(Duration::ZERO) };
    for steps in [3, 6, 9, EPOCH, EPOCH] {
        assert_eq!(steps_of(2, Some(StoreKind::DistAsync), &zero), [steps, steps]);
    }
    // One step of each call, and the same run.
    let dir = tempfile::tempdir().unwrap();
    let limited = FitConfig { max_time: Some(Duration::ZERO), ..config(Some(dir.path()), 2) };
    let calls = (1..=2 * EPOCH).map(|step| {
        let (trainer, _, heard) = run(limited.clone());
        assert_eq!(trainer.position().step, step);
        assert_eq!(heard.end, Some(Some("its time of 0ns is over".to_owned())));
        heard.evaluations
    });
    assert_eq!(calls.flatten().collect::<Vec<_>>(), [EPOCH]);
    let (end, reports, heard) = run(limited);
    assert_eq!((heard.evaluations, reports.len()), (vec![2 * EPOCH], 1));
    let (whole, all, _) = run(config(None, 2));
    assert_eq!(end.parameters_sha256().unwrap(), whole.parameters_sha256().unwrap());
    assert_eq!(reports[0].train_loss, all[1].train_loss);
}

#[test]
fn the_options_of_a_program_are_the_limits_of_its_run() {
    let few = args("--max-steps 70 --max-time 1h30m --limit-train-batches 3").unwrap();
    let config = few.fit_config();
    let limits = (config.max_steps, config.max_time, config.limit_train_batches);
    assert_eq!(limits, (Some(70), Some(Duration::from_secs(5400)), Some(3)));
    let sampler = few.sampler(&World::single(), SAMPLES * 8).unwrap();
    assert_eq!((sampler.steps(), sampler.dropped_per_epoch()), (3, SAMPLES * 8 - 3 * 64));
    // The first evaluation is the best one at a rate of 0.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display();
    let options = format!(
        "--epochs 9 --batch-size 8 --early-stopping 2 --keep-best --checkpoint-keep 1 --checkpoint-dir {path}"
    );
    for _ in 0..2 {
        let mut trainer = line::trainer(&World::single(), 0.0);
        let args = args(&options).unwrap();
        args.check().unwrap();
        let fit = args.fit_on(&World::single(), "points", SAMPLES).unwrap();
        trainer.fit_with(fit, &data(), Some(&data())).unwrap();
        assert_eq!(trainer.position().step, 3 * EPOCH);
    }
    let best = std::fs::read_to_string(dir.path().join("best.json")).unwrap();
    assert!(best.contains("12"), "{best}");
    assert!(dir.path().join("step-00000012").is_dir());
    let refused = args("--keep-best").unwrap().check().unwrap_err().to_string();
    assert_eq!(refused, "--keep-best is set: it must be used with --checkpoint-dir");
    assert!(args("--early-stopping 0").is_err());
    for wrong in ["--max-steps 0", "--max-time 90", "--max-time 0s", "--limit-train-batches 0"] {
        assert!(args(wrong).is_err(), "{wrong}");
    }
}
