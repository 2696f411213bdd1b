//! Hooks: they stop a run, save it, change its learning rate, and continue with it.

use candelabrum::prelude::*;
use candelabrum::train::hooks::{Action, Run};
use candelabrum::train::{EpochReport, Error, Result};
use candelabrum_testkit::ranks::RanksOf;

use crate::line::{Line, SAMPLES, data, trainer, trainer_with};
use crate::options::args;
use crate::ranks::world_of_rank;

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
        trainer.opt().rate_factor()
    };
    // The first evaluation is the best; each two that follow are one too many.
    assert_eq!(run(2), 1.0);
    assert_eq!(run(3), 0.5);
    assert_eq!(run(5), 0.25);
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

/// Fails after an epoch.
struct FailsAfter(usize);

impl Hook for FailsAfter {
    fn name(&self) -> &str {
        "fails_after"
    }

    fn on_epoch_end(&mut self, _: &mut Run<'_, '_>, report: &EpochReport) -> Result<Action> {
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
    let args = args(&format!("--epochs 500 --batch-size 8 --report {}", path.display())).unwrap();
    let world = World::single();
    let fit = args.fit_on(&world, "points", SAMPLES).unwrap().hook(FailsAfter(300));
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

    fn on_step_end(&mut self, run: &mut Run<'_, '_>) -> Result<Action> {
        let asks = self.rank == 1 && run.position.step == self.after;
        let stop = asks.then(|| "rank 1 has had enough".to_owned());
        Ok(Action { stop, ..Action::NOTHING })
    }

    fn acts_on_step_end(&self) -> bool {
        true
    }

    fn on_epoch_end(&mut self, _: &mut Run<'_, '_>, report: &EpochReport) -> Result<Action> {
        panic!("epoch {} never ends", report.epoch);
    }
}

#[test]
fn rank_main() {
    let Some(world) = world_of_rank() else { return };
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
    let outputs = RanksOf::new(rank_main).run_all_good(3);
    for (rank, output) in outputs.iter().enumerate() {
        let expected = format!("4 steps, {} lines", usize::from(rank == 0));
        assert!(output.text.contains(&expected), "rank {rank}: {}", output.text);
        assert!(output.text.contains("the hooks"), "rank {rank}: {}", output.text);
    }
    assert!(outputs[0].text.contains("another rank asked for it"), "{}", outputs[0].text);
}

/// Counts the evaluations, and notes the learning rate of each step.
#[derive(Default)]
struct Counts {
    evaluations: Vec<u64>,
    rates: Vec<f64>,
}

impl Hook for Counts {
    fn name(&self) -> &str {
        "counts"
    }

    fn on_step_end(&mut self, run: &mut Run<'_, '_>) -> Result<Action> {
        self.rates.extend(run.step_learning_rate);
        Ok(Action::NOTHING)
    }

    fn on_evaluate(&mut self, run: &mut Run<'_, '_>, _: &Metrics) -> Result<Action> {
        self.evaluations.push(run.position.step);
        Ok(Action::NOTHING)
    }
}

#[test]
fn a_model_is_evaluated_once_after_a_step() {
    // Epochs of 12 steps.
    for (every, expected) in [
        (3, vec![3, 6, 9, 12, 15, 18, 21, 24]),
        (5, vec![5, 10, 12, 15, 20, 24]),
        (12, vec![12, 24]),
    ] {
        let mut counts = Counts::default();
        let config = FitConfig { evaluate_every: Some(every), ..config(2) };
        let fit = Fit::new(config).hook(&mut counts);
        let reports =
            trainer(&World::single(), 0.01).fit_with(fit, &data(), Some(&data())).unwrap();
        assert_eq!(counts.evaluations, expected, "every {every} steps");
        assert!(reports.iter().all(|report| report.eval_loss.is_some()));
    }
}

#[test]
fn the_rate_of_a_step_is_the_one_that_the_step_used() {
    let params = Params::new(1);
    let schedule = Schedule::Step { lr: 0.016, every: 1, factor: 0.5 };
    let opt = DistOpt::new(Sgd::new(schedule), &params, &World::single()).unwrap();
    let mut trainer = trainer_with(&params, opt);
    let mut counts = Counts::default();
    let fit = Fit::new(FitConfig { batch_size: 32, ..config(1) }).hook(&mut counts);
    trainer.fit_with(fit, &data(), None::<&TensorDataset<(Tensor, Tensor)>>).unwrap();
    assert_eq!(counts.rates, [0.016, 0.008, 0.004]);
}

/// The checkpoints of a run in `dir`.
fn in_dir(dir: &std::path::Path, config: FitConfig) -> FitConfig {
    let checkpoints = CheckpointConfig { every: Some(1), keep: 2, ..CheckpointConfig::default() };
    FitConfig { checkpoints: Some((dir.to_owned(), checkpoints)), ..config }
}

#[test]
fn two_hooks_of_a_kind_keep_two_states_and_two_best_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let run = |epochs| {
        let mut least = BestModel::new(Monitor::new("mae", Direction::Minimize));
        let mut most = BestModel::new(Monitor::new("mse", Direction::Maximize));
        let fit = Fit::new(in_dir(dir.path(), config(epochs))).hook(&mut least).hook(&mut most);
        trainer(&World::single(), 0.001).fit_with(fit, &data(), Some(&data())).unwrap();
        (least.best().unwrap(), most.best().unwrap())
    };
    let best = |file: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(dir.path().join(file)).unwrap()).unwrap()
    };
    let (mae, mse) = run(1);
    assert_eq!(best("best.json")["value"], mae);
    assert_eq!(
        (best("best-mse.json")["value"].clone(), best("best-mse.json")["step"].clone()),
        (mse.into(), 12.into())
    );
    // The mean absolute error falls, and the largest squared one stays that of the first epoch.
    let (later, same) = run(4);
    assert!(later < mae);
    assert_eq!(same, mse);
    assert_eq!(best("best.json")["step"], 48);
    assert_eq!(best("best-mse.json")["step"], 12);
    assert!(dir.path().join("step-00000012/checkpoint.json").exists());

    // The weights of both, by one call.
    for (measure, value) in [(None, later), (Some("mae"), later), (Some("mse"), mse)] {
        let mut trainer = trainer(&World::single(), 0.001);
        let best = load_best(dir.path(), measure, trainer.opt().params()).unwrap();
        assert_eq!(best.value, value, "{measure:?}");
        let metrics = trainer.evaluate(&data(), 32).unwrap();
        assert_eq!(metrics.measure(measure.unwrap_or("mae")), Some(value));
    }
    let params = Params::new(0);
    let error = load_best(dir.path(), Some("f1"), &params).unwrap_err().to_string();
    assert!(error.contains("has no best checkpoint by `f1`"), "{error}");
    let error = load_best(dir.path(), None, &params).unwrap_err().to_string();
    assert!(error.contains("out.weight"), "a model without these parameters: {error}");
}

#[test]
fn a_run_that_a_hook_has_ended_stays_ended_until_the_hook_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let run = |hook: bool, epochs| {
        let mut trainer = trainer(&World::single(), 0.0);
        let mut fit = Fit::new(in_dir(dir.path(), config(epochs)));
        if hook {
            fit = fit.hook(EarlyStopping::new(Monitor::loss(), 2));
        }
        let reports = trainer.fit_with(fit, &data(), Some(&data())).unwrap();
        (trainer.position().step, reports.len())
    };
    assert_eq!(run(true, 20), (36, 3));
    let file = dir.path().join("step-00000036/checkpoint.json");
    let written = std::fs::metadata(&file).unwrap().modified().unwrap();
    for _ in 0..2 {
        assert_eq!(run(true, 30), (36, 0), "it is started again");
    }
    assert_eq!(std::fs::metadata(&file).unwrap().modified().unwrap(), written);
    assert_eq!(run(false, 4), (48, 1), "the hook was left out");
}

/// A measure that is infinite.
struct Perplexity;

impl Score for Perplexity {
    fn add(&self, _: &Tensor, _: &Tensor, metrics: &mut Metrics) -> Result<()> {
        metrics.add_measure("perplexity", f64::INFINITY, 1.0);
        metrics.add_measure("nothing", f64::NAN, 1.0);
        Ok(())
    }
}

#[test]
fn a_report_with_numbers_that_are_not_finite_does_not_stop_a_resume() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let run = |epochs: &str| {
        let checkpoints = dir.path().join("checkpoints");
        let (report_to, checkpoints) = (report.display(), checkpoints.display());
        let options = format!("--report {report_to} --checkpoint-dir {checkpoints}");
        let args = args(&format!("--epochs {epochs} --batch-size 8 {options}")).unwrap();
        let mut trainer = trainer(&World::single(), 0.01).with_score(Perplexity);
        let best = BestModel::new(Monitor::new("perplexity", Direction::Minimize));
        let fit = args.fit_on(&World::single(), "points", SAMPLES).unwrap().hook(best);
        trainer.fit_with(fit, &data(), Some(&data())).unwrap();
        let text = std::fs::read_to_string(&report).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    assert_eq!(run("1")["epochs"][0]["measures"]["evaluation/perplexity"], "Infinity");
    let report = run("3");
    assert_eq!(report["epochs"].as_array().unwrap().len(), 3);
    assert_eq!(report["epochs"][0]["measures"]["train/nothing"], "NaN");
}

/// A loss that is below zero, and one that overflows at a high rate.
struct Shifted {
    out: Linear,
    shift: f64,
    overflows: bool,
}

impl Model for Shifted {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        self.out.forward(xs)
    }

    fn loss(&self, output: &Tensor, ys: &Tensor) -> candelabrum::candle::Result<Tensor> {
        let distance = (output - ys)?;
        let loss = match self.overflows {
            true => ((&distance * 3.0)?.exp()? + (distance * -3.0)?.exp()?)?,
            false => distance.sqr()?,
        };
        loss.mean_all()? + self.shift
    }
}

fn find(
    finder: &mut LearningRateFinder,
    lr: impl Into<Schedule>,
    shift: f64,
    overflows: bool,
) -> Vec<f64> {
    let params = Params::new(1);
    let model = Shifted { out: Linear::new(&params.root().pp("out"), 1), shift, overflows };
    let opt = DistOpt::new(Sgd::new(lr), &params, &World::single()).unwrap();
    let mut trainer = Trainer::new(model, opt).with_score(LossOnly);
    trainer.compile((1, 6)).unwrap();
    let mut counts = Counts::default();
    let fit = Fit::new(config(20)).hook(&mut *finder).hook(&mut counts);
    trainer.fit_with(fit, &data(), None::<&TensorDataset<(Tensor, Tensor)>>).unwrap();
    counts.rates
}

#[test]
fn the_finder_tries_its_rates_whatever_the_schedule_says() {
    let tried = |lr: Schedule| {
        let mut finder = LearningRateFinder::new(1e-4, 0.1, 40);
        let used = find(&mut finder, lr, 0.0, false);
        let noted: Vec<f64> = finder.points().iter().map(|(rate, _)| *rate).collect();
        assert_eq!(noted.len(), 40);
        for (used, noted) in used.iter().zip(&noted) {
            assert!((used / noted - 1.0).abs() < 1e-6, "{used} was noted as {noted}");
        }
        finder.points().to_vec()
    };
    let constant = tried(Schedule::Constant(0.3));
    let warm_up = Schedule::Constant(0.01).warm_up(20, 0.0);
    let cosine = Schedule::Cosine { lr: 0.1, steps: 30, min: 0.0 }.warm_up(10, 0.1);
    for schedule in [warm_up, cosine] {
        assert_eq!(tried(schedule), constant);
    }
}

#[test]
fn the_finder_takes_negative_losses_and_ends_where_a_loss_is_not_finite() {
    for shift in [-10.0, -0.3, 0.0, 10.0] {
        let mut finder = LearningRateFinder::new(1e-4, 0.1, 60);
        find(&mut finder, 0.1, shift, false);
        assert_eq!(finder.points().len(), 60, "shift {shift}");
        assert!(finder.suggestion().is_some(), "shift {shift}");
    }
    let mut finder = LearningRateFinder::new(1e-3, 1e6, 60);
    find(&mut finder, 0.1, 0.0, true);
    let points = finder.points();
    assert!(points.len() < 60 && points.iter().all(|(_, loss)| loss.is_finite()), "{points:?}");
}

/// Counts nothing in every third step.
struct CountsSometimes {
    line: Line,
    steps: std::cell::Cell<u64>,
}

impl Model for CountsSometimes {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        self.line.forward(xs)
    }

    fn loss(&self, output: &Tensor, ys: &Tensor) -> candelabrum::candle::Result<Tensor> {
        let step = self.steps.replace(self.steps.get() + 1);
        let counted = if step.is_multiple_of(3) { 0.0 } else { 8.0 };
        candelabrum::nn::weighted(&(self.line.loss(output, ys)? + 10.0)?, counted)
    }
}

#[test]
fn the_finder_tries_a_rate_again_where_nothing_counts() {
    let params = Params::new(1);
    let line = Line { out: Linear::new(&params.root().pp("out"), 1) };
    let model = CountsSometimes { line, steps: std::cell::Cell::new(0) };
    let opt = DistOpt::new(Sgd::new(0.1), &params, &World::single()).unwrap();
    let mut trainer = Trainer::new(model, opt).with_score(LossOnly);
    trainer.compile((1, 6)).unwrap();
    let mut finder = LearningRateFinder::new(1e-6, 1e-5, 30);
    let fit = Fit::new(config(20)).hook(&mut finder);
    trainer.fit_with(fit, &data(), None::<&TensorDataset<(Tensor, Tensor)>>).unwrap();
    assert_eq!(trainer.position().step, 45);
    let points = finder.points();
    assert_eq!(points.len(), 30);
    assert!(points.iter().all(|(_, loss)| (10.0..12.0).contains(loss)), "{points:?}");
}

#[test]
fn a_creeping_loss_is_a_plateau() {
    // Losses that fall by a hundred-thousandth each time, as PyTorch counts them: five reductions in 16 evaluations.
    let hook = ReduceOnPlateau::new(Monitor::loss()).patience(2);
    let factor = |hook: ReduceOnPlateau| {
        let mut trainer = trainer(&World::single(), 1e-7);
        let fit = Fit::new(config(16)).hook(hook);
        trainer.fit_with(fit, &data(), Some(&data())).unwrap();
        trainer.opt().rate_factor()
    };
    let reduced = factor(hook.clone());
    assert!((reduced / 1e-5 - 1.0).abs() < 1e-9, "{reduced}");
    let every_change = ReduceOnPlateau::new(Monitor::loss().min_delta(0.0)).patience(2);
    assert_eq!(factor(every_change), 1.0);
}

#[test]
fn options_that_a_program_does_not_read_are_refused_before_the_first_step() {
    for (options, named) in [
        ("--augment crop-flip", "args.augmented"),
        ("--data-dir /nowhere", "load_data"),
        ("--dataset mnist", "load_data"),
        ("--precision f16", "args.precision.params"),
        ("--precision bf16", "args.precision.params"),
    ] {
        let given = args(&format!("--epochs 1 {options}")).unwrap();
        let fit = || given.fit_on(&World::single(), "points", SAMPLES).unwrap();
        let mut trainer = trainer(&World::single(), 0.01);
        let refused = trainer.fit_with(fit(), &data(), Some(&data())).unwrap_err().to_string();
        assert!(
            refused.contains(options.split(' ').next().unwrap()) && refused.contains(named),
            "{refused}"
        );
        assert_eq!(trainer.position().step, 0);
        // A program that reads them trains.
        let digits = Mnist::synthetic(0, 8, 8).unwrap();
        drop((given.augmented(&digits.train), given.data_request()));
        let read = trainer.fit_with(fit(), &data(), Some(&data()));
        assert_eq!(read.is_ok(), named != "args.precision.params", "{options:?}");
        let own = args(&format!("--epochs 2 {options}")).unwrap();
        let _ = (own.augment(), own.dataset(), own.data_dir());
        let fit = own.fit_on(&World::single(), "points", SAMPLES).unwrap();
        let read = trainer.fit_with(fit, &data(), Some(&data()));
        assert_eq!(read.is_ok(), named != "args.precision.params", "{options:?}");
    }
}

/// A task with steps of its own.
struct OwnSteps(Trainer<Line>);

impl Task<(Tensor, Tensor)> for OwnSteps {
    fn train(&mut self, batch: &(Tensor, Tensor), metrics: &mut Metrics) -> Result<f32> {
        Task::train(&mut self.0, batch, metrics)
    }
    fn evaluate(&mut self, batch: &(Tensor, Tensor), metrics: &mut Metrics) -> Result<()> {
        Task::evaluate(&mut self.0, batch, metrics)
    }
    fn optimizer(&mut self) -> &mut DistOpt {
        self.0.opt_mut()
    }
    fn position(&mut self) -> &mut candelabrum::train::checkpoint::Position {
        Task::<(Tensor, Tensor)>::position(&mut self.0)
    }
}

#[test]
fn settings_of_steps_that_a_task_does_not_obey_are_refused() {
    for (config, named) in [
        (FitConfig { accumulate: 2, ..config(1) }, "accumulate"),
        (FitConfig { uneven: true, ..config(1) }, "uneven"),
        (FitConfig { dist_option: DistOption::Fp16, ..config(1) }, "dist_option"),
        (FitConfig { graph: true, ..config(1) }, "graph"),
    ] {
        let mut task = OwnSteps(trainer(&World::single(), 0.01));
        let refused = Fit::new(config).run(&mut task, &data(), Some(&data())).unwrap_err();
        assert!(refused.to_string().contains(named), "{refused}");
    }
    let mut task = OwnSteps(trainer(&World::single(), 0.01));
    Fit::new(config(1)).run(&mut task, &data(), Some(&data())).unwrap();
}

#[test]
fn a_hook_that_follows_evaluations_is_refused_without_data_for_them() {
    fn refusal(hook: impl Hook) -> String {
        let fit =
            Fit::new(FitConfig { epochs: 1, batch_size: 4, ..FitConfig::default() }).hook(hook);
        let end = trainer(&World::single(), 0.01).fit_with(
            fit,
            &data(),
            None::<&TensorDataset<(Tensor, Tensor)>>,
        );
        end.unwrap_err().to_string()
    }
    let errors = [
        ("best_model", refusal(BestModel::new(Monitor::loss()))),
        ("early_stopping", refusal(EarlyStopping::new(Monitor::loss(), 2))),
        ("reduce_on_plateau", refusal(ReduceOnPlateau::new(Monitor::loss()))),
    ];
    for (name, error) in errors {
        let expected = format!(
            "the hook is {name}: it must be left out in a run without data for evaluations"
        );
        assert_eq!(error, expected);
    }
}
