//! A contender in training, and the figures of its steps.

use std::num::NonZeroU32;

use anyhow::ensure;
use candelabrum::dist::World;
use candle_core::{DType, Tensor};
use procfs::process::Process;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::candle::Candle;
use crate::contender::TrainableNetwork;
use crate::ours::OurContender;
use crate::pace::{RankPace, Repeat, cpu_time};
use crate::problem::{ProblemBatches, TrainingProblem, drawn, drawn_tests};
use crate::serve::RequestHandler;
use crate::settings::{ContenderKind, TrainingSettings};

/// A contender and its batches.
pub(crate) struct Training {
    contender: Box<dyn TrainableNetwork>,
    batches: ProblemBatches,
    /// None until they are drawn for the first evaluation.
    tests: Option<ProblemBatches>,
    /// None for a contender that is not evaluated.
    settings: Option<TrainingSettings>,
    taken: usize,
    pace: RankPace,
    /// Every contender takes these steps on the same batches.
    warm_up_losses: Vec<Value>,
}

impl Training {
    /// The contender of `settings` on this rank of `world`, after its warm-up.
    pub(crate) fn new(settings: &TrainingSettings, world: &World) -> anyhow::Result<Self> {
        settings.precision.check(world.device())?;
        let (network, size) = (settings.network, settings.batch_size.get());
        let (train, test, sizes) = match &settings.problem {
            Some(path) => {
                let TrainingProblem { train, test, sizes } = TrainingProblem::read(path, size)?;
                (train, Some(test), sizes)
            }
            None => (drawn(network, size, world.rank())?, None, network.drawn_sizes()),
        };
        let batches = on_device(train, settings, world)?;
        let tests = test.map(|test| on_device(test, settings, world)).transpose()?;
        let contender: Box<dyn TrainableNetwork> = match settings.contender {
            ContenderKind::Ours => {
                Box::new(OurContender::new(settings, sizes, &batches[0].0, world)?)
            }
            ContenderKind::Candle => Box::new(Candle::new(settings, &batches[0].0)?),
        };
        let training = Self::from_contender(contender, batches, settings.warm_up, world)?;
        Ok(Self { tests, settings: Some(settings.clone()), ..training })
    }

    /// A contender after so many steps, without an evaluation.
    pub(crate) fn from_contender(
        contender: Box<dyn TrainableNetwork>,
        batches: ProblemBatches,
        warm_up: usize,
        world: &World,
    ) -> anyhow::Result<Self> {
        let (pace, warm_up_losses) = (RankPace::new(world), Vec::new());
        let (tests, settings) = (None, None);
        let mut training =
            Self { contender, batches, tests, settings, taken: 0, pace, warm_up_losses };
        for _ in 0..warm_up {
            let loss = training.train(Repeat::Steps(NonZeroU32::MIN))?["loss"].take();
            training.warm_up_losses.push(loss);
        }
        Ok(training)
    }

    /// Trains and measures.
    pub(crate) fn train(&mut self, request: Repeat) -> anyhow::Result<Value> {
        let Self { contender, batches, taken, pace, .. } = self;
        let (before, cpu) = (contender.cost(), cpu_time());
        let mut step = || {
            let (xs, ys) = &batches[*taken % batches.len()];
            *taken += 1;
            contender.step(xs, ys)
        };
        let (timed, loss) = pace.run(request, |steps| {
            for _ in 1..steps {
                step()?;
            }
            Ok(step()?.to_dtype(DType::F32)?.to_scalar::<f32>()?) // waits for a GPU
        })?;
        let cpu = cpu_time() - cpu;
        ensure!(loss.is_finite(), "the loss of step {taken} is {loss}");
        let mut sample = timed.fields();
        sample["cpu_seconds"] = cpu.as_secs_f64().into(); // of all threads of this process
        sample["loss"] = loss.into(); // of the last step
        if let Some(peak) = peak_rss_mb() {
            sample["peak_rss_mb"] = peak.into();
        }
        let examples = batches[0].0.dim(0)? * pace.world.world_size();
        sample["examples_per_second"] = (examples as f64 / timed.step_seconds()).into();
        if let Some((before, after)) = before.zip(contender.cost()) {
            after.add_to(&mut sample, &before, &timed);
        }
        Ok(sample)
    }

    /// Evaluates the contender, if it has an evaluation, and adds the figures to a sample.
    fn evaluate(&mut self, sample: &mut Value) -> anyhow::Result<()> {
        let Self { contender, tests, settings: Some(settings), pace, .. } = self else {
            return Ok(());
        };
        let tests = match tests {
            Some(tests) => tests,
            none => {
                let drawn = drawn_tests(settings.network, settings.batch_size.get())?;
                none.insert(on_device(drawn, settings, &pace.world)?)
            }
        };
        if let Some(evaluation) = contender.evaluate(tests)? {
            evaluation.add_to(sample);
        }
        Ok(())
    }

    /// The bytes of the whole network's gradient, in f32.
    pub(crate) fn gradient_bytes(&self) -> usize {
        self.contender.elements() * size_of::<f32>()
    }
}

/// The most memory that this process held, if the system tells.
pub(crate) fn peak_rss_mb() -> Option<f64> {
    let status = Process::myself().and_then(|process| process.status()).ok()?;
    Some(status.vmhwm? as f64 / 1024.0)
}

/// The batches on the device of the rank, with inputs in the type of the settings.
fn on_device(
    batches: ProblemBatches,
    settings: &TrainingSettings,
    world: &World,
) -> candle_core::Result<ProblemBatches> {
    let device = world.device();
    let there = |(xs, ys): (Tensor, Tensor)| {
        let dtype =
            if xs.dtype().is_float() { settings.precision.dtype(device) } else { xs.dtype() };
        Ok((xs.to_device(device)?.to_dtype(dtype)?, ys.to_device(device)?))
    };
    batches.into_iter().map(there).collect()
}

/// Steps, and whether an evaluation follows.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct TrainingRequest {
    #[serde(flatten)]
    repeat: Repeat,
    #[serde(default)]
    evaluate: bool,
}

impl RequestHandler for Training {
    type Request = TrainingRequest;

    fn ready(&self) -> Value {
        json!({"warm_up_losses": self.warm_up_losses, "gradient_bytes": self.gradient_bytes()})
    }

    fn sample(
        &mut self,
        TrainingRequest { repeat, evaluate }: TrainingRequest,
    ) -> anyhow::Result<Value> {
        let mut sample = self.train(repeat)?;
        if evaluate {
            self.evaluate(&mut sample)?;
        }
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use candelabrum::nn::DistOption;
    use candelabrum_testkit::runs_all;
    use clap::Parser;

    use super::*;
    use crate::networks::{NETWORKS, Network};

    fn training(
        contender: ContenderKind,
        network: &str,
        strategy: &str,
    ) -> anyhow::Result<Training> {
        let options =
            ["", "--batch-size", "4", "--warm-up", "3", "--network", network, "--strategy"];
        let settings = TrainingSettings::parse_from([&options[..], &[strategy]].concat());
        Training::new(&TrainingSettings { contender, ..settings }, &World::single())
    }

    /// The networks that are tried: all, or the small ones.
    fn networks() -> impl Iterator<Item = &'static Network> {
        let takes_long = |network: &Network| network.is_large() || network.name == "resnet18";
        NETWORKS.iter().filter(move |network| runs_all() || !takes_long(network))
    }

    #[test]
    fn every_strategy_is_measured() -> anyhow::Result<()> {
        for strategy in DistOption::ALL.iter().map(|option| option.name()) {
            let mut training = training(ContenderKind::Ours, "mlp", strategy)?;
            let sample = training.train(Repeat::Steps(2.try_into()?))?;
            let fields = sample.as_object().expect("it is an object");
            assert_eq!(fields.len(), if strategy.starts_with("sparse") { 18 } else { 17 });
            assert!(fields.values().all(Value::is_number), "{sample}");
            let parts =
                ["forward", "backward", "compress", "exposed", "decompress", "update", "other"];
            let parts = parts.iter().filter_map(|part| fields[&format!("{part}_seconds")].as_f64());
            let (sum, step) = (parts.sum::<f64>(), sample["step_seconds"].as_f64());
            assert!((sum - step.expect("it is a number")).abs() < 1e-8, "{sample}");
            assert!(sample["forward_seconds"].as_f64() > Some(0.0), "{sample}");
        }
        Ok(())
    }

    #[test]
    fn the_losses_are_pytorchs() -> anyhow::Result<()> {
        for network in networks() {
            let Network { name, elements, first_losses: (losses, rounding), .. } = *network;
            let same = |contender, losses: &[f64], rounding| -> anyhow::Result<()> {
                let training = training(contender, name, "fp32")?;
                if elements > 0 {
                    assert_eq!(training.gradient_bytes(), 4 * elements, "{name}");
                }
                check(name, &training.warm_up_losses, losses, rounding);
                Ok(())
            };
            if losses.is_empty() {
                continue;
            }
            same(ContenderKind::Ours, losses, rounding)?;
            // candle's max-pool has another gradient, so only its first loss of the CNN is the same.
            let steps = if name == "cnn" || network.is_large() { 1 } else { 2 };
            if network.candle.is_some() {
                same(ContenderKind::Candle, &losses[..steps], rounding)?;
            }
        }
        Ok(())
    }

    #[test]
    fn batches_of_a_file_are_trained_on_and_evaluated() -> anyhow::Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        for network in ["text-gru", "han", "char-rnn", "mlp"] {
            let options = ["", "--batch-size", "4", "--warm-up", "2", "--network", network];
            let settings = TrainingSettings::parse_from(options);
            let drawn_of = settings.network;
            let (train, test) = (drawn(drawn_of, 4, 0)?, drawn_tests(drawn_of, 4)?);
            TrainingProblem { train, test, sizes: drawn_of.drawn_sizes() }.write(file.path())?;
            let read =
                TrainingSettings { problem: Some(file.path().to_owned()), ..settings.clone() };
            let sample = |settings: &TrainingSettings| -> anyhow::Result<Vec<Value>> {
                let asked = serde_json::from_str(r#"{"steps":2,"evaluate":true}"#)?;
                let sample = Training::new(settings, &World::single())?.sample(asked)?;
                Ok(["loss", "test_loss", "test_accuracy"].map(|name| sample[name].clone()).into())
            };
            let (from_file, expected) = (sample(&read)?, sample(&settings)?);
            assert!(expected.iter().all(Value::is_number), "{network}: {expected:?}");
            assert_eq!(from_file, expected, "{network}");
        }
        std::fs::write(file.path(), "no tensors")?;
        let error = TrainingProblem::read(file.path(), 4).err().expect("it is refused").to_string();
        assert!(error.contains(&*file.path().to_string_lossy()), "{error}");
        Ok(())
    }

    fn check(network: &str, got: &[Value], expected: &[f64], rounding: f64) {
        assert!(got.len() >= expected.len(), "{network}: {got:?}");
        for (got, loss) in got.iter().zip(expected) {
            let difference = got.as_f64().expect("it is a number") - loss;
            assert!(difference.abs() < rounding, "{network}: {got}, expected {loss}");
        }
    }
}
