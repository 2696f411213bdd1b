//! Averages of weights of which each rank keeps its shard: what an evaluation that fails on one rank, a hook that makes the
//! model whole, and a run that continues make of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use candelabrum::candle;
use candelabrum::dist::parameters_sha256;
use candelabrum::nn::Recompute;
use candelabrum::nn::layers::Blocks;
use candelabrum::prelude::*;
use candelabrum::train::checkpoint::OwnPart;
use candelabrum::train::hooks::{Action, NamedVector, Run};
use candelabrum::train::{Interrupt, Result};
use candelabrum_testkit::uniform;

use crate::ranks::on_ranks;

const WIDTH: usize = 6;
/// The first feature of a sample that a rank cannot evaluate.
const BAD: f32 = 99.0;

/// Blocks and a last layer, which refuse a bad sample on one rank.
struct Net {
    blocks: Blocks<Linear>,
    last: Linear,
    fails: bool,
}

impl Model for Net {
    fn forward(&self, xs: &Tensor) -> candle::Result<Tensor> {
        let first = xs.to_dtype(DType::F32)?.get(0)?.get(0)?.to_scalar::<f32>()?;
        if self.fails && first == BAD {
            candle::bail!("this rank cannot evaluate");
        }
        let ys = self.blocks.forward_by(xs, |layer, xs| layer.forward(xs)?.tanh())?;
        self.last.forward(&ys)
    }

    fn loss(&self, output: &Tensor, ys: &Tensor) -> candle::Result<Tensor> {
        (output.to_dtype(DType::F32)? - ys.to_dtype(DType::F32)?)?.sqr()?.mean_all()
    }
}

fn trainer(world: &World, shard: Shard, dtype: DType, fails: bool) -> Trainer<Net> {
    let params = Params::on(7, dtype, &Device::Cpu);
    params.set_recompute(Recompute::All);
    let scope = params.root();
    let block = |number: usize| Linear::new(&scope.pp("blocks").pp(number), WIDTH);
    let blocks = Blocks::new(&scope, (0..3).map(block));
    let net = Net { blocks, last: Linear::new(&scope.pp("last"), 1), fails };
    let config = DistOptConfig { shard, ..DistOptConfig::default() };
    let opt = DistOpt::with_config(AdamW::new(0.01), &params, world, config).unwrap();
    let mut trainer = Trainer::new(net, opt).with_score(LossOnly);
    trainer.compile((1, WIDTH)).unwrap();
    trainer
}

fn data(seed: u64, samples: usize) -> TensorDataset<(Tensor, Tensor)> {
    let xs = uniform((samples, WIDTH), seed, -1.0, 1.0, DType::F32).unwrap();
    TensorDataset::pair(xs.clone(), xs.narrow(1, 0, 1).unwrap()).unwrap()
}

/// Data of which each batch begins with a bad sample.
fn bad_data() -> TensorDataset<(Tensor, Tensor)> {
    let xs = Tensor::full(BAD, (12, WIDTH), &Device::Cpu).unwrap();
    TensorDataset::pair(xs.clone(), xs.narrow(1, 0, 1).unwrap()).unwrap()
}

const ALL: [(Shard, DType); 5] = [
    (Shard::None, DType::F32),
    (Shard::Optimizer, DType::F32),
    (Shard::Optimizer, DType::BF16),
    (Shard::Parameters, DType::F32),
    (Shard::Parameters, DType::BF16),
];

#[test]
fn an_evaluation_that_fails_on_one_rank_is_an_error_of_all_and_the_weights_are_those_of_the_training()
 {
    for (shard, dtype) in ALL {
        for watched in [false, true] {
            let ends = on_ranks(2, |world| {
                let mut trainer = trainer(world, shard, dtype, world.rank() == 1);
                let interrupt = if watched { Interrupt::watched() } else { Interrupt::default() };
                let config =
                    FitConfig { epochs: 1, batch_size: 3, interrupt, ..FitConfig::default() };
                let ema = || WeightAverage::ema(0.5);
                let fit = Fit::new(config.clone()).hook(ema());
                let error = trainer.fit_with(fit, &data(1, 24), Some(&bad_data())).unwrap_err();
                let weights = parameters_sha256(trainer.opt().params()).unwrap();
                // The ranks are at the same place, and go on.
                let alone = trainer.evaluate(&bad_data(), 3).unwrap_err();
                let fit = Fit::new(config).hook(ema());
                trainer.fit_with(fit, &data(1, 24), Some(&data(2, 12))).unwrap();
                (error.to_string(), alone.to_string(), weights)
            });
            let plain = on_ranks(2, |world| {
                let mut trainer = trainer(world, Shard::None, dtype, false);
                let config = FitConfig { epochs: 1, batch_size: 3, ..FitConfig::default() };
                trainer.fit_with(Fit::new(config), &data(1, 24), NOTHING).unwrap();
                parameters_sha256(trainer.opt().params()).unwrap()
            });
            for (rank, (error, alone, weights)) in ends.into_iter().enumerate() {
                let of = format!("{shard}, {dtype:?}, {watched}, rank {rank}");
                assert!(error.contains("this rank cannot evaluate"), "{of}: {error}");
                assert!(alone.contains("this rank cannot evaluate"), "{of}: {alone}");
                assert_eq!(error.contains("rank 1: "), rank == 0, "{of}: {error}");
                assert_eq!(weights, plain[rank], "{of}");
            }
        }
    }
}

const NOTHING: Option<&TensorDataset<(Tensor, Tensor)>> = None;

/// Makes the model whole after some steps, as a hook that exports it.
struct Gathers;

impl Hook for Gathers {
    fn name(&self) -> &str {
        "gathers"
    }

    fn on_step_end(&mut self, run: &mut Run<'_, '_>) -> Result<Action> {
        if run.position.step.is_multiple_of(3) {
            run.optimizers.iter_mut().try_for_each(|(_, opt)| opt.gather_parameters())?;
        }
        Ok(Action::NOTHING)
    }
}

#[test]
fn a_hook_that_gathers_the_parameters_changes_no_average() {
    for (shard, dtype) in ALL {
        for (first, gathers) in [(false, false), (false, true), (true, true)] {
            let run = |shard, gathers| {
                on_ranks(2, |world| {
                    let mut trainer = trainer(world, shard, dtype, false);
                    let config = FitConfig {
                        epochs: 2,
                        batch_size: 3,
                        evaluate_every: Some(3),
                        ..FitConfig::default()
                    };
                    let mut fit = Fit::new(config);
                    if gathers && first {
                        fit = fit.hook(Gathers);
                    }
                    fit = fit.hook(WeightAverage::swa(3, 1).stays_at_end(true));
                    if gathers && !first {
                        fit = fit.hook(Gathers);
                    }
                    let reports = trainer.fit_with(fit, &data(1, 24), Some(&data(2, 12))).unwrap();
                    let losses: Vec<f64> = reports.iter().map(|it| it.eval_loss.unwrap()).collect();
                    (losses, parameters_sha256(trainer.opt().params()).unwrap())
                })
            };
            let expected = run(Shard::None, false);
            assert_eq!(run(shard, gathers), expected, "{shard} {dtype:?} {first} {gathers}");
        }
    }
}

/// Has the elements of a vector as its state, of which each rank saves a half and needs another part.
struct Halves<'a>(&'a Mutex<BTreeMap<usize, Vec<f32>>>, usize, Vec<f32>);

const ELEMENTS: usize = 10;

impl Hook for Halves<'_> {
    fn name(&self) -> &str {
        "halves"
    }

    fn vectors(&mut self, _: &mut Run<'_, '_>) -> Result<Vec<NamedVector<'_>>> {
        let start = self.1 * ELEMENTS / 2;
        self.2 = (start..start + ELEMENTS / 2).map(|number| number as f32).collect();
        let (name, dims) = ("numbers".to_owned(), vec![2, ELEMENTS / 2]);
        Ok(vec![NamedVector { name, dims, values: (&self.2).into(), shard: Some(start) }])
    }

    fn own_parts(&mut self, _: &mut Run<'_, '_>) -> Result<BTreeMap<String, OwnPart>> {
        let (dims, elements) = (vec![2, ELEMENTS / 2], self.1..self.1 + 6);
        Ok(BTreeMap::from([("numbers".to_owned(), OwnPart { dims, elements })]))
    }

    fn restore_vectors(&mut self, mut vectors: BTreeMap<String, Vec<f32>>) -> Result<()> {
        self.0.lock().unwrap().insert(self.1, vectors.remove("numbers").unwrap());
        Ok(())
    }
}

#[test]
fn a_rank_reads_its_own_part_of_the_vectors_of_hooks() {
    let dir = tempfile::tempdir().unwrap();
    let restored = Mutex::default();
    for epochs in [1, 2] {
        on_ranks(2, |world| {
            let mut trainer = trainer(world, Shard::Parameters, DType::F32, false);
            let checkpoints = Some((dir.path().to_owned(), CheckpointConfig::default()));
            let config = FitConfig { epochs, batch_size: 6, checkpoints, ..FitConfig::default() };
            let fit = Fit::new(config).hook(Halves(&restored, world.rank(), Vec::new()));
            trainer.fit_with(fit, &data(1, 24), NOTHING).unwrap();
        });
    }
    let expected = [(0, 0..6), (1, 1..7)];
    let expected = expected.map(|(rank, part)| (rank, part.map(|number| number as f32).collect()));
    assert_eq!(*restored.lock().unwrap(), BTreeMap::from(expected));
}

/// The digests after a run whose model has its average at the end.
fn run(dir: &Path, shard: Shard, ranks: usize, epochs: usize) -> Vec<String> {
    on_ranks(ranks, |world| {
        let mut trainer = trainer(world, shard, DType::F32, false);
        let checkpoints = Some((dir.to_owned(), CheckpointConfig::default()));
        let batch_size = 12 / ranks;
        let config = FitConfig { epochs, batch_size, checkpoints, ..FitConfig::default() };
        let fit = Fit::new(config).hook(WeightAverage::ema(0.5).stays_at_end(true));
        trainer.fit_with(fit, &data(1, 24), Some(&data(2, 12))).unwrap();
        parameters_sha256(trainer.opt().params()).unwrap()
    })
}

#[test]
fn an_average_continues_with_other_shards() {
    let dirs: [_; 2] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    let [whole, mixed] = dirs.each_ref().map(tempfile::TempDir::path);
    let expected = run(whole, Shard::None, 2, 4);
    for (epochs, shard) in
        [(1, Shard::Parameters), (2, Shard::None), (3, Shard::Parameters), (4, Shard::Optimizer)]
    {
        let digests = run(mixed, shard, 2, epochs);
        if epochs == 4 {
            assert_eq!(digests, expected);
        }
    }
}
