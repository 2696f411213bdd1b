//! Optimizers whose state is no vector of f32 numbers as long as the parameter: what is refused of them. That a run with
//! one of them continues with the same bits is a law (`tests/law/runs.rs`).

use candelabrum::prelude::*;
use candelabrum_testkit::uniform;

use crate::options::args;

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

const OPTIONS: [&str; 7] = [
    "--optimizer muon",
    "--optimizer muon --muon-except out.* --optimizer-state bf16",
    "--optimizer adafactor",
    "--optimizer adamw8bit",
    "--optimizer adam --optimizer-state bf16",
    "--optimizer lamb --optimizer-state bf16",
    "--optimizer sgd --optimizer-state bf16 --schedule cosine:20",
];

/// A trainer with the optimizer of these options.
fn trainer(options: &str) -> Trainer<Net> {
    let params = Params::new(1);
    let root = params.root();
    let model = Net {
        hidden: Linear::new(&root.pp("hidden"), FEATURES),
        out: Linear::new(&root.pp("out"), 1),
    };
    let recipe = args(options).unwrap().optimizer.recipe();
    let opt = DistOpt::new(recipe.build(), &params, &World::single()).unwrap();
    let mut trainer = Trainer::new(model, opt).with_score(LossOnly);
    trainer.compile((1, FEATURES)).unwrap();
    trainer
}

#[test]
fn a_state_of_another_type_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = |options, epochs| {
        let checkpoints = Some((dir.path().to_owned(), CheckpointConfig::default()));
        let config = FitConfig { epochs, batch_size: 16, checkpoints, ..FitConfig::default() };
        trainer(options).fit_with(Fit::new(config), &data(), Some(&data()))
    };
    run("--optimizer adam", 1).unwrap();
    let error = run("--optimizer adam --optimizer-state bf16", 2).unwrap_err();
    assert!(error.to_string().contains("its file of vectors"), "{error}");
}

#[test]
fn options_that_do_not_fit_the_optimizer_are_refused() {
    let error =
        args("--optimizer adam --muon-except out.*").unwrap().check().unwrap_err().to_string();
    assert!(error.contains("--muon-except is out.*: it must be left out"), "{error}");
    let options = "--optimizer adamw8bit --optimizer-state bf16";
    let error = args(options).unwrap().check().unwrap_err().to_string();
    assert!(error.contains("has a state of fewer than 16 bits"), "{error}");
    for options in OPTIONS {
        args(options).unwrap().check().unwrap();
    }
}

#[test]
fn states_that_are_bit_patterns_are_not_averaged() {
    for options in ["--optimizer adamw8bit", "--optimizer adam --optimizer-state bf16"] {
        let mut trainer = trainer(options);
        let xs = Tensor::zeros((1, FEATURES), DType::F32, &Device::Cpu).unwrap();
        let ys = Tensor::zeros((1, 1), DType::F32, &Device::Cpu).unwrap();
        let error = trainer.train_one_batch(&xs, &ys, DistOption::PartialUpdate, 0.0).unwrap_err();
        assert!(error.to_string().contains("averages parameters"), "{error}");
        trainer.train_one_batch(&xs, &ys, DistOption::Fp32, 0.0).unwrap();
    }
}
