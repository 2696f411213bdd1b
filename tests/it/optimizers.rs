//! Optimizers whose state is no vector of f32 numbers as long as the parameter, in whole runs: a run that continues
//! has the bits of one that was not interrupted, on one rank and on two.

use std::path::Path;
use std::thread;

use candelabrum::optim::Recipe;
use candelabrum::prelude::*;
use candelabrum::train::cli::TrainArgs;
use candelabrum_testkit::uniform;
use clap::Parser;

const FEATURES: usize = 70;

fn data() -> TensorDataset<(Tensor, Tensor)> {
    let xs = uniform((64, FEATURES), 1, -1.0, 1.0, DType::F32).unwrap();
    let ys = xs.narrow(1, 0, 1).unwrap();
    TensorDataset::pair(xs, ys).unwrap()
}

/// The matrix of the first layer has 4900 elements, enough for averages of 8 bits.
struct Net {
    hidden: Linear,
    out: Linear,
}

impl Model for Net {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        self.out.forward(&self.hidden.forward(xs)?.tanh()?)
    }

    fn loss(&self, output: &Tensor, ys: &Tensor) -> candelabrum::candle::Result<Tensor> {
        (output - ys)?.sqr()?.mean_all()
    }
}

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    train: TrainArgs,
}

fn args(options: &str) -> TrainArgs {
    let words = ["program", "--lr", "0.01"].into_iter().chain(options.split_whitespace());
    Program::try_parse_from(words).unwrap().train
}

const OPTIONS: [&str; 7] = [
    "--optimizer muon",
    "--optimizer muon --muon-except out.* --optimizer-state bf16",
    "--optimizer adafactor",
    "--optimizer adamw8bit",
    "--optimizer adam --optimizer-state bf16",
    "--optimizer lamb --optimizer-state bf16",
    "--optimizer sgd --optimizer-state bf16 --schedule cosine:20",
];

/// Trains up to an epoch of 4 steps. Returns the parameters of each rank.
fn run(ranks: usize, recipe: &Recipe, dir: &Path, epochs: usize) -> Vec<Vec<f32>> {
    let work = |world: World| {
        let params = Params::new(1);
        let root = params.root();
        let model = Net {
            hidden: Linear::new(&root.pp("hidden"), FEATURES),
            out: Linear::new(&root.pp("out"), 1),
        };
        let opt = DistOpt::new(recipe.build(), &params, &world).unwrap();
        let mut trainer = Trainer::new(model, opt).with_score(LossOnly);
        trainer.compile((1, FEATURES)).unwrap();
        let checkpoints = Some((dir.to_owned(), CheckpointConfig::default()));
        let batch_size = 16 / ranks;
        let config = FitConfig { epochs, batch_size, checkpoints, ..FitConfig::default() };
        let losses = trainer.fit_with(Fit::new(config), &data(), Some(&data())).unwrap();
        assert!(losses.iter().all(|epoch| epoch.train_loss.is_finite()));
        let list = params.list();
        let values = list.iter().map(|param| param.var().flatten_all()?.to_vec1::<f32>());
        values.collect::<candelabrum::candle::Result<Vec<_>>>().unwrap().concat()
    };
    let worlds = World::threads(ranks).unwrap();
    thread::scope(|scope| {
        let ranks: Vec<_> = worlds.into_iter().map(|world| scope.spawn(|| work(world))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_run_that_continues_has_the_bits_of_one_that_was_not_interrupted() {
    for options in OPTIONS {
        let recipe = args(options).optimizer.recipe();
        for ranks in [1, 2] {
            let [whole, parts] = [(); 2].map(|()| tempfile::tempdir().unwrap());
            let expected = run(ranks, &recipe, whole.path(), 3);
            run(ranks, &recipe, parts.path(), 1);
            let found = run(ranks, &recipe, parts.path(), 3);
            assert!(found == expected, "{options} on {ranks} ranks");
            assert!(expected.iter().all(|rank| *rank == expected[0]), "{options}");
            // The state is the same on all ranks, so another number of them goes on with it.
            let other = run(3 - ranks, &recipe, parts.path(), 4);
            assert!(other.iter().all(|rank| rank.iter().all(|x| x.is_finite())), "{options}");
        }
    }
}

#[test]
fn a_state_of_another_type_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    run(1, &args("--optimizer adam").optimizer.recipe(), dir.path(), 1);
    let narrow = args("--optimizer adam --optimizer-state bf16").optimizer.recipe();
    let params = Params::new(1);
    let model = Net {
        hidden: Linear::new(&params.root().pp("hidden"), FEATURES),
        out: Linear::new(&params.root().pp("out"), 1),
    };
    let opt = DistOpt::new(narrow.build(), &params, &World::single()).unwrap();
    let mut trainer = Trainer::new(model, opt).with_score(LossOnly);
    trainer.compile((1, FEATURES)).unwrap();
    let checkpoints = Some((dir.path().to_owned(), CheckpointConfig::default()));
    let config = FitConfig { epochs: 2, batch_size: 16, checkpoints, ..FitConfig::default() };
    let error = trainer.fit_with(Fit::new(config), &data(), Some(&data())).unwrap_err();
    assert!(error.to_string().contains("its file of vectors"), "{error}");
}

#[test]
fn options_that_do_not_fit_the_optimizer_are_refused() {
    let error = args("--optimizer adam --muon-except out.*").check().unwrap_err().to_string();
    assert!(error.contains("--muon-except is out.*: it must be left out"), "{error}");
    let options = "--optimizer adamw8bit --optimizer-state bf16";
    let error = args(options).check().unwrap_err().to_string();
    assert!(error.contains("has a state of fewer than 16 bits"), "{error}");
    for options in OPTIONS {
        args(options).check().unwrap();
    }
}

#[test]
fn states_that_are_bit_patterns_are_not_averaged() {
    for options in ["--optimizer adamw8bit", "--optimizer adam --optimizer-state bf16"] {
        let params = Params::new(1);
        let model = Net {
            hidden: Linear::new(&params.root().pp("hidden"), 2),
            out: Linear::new(&params.root().pp("out"), 1),
        };
        let recipe = args(options).optimizer.recipe();
        let opt = DistOpt::new(recipe.build(), &params, &World::single()).unwrap();
        let mut trainer = Trainer::new(model, opt).with_score(LossOnly);
        trainer.compile((1, FEATURES)).unwrap();
        let xs = Tensor::zeros((1, FEATURES), DType::F32, &Device::Cpu).unwrap();
        let ys = Tensor::zeros((1, 1), DType::F32, &Device::Cpu).unwrap();
        let error = trainer.train_one_batch(&xs, &ys, DistOption::PartialUpdate, 0.0).unwrap_err();
        assert!(error.to_string().contains("averages parameters"), "{error}");
        trainer.train_one_batch(&xs, &ys, DistOption::Fp32, 0.0).unwrap();
    }
}
