//! Averages of the weights beside a training: what they are, what is evaluated and saved of them, and that the training
//! and a run that continues do not notice.

use std::cell::RefCell;
use std::rc::Rc;

use candelabrum::prelude::*;
use candelabrum::train::hooks::{Action, Run};
use candelabrum::train::{Error, Result};

use crate::line::{Line, data};
use crate::options::args;

fn trainer_of(world: &World, dtype: DType) -> Trainer<Line> {
    let params = Params::on(1, dtype, &Device::Cpu);
    let model = Line { out: Linear::new(&params.root().pp("out"), 1) };
    let sgd = Sgd::new(0.05).momentum(0.9);
    let mut trainer =
        Trainer::new(model, DistOpt::new(sgd, &params, world).unwrap()).with_score(LossOnly);
    trainer.compile((1, 6)).unwrap();
    trainer
}

fn trainer(world: &World) -> Trainer<Line> {
    trainer_of(world, DType::F32)
}

/// 12 steps in an epoch, on any number of ranks that divides 8.
fn config(world: &World, epochs: usize) -> FitConfig {
    let batch_size = 8 / world.world_size();
    FitConfig { epochs, batch_size, evaluate_every: Some(5), ..FitConfig::default() }
}

fn values(trainer: &Trainer<Line>) -> Vec<f32> {
    let params = trainer.opt().params().list();
    let values = params.iter().map(|param| {
        param.with_values(|values| {
            let mut copy = vec![0.0; values.len()];
            values.copy_to_slice(&mut copy)?;
            Ok(copy)
        })
    });
    values.map(|values| values.unwrap()).collect::<Vec<_>>().concat()
}

/// Notes the weights after each step.
struct Weights(Rc<RefCell<Vec<Vec<f32>>>>);

impl Hook for Weights {
    fn name(&self) -> &str {
        "weights"
    }

    fn on_step_end(&mut self, run: &mut Run<'_, '_>) -> Result<Action> {
        let params = run.optimizer().unwrap().params().list();
        let values =
            params.iter().map(|param| param.with_values(|values| Ok(values.host()?.to_vec())));
        self.0.borrow_mut().push(values.map(|values| values.unwrap()).collect::<Vec<_>>().concat());
        Ok(Action::NOTHING)
    }
}

/// A run with an average, and what it should be. Returns the weights after the steps, the average and the loss of the last
/// evaluation.
fn run(average: WeightAverage, dtype: DType) -> (Vec<Vec<f32>>, Vec<f32>, f64) {
    let mut trainer = trainer_of(&World::single(), dtype);
    let weights = Rc::default();
    let fit = Fit::new(config(&World::single(), 2))
        .hook(Weights(Rc::clone(&weights)))
        .hook(average.stays_at_end(true));
    let reports = trainer.fit_with(fit, &data(), Some(&data())).unwrap();
    let evaluated = trainer.evaluate(&data(), 8).unwrap().mean_loss();
    let reported = reports.last().unwrap().eval_loss.unwrap();
    assert!((evaluated - reported).abs() < 1e-9, "{evaluated} {reported}");
    let weights = weights.borrow().clone();
    (weights, values(&trainer), reported)
}

fn assert_near(found: &[f32], expected: &[f64]) {
    for (found, expected) in found.iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} {expected}");
    }
}

#[test]
fn an_exponential_average_is_that_of_the_formula() {
    for dtype in [DType::F32, DType::BF16] {
        for warm_up in [false, true] {
            let ema = WeightAverage::ema(0.9).every(2);
            let ema = if warm_up { ema.warm_up() } else { ema };
            let (weights, average, _) = run(ema, dtype);
            let mut expected: Vec<f64> = Vec::new();
            for (count, weights) in weights.iter().skip(1).step_by(2).enumerate() {
                let count = count as f64;
                let warm = (1.0 + count) / (10.0 + count);
                let decay = if warm_up { warm.min(0.9) } else { 0.9 };
                let new = weights.iter().map(|w| f64::from(*w));
                expected = match count {
                    0.0 => new.collect(),
                    _ => expected
                        .iter()
                        .zip(new)
                        .map(|(a, w)| decay * a + (1.0 - decay) * w)
                        .collect(),
                };
            }
            assert_near(&average, &expected);
            // The masters of half precision are not rounded.
            let is_bf16 = |x: &f32| x.to_bits().trailing_zeros() >= 16;
            assert!(!average.iter().all(is_bf16), "{dtype:?}");
        }
    }
}

#[test]
fn stochastic_weight_averaging_is_the_mean_of_what_it_visits() {
    let (weights, average, _) = run(WeightAverage::swa(12, 4), DType::F32);
    let visited: Vec<&Vec<f32>> = [12, 16, 20, 24].iter().map(|step| &weights[step - 1]).collect();
    let mean = |i: usize| visited.iter().map(|weights| f64::from(weights[i])).sum::<f64>() / 4.0;
    assert_near(&average, &(0..average.len()).map(mean).collect::<Vec<_>>());
}

#[test]
fn the_training_does_not_notice_that_its_average_is_evaluated() {
    let plain = |hook: Option<WeightAverage>| {
        let mut trainer = trainer(&World::single());
        let mut fit = Fit::new(config(&World::single(), 3));
        if let Some(hook) = hook {
            // The inner average is the one that is evaluated.
            fit = fit.hook(WeightAverage::swa(4, 4)).hook(hook);
        }
        let reports = trainer.fit_with(fit, &data(), Some(&data())).unwrap();
        (values(&trainer), reports.iter().map(|report| report.eval_loss).collect::<Vec<_>>())
    };
    let (weights, losses) = plain(None);
    let (with_average, of_average) = plain(Some(WeightAverage::ema(0.95)));
    assert_eq!(weights, with_average);
    assert!(losses.iter().zip(&of_average).all(|(a, b)| a != b), "{losses:?} {of_average:?}");
    let mut trainer = trainer(&World::single());
    let fit = Fit::new(config(&World::single(), 3)).hook(WeightAverage::ema(0.95).evaluates(false));
    let reports = trainer.fit_with(fit, &data(), Some(&data())).unwrap();
    assert_eq!(reports.iter().map(|report| report.eval_loss).collect::<Vec<_>>(), losses);
    assert_eq!(values(&trainer), weights);
}

#[test]
fn the_average_of_the_best_checkpoint_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = trainer(&World::single());
    let checkpoints = Some((dir.path().to_owned(), CheckpointConfig::default()));
    let fit = Fit::new(FitConfig { checkpoints, ..config(&World::single(), 2) })
        .hook(WeightAverage::ema(0.9))
        .hook(BestModel::new(Monitor::loss()));
    trainer.fit_with(fit, &data(), Some(&data())).unwrap();
    let raw = trainer.evaluate(&data(), 8).unwrap().mean_loss();
    let params = trainer.opt().params().clone();
    let best = load_best_average(dir.path(), None, "ema", &params).unwrap();
    let loaded = trainer.evaluate(&data(), 8).unwrap().mean_loss();
    assert!((loaded - best.value).abs() < 1e-9 && loaded != raw, "{loaded} {best:?} {raw}");
    let error = load_best_average(dir.path(), None, "swa", &params).unwrap_err().to_string();
    assert!(error.contains("has no average `swa` of the weights"), "{error}");
}

/// The error of a run with this hook.
fn refused(hook: WeightAverage) -> Error {
    let fit = Fit::new(config(&World::single(), 1)).hook(hook);
    trainer(&World::single()).fit_with(fit, &data(), Some(&data())).unwrap_err()
}

#[test]
fn settings_and_states_without_meaning_are_refused() {
    for decay in [1.0, -0.5, f64::NAN] {
        let error = refused(WeightAverage::ema(decay)).to_string();
        assert!(error.contains("at least 0 and below 1"), "{error}");
    }
    let error = refused(WeightAverage::swa(4, 0)).to_string();
    assert!(error.contains("the steps between two averages of weights is 0"), "{error}");
    let mut ema = WeightAverage::ema(0.5);
    ema.restore_vectors([("out.weight".to_owned(), vec![0.0; 6])].into()).unwrap();
    let error = refused(ema).to_string();
    assert!(error.contains("it has no average of `out.bias`"), "{error}");
    let mut ema = WeightAverage::ema(0.5);
    ema.restore_vectors([("out.weight".to_owned(), vec![0.0; 7])].into()).unwrap();
    let error = refused(ema).to_string();
    assert!(error.contains("7 elements there and 6 here"), "{error}");
}

#[test]
fn options_of_averages_that_contradict_each_other_are_refused() {
    let check = |options| args(options).unwrap().check();
    for good in ["", "--ema 0.99", "--ema 0.99 --ema-every 4 --ema-warmup", "--swa 100:10"] {
        check(good).unwrap();
    }
    for (bad, words) in [
        ("--ema 1", "the decay of the average of weights is 1"),
        ("--ema 0.9 --swa 1:1", "left out with --ema"),
        ("--ema-every 2", "used with --ema"),
        ("--swa 1:1 --ema-warmup", "used with --ema"),
        ("--ema 0.9 --ema-every 0", "at least 1"),
        ("--use-average false", "used with --ema or --swa"),
    ] {
        let error = check(bad).unwrap_err().to_string();
        assert!(error.contains(words), "{bad}: {error}");
    }
}
