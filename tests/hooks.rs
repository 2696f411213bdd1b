//! Hooks: they stop a run, save it, change its learning rate, and continue with it. Accumulated gradients.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use candelabrum::prelude::*;
use candelabrum::train::cli::TrainArgs;
use candelabrum::train::hooks::{Action, Run};
use candelabrum::train::{EpochReport, Error, Result};
use candelabrum_testkit::ranks::{RanksOf, is_rank};
use candelabrum_testkit::uniform;
use clap::Parser;

const SAMPLES: usize = 96;

fn data() -> TensorDataset<(Tensor, Tensor)> {
    let xs = uniform((SAMPLES, 6), 1, -1.0, 1.0, DType::F32).unwrap();
    let ys = (xs.narrow(1, 0, 1).unwrap() * 0.5).unwrap();
    TensorDataset::pair(xs, ys).unwrap()
}

struct Line {
    out: Linear,
}

impl Model for Line {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        self.out.forward(xs)
    }

    fn loss(&self, output: &Tensor, ys: &Tensor) -> candelabrum::candle::Result<Tensor> {
        (output - ys)?.sqr()?.mean_all()
    }
}

fn trainer(world: &World, rate: f64) -> Trainer<Line> {
    let params = Params::new(1);
    let model = Line { out: Linear::new(&params.root().pp("out"), 1) };
    let sgd = Sgd::new(rate).momentum(0.9);
    let mut trainer = Trainer::new(model, DistOpt::new(sgd, &params, world).unwrap())
        .with_score(RegressionErrors);
    trainer.compile((1, 6)).unwrap();
    trainer
}

fn config(epochs: usize) -> FitConfig {
    FitConfig { epochs, batch_size: 8, ..FitConfig::default() }
}

/// Trains with a hook. Returns the number of steps.
fn steps_with(hook: impl Hook, epochs: usize, rate: f64) -> u64 {
    let mut trainer = trainer(&World::single(), rate);
    let fit = Fit::new(config(epochs)).hook(hook);
    trainer.fit_with(fit, &data(), Some(&data())).unwrap();
    trainer.position().step
}

#[test]
fn early_stopping_waits_for_so_many_evaluations_without_progress() {
    // With a rate of 0 no evaluation after the first one is better.
    let hook = EarlyStopping::new(Monitor::loss(), 2);
    assert_eq!(steps_with(hook, 20, 0.0), 12 * 3);
    let hook = EarlyStopping::new(Monitor::loss(), 2);
    assert_eq!(steps_with(hook, 5, 0.01), 12 * 5);
}

#[test]
fn a_plateau_lowers_the_rate_and_a_resumed_run_keeps_the_factor() {
    let dir = tempfile::tempdir().unwrap();
    let run = |epochs| {
        let mut trainer = trainer(&World::single(), 0.0);
        let hook = ReduceOnPlateau::new(Monitor::loss()).factor(0.5).patience(1);
        let checkpoints = Some((dir.path().to_owned(), CheckpointConfig::default()));
        let fit = Fit::new(FitConfig { checkpoints, ..config(epochs) }).hook(hook);
        trainer.fit_with(fit, &data(), Some(&data())).unwrap();
        trainer.opt().optimizer().rate_factor()
    };
    // The first evaluation is the best; each two that follow are one too many.
    assert_eq!(run(2), 1.0);
    assert_eq!(run(3), 0.5);
    assert_eq!(run(5), 0.25);
}

#[test]
fn the_best_checkpoint_stays() {
    let dir = tempfile::tempdir().unwrap();
    // So slow that the error is smaller after each epoch.
    let mut trainer = trainer(&World::single(), 0.001);
    let config = FitConfig {
        checkpoints: Some((
            dir.path().to_owned(),
            CheckpointConfig { every: Some(1), keep: 1, ..CheckpointConfig::default() },
        )),
        ..config(2)
    };
    // The mean absolute error is lowest in the first evaluation if more is better.
    let best = BestModel::new(Monitor::new("mae", Goal::Maximize));
    trainer.fit_with(Fit::new(config).hook(best), &data(), Some(&data())).unwrap();
    let names: Vec<String> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("step-"))
        .collect();
    assert!(names.contains(&"step-00000012".to_owned()), "{names:?}");
    assert!(names.contains(&"step-00000024".to_owned()), "{names:?}");
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn a_checkpoint_that_is_due_at_the_end_of_an_epoch_has_its_evaluation() {
    let dir = tempfile::tempdir().unwrap();
    let run = || {
        let config = FitConfig {
            checkpoints: Some((
                dir.path().to_owned(),
                CheckpointConfig { every: Some(12), ..CheckpointConfig::default() },
            )),
            ..config(2)
        };
        let mut trainer = trainer(&World::single(), 0.01);
        let epochs = trainer.fit_with(Fit::new(config), &data(), Some(&data())).unwrap();
        (epochs.len(), trainer.position().epoch)
    };
    assert_eq!(run(), (2, 2));
    assert_eq!(run(), (0, 2), "a finished run trains and evaluates nothing more");
}

#[test]
fn a_run_that_continues_with_another_rate_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let notes = |epochs, rate| {
        let checkpoints = Some((dir.path().to_owned(), CheckpointConfig::default()));
        let fit = Fit::new(FitConfig { checkpoints, ..config(epochs) });
        let reports =
            trainer(&World::single(), rate).fit_with(fit, &data(), Some(&data())).unwrap();
        reports[0].notes.join("\n")
    };
    assert_eq!(notes(1, 0.01), "");
    let same = notes(2, 0.01);
    assert!(same.contains("continues") && !same.contains("from now on"), "{same}");
    let other = notes(3, 0.02);
    assert!(other.contains("the optimizer was `Sgd lr=0.01 "), "{other}");
    assert!(other.contains("and is `Sgd lr=0.02 "), "{other}");
}

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
}

/// Fails after an epoch.
struct FailsAfter(usize);

impl Hook for FailsAfter {
    fn name(&self) -> &str {
        "fails_after"
    }

    fn after_epoch(&mut self, _: &mut Run<'_, '_>, report: &EpochReport) -> Result<Action> {
        match report.epoch == self.0 {
            true => Err(Error::Log { what: "there is no more".to_owned() }),
            false => Ok(Action::NOTHING),
        }
    }
}

#[test]
fn a_report_has_all_epochs_before_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.json");
    let report = path.to_str().unwrap();
    let options = ["test", "--epochs", "500", "--batch-size", "8", "--report", report];
    let args = Args::parse_from(options);
    let world = World::single();
    let fit = args.train.fit_on(&world, "points", SAMPLES).unwrap().hook(FailsAfter(300));
    trainer(&world, 0.01).fit_with(fit, &data(), Some(&data())).unwrap_err();
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(report["epochs"].as_array().unwrap().len(), 301);
}

#[test]
fn the_finder_of_the_rate_stops_after_its_last_rate_or_when_the_loss_grows() {
    let mut finder = LearningRateFinder::new(1e-5, 1e-3, 10);
    assert_eq!(steps_with(&mut finder, 3, 0.01), 10);
    let rates: Vec<f64> = finder.points().iter().map(|(rate, _)| *rate).collect();
    assert!((rates[0] / 1e-5 - 1.0).abs() < 1e-9 && (rates[9] / 1e-3 - 1.0).abs() < 1e-9);
    let mut finder = LearningRateFinder::new(1e-3, 100.0, 120);
    assert!(steps_with(&mut finder, 10, 0.01) < 120);
    let found = finder.suggestion().unwrap();
    assert!((1e-3..10.0).contains(&found), "{found}");
}

/// Asks on one rank to stop after a step.
struct OneRank {
    rank: usize,
    after: u64,
}

impl Hook for OneRank {
    fn name(&self) -> &str {
        "one_rank"
    }

    fn after_step(&mut self, run: &mut Run<'_, '_>) -> Result<Action> {
        let asks = self.rank == 1 && run.position.step == self.after;
        let stop = asks.then(|| "rank 1 has had enough".to_owned());
        Ok(Action { stop, ..Action::NOTHING })
    }

    fn acts_after_steps(&self) -> bool {
        true
    }

    fn after_epoch(&mut self, _: &mut Run<'_, '_>, report: &EpochReport) -> Result<Action> {
        panic!("epoch {} never ends", report.epoch);
    }
}

#[test]
fn rank_main() {
    if !is_rank() {
        return;
    }
    let world = World::from_env().unwrap();
    let mut trainer = trainer(&world, 0.05);
    let mut lines = Vec::new();
    let rank = world.rank();
    let fit = Fit::new(config(2)).hook(OneRank { rank, after: 4 }).output(&mut lines);
    trainer.fit_with(fit, &data(), Some(&data())).unwrap();
    let lines = String::from_utf8(lines).unwrap();
    println!("{} steps, {} lines", trainer.position().step, lines.lines().count());
    let mut fit = Fit::new(config(1));
    if world.is_root() {
        fit = fit.hook(EarlyStopping::new(Monitor::loss(), 2));
    }
    let refused = trainer.fit_with(fit, &data(), Some(&data())).unwrap_err();
    println!("{refused}");
}

#[test]
fn one_rank_stops_all_ranks_and_the_root_alone_prints() {
    let outputs = RanksOf::test("rank_main").run_all_good(3);
    for (rank, output) in outputs.iter().enumerate() {
        let expected = format!("4 steps, {} lines", usize::from(rank == 0));
        assert!(output.text.contains(&expected), "rank {rank}: {}", output.text);
        assert!(output.text.contains("the hooks"), "rank {rank}: {}", output.text);
    }
    assert!(outputs[0].text.contains("another rank asked for it"), "{}", outputs[0].text);
}

#[test]
fn micro_batches_train_as_the_whole_batch_does() {
    let values = |accumulate, batch_size| {
        let mut trainer = trainer(&World::single(), 0.05);
        let config = FitConfig { accumulate, batch_size, ..config(2) };
        trainer.fit_with(Fit::new(config), &data(), Some(&data())).unwrap();
        assert_eq!(trainer.position().step, 8);
        let param = &trainer.opt().params().list()[0];
        param.var().flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    let whole = values(1, 24);
    for (accumulate, batch_size) in [(2, 12), (3, 8), (24, 1)] {
        for (a, b) in whole.iter().zip(values(accumulate, batch_size)) {
            assert!((a - b).abs() <= 1e-6, "{accumulate} x {batch_size}: {a}, {b}");
        }
    }
}
