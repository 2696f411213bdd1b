//! The weights of the best checkpoint in one file: what reads it, which weights it has, and what is an error on all ranks.

use std::fs;
use std::path::Path;

use candelabrum::candle;
use candelabrum::prelude::*;
use candelabrum::train::Result;
use candle_nn::{ModuleT, VarBuilder};

use crate::line::{SAMPLES, data};
use crate::options::args;
use crate::ranks::on_ranks;

/// A linear layer with normalised inputs: parameters, and buffers.
struct Net {
    norm: BatchNorm1d,
    out: Linear,
}

impl Model for Net {
    fn forward(&self, xs: &Tensor) -> candle::Result<Tensor> {
        self.out.forward(&self.norm.forward(xs)?)
    }

    fn loss(&self, output: &Tensor, ys: &Tensor) -> candle::Result<Tensor> {
        (output - ys)?.sqr()?.mean_all()
    }
}

fn trainer(world: &World) -> Trainer<Net> {
    let params = Params::new(1);
    let root = params.root();
    let model =
        Net { norm: BatchNorm1d::new(&root.pp("norm")), out: Linear::new(&root.pp("out"), 1) };
    let opt = DistOpt::new(Sgd::new(0.01), &params, world).unwrap();
    let mut trainer = Trainer::new(model, opt).with_score(LossOnly);
    trainer.compile((2, 6)).unwrap();
    trainer
}

fn config(dir: &Path, ranks: usize, epochs: usize) -> FitConfig {
    let checkpoints = Some((dir.to_owned(), CheckpointConfig::default()));
    FitConfig { epochs, batch_size: 8 / ranks, checkpoints, ..FitConfig::default() }
}

/// The mean loss on all data.
fn loss(trainer: &mut Trainer<Net>) -> f64 {
    trainer.evaluate(&data(), 8).unwrap().mean_loss()
}

/// The loss of a new model with the weights of a file.
fn loss_of(file: &Path) -> f64 {
    let mut trainer = trainer(&World::single());
    trainer.opt().params().load_weights(file, &NameMap::new()).unwrap().complete().unwrap();
    loss(&mut trainer)
}

#[test]
fn the_file_has_the_best_weights_for_this_crate_and_for_candle() {
    for ranks in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let [saved, file] = ["saved", "best.safetensors"].map(|name| dir.path().join(name));
        on_ranks(ranks, |world| {
            // The first epoch is the best one, and the training goes on.
            let best = BestModel::new(Monitor::new("loss", Direction::Maximize));
            let fit = Fit::new(config(&saved, ranks, 3)).hook(best).hook(ExportBest::new(&file));
            trainer(world).fit_with(fit, &data(), Some(&data())).unwrap();
        });
        let mut best = trainer(&World::single());
        let noted = load_best(&saved, None, best.opt().params()).unwrap();
        assert_eq!((noted.step, loss_of(&file)), (12, loss(&mut best)));
        // As a function, for a run that has ended.
        let again = dir.path().join("again.safetensors");
        assert_eq!(export_best(&saved, Some("loss"), &again).unwrap(), noted);
        assert_eq!(fs::read(&again).unwrap(), fs::read(&file).unwrap());
        // A model of candle-nn.
        let tensors = candle::safetensors::load(&file, &Device::Cpu).unwrap();
        let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
        let norm = candle_nn::batch_norm(6, 1e-5, vb.pp("norm")).unwrap();
        let out = candle_nn::linear(6, 1, vb.pp("out")).unwrap();
        let xs = candelabrum_testkit::uniform((5, 6), 3, -1.0, 1.0, DType::F32).unwrap();
        let candles = out.forward(&norm.forward_t(&xs, false).unwrap()).unwrap();
        let ours = best.predict(&TensorDataset::single(xs).unwrap(), 5).unwrap();
        let differences = (candles - ours).unwrap().abs().unwrap().flatten_all().unwrap();
        assert!(differences.to_vec1::<f32>().unwrap().iter().all(|difference| *difference < 1e-6));
    }
}

#[test]
fn an_average_that_was_evaluated_takes_the_place_of_the_weights() {
    let dir = tempfile::tempdir().unwrap();
    let (saved, file) = (dir.path().join("saved"), dir.path().join("best.safetensors"));
    let mut ends = trainer(&World::single());
    let fit = Fit::new(config(&saved, 1, 2))
        .hook(WeightAverage::ema(0.9))
        .hook(BestModel::new(Monitor::loss()))
        .hook(ExportBest::new(&file).measure("loss").average("ema"));
    ends.fit_with(fit, &data(), Some(&data())).unwrap();
    let mut best = trainer(&World::single());
    let noted = load_best_average(&saved, None, "ema", best.opt().params()).unwrap();
    assert_eq!(loss_of(&file), loss(&mut best));
    assert!((loss_of(&file) - noted.value).abs() < 1e-9);
    let weights = dir.path().join("weights.safetensors");
    export_best(&saved, None, &weights).unwrap();
    assert_ne!(loss_of(&weights), loss_of(&file));
    let error = export_best_average(&saved, None, "swa", &weights).unwrap_err().to_string();
    assert!(error.contains("has no average `swa` of the weights"), "{error}");
    // The best checkpoint is of the time before the average: its weights were evaluated.
    let dir = tempfile::tempdir().unwrap();
    let (saved, file) = (dir.path().join("saved"), dir.path().join("best.safetensors"));
    let fit = Fit::new(config(&saved, 1, 2))
        .hook(WeightAverage::swa(20, 1))
        .hook(BestModel::new(Monitor::new("loss", Direction::Maximize)))
        .hook(ExportBest::new(&file).average("swa"));
    let reports = trainer(&World::single()).fit_with(fit, &data(), Some(&data())).unwrap();
    assert!((loss_of(&file) - reports[0].eval_loss.unwrap()).abs() < 1e-9);
}

/// Trains, and takes away the directory of the file at the end.
struct Removes<'a>(&'a Path);

impl Hook for Removes<'_> {
    fn name(&self) -> &str {
        "removes"
    }

    fn on_end(
        &mut self,
        run: &mut candelabrum::train::hooks::Run<'_, '_>,
        _: Option<&str>,
    ) -> Result<()> {
        if run.is_root() {
            fs::remove_dir_all(self.0).unwrap();
        }
        Ok(())
    }
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_on_all_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    let errors = |removes: bool| {
        on_ranks(2, |world| {
            let fit = Fit::new(config(&dir.path().join("saved"), 2, 1));
            let fit = if removes { fit.hook(Removes(&gone)) } else { fit };
            let fit = fit
                .hook(BestModel::new(Monitor::loss()))
                .hook(ExportBest::new(gone.join("best.safetensors")));
            trainer(world).fit_with(fit, &data(), Some(&data())).unwrap_err().to_string()
        })
    };
    // Before the first step, and at the end.
    let first = errors(false);
    assert!(!dir.path().join("saved/best.json").exists());
    fs::create_dir(&gone).unwrap();
    for errors in [first, errors(true)] {
        let what = format!("cannot write the weights {}/best.safetensors: ", gone.display());
        assert!(errors[0].starts_with(&what), "{errors:?}");
        assert!(errors[1].starts_with(&format!("rank 0: {what}")), "{errors:?}");
    }
}

#[test]
fn what_is_no_best_checkpoint_is_refused_and_leaves_the_file_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (saved, file) = (dir.path().join("saved"), dir.path().join("best.safetensors"));
    fs::write(&file, "mine").unwrap();
    let run = |max_time, best: bool| {
        let fit = Fit::new(FitConfig { max_time, ..config(&saved, 1, 2) });
        let fit = if best { fit.hook(BestModel::new(Monitor::loss())) } else { fit };
        let fit = fit.hook(ExportBest::new(&file));
        trainer(&World::single()).fit_with(fit, &data(), Some(&data())).map(|_| ())
    };
    // A call that ends before the first evaluation has nothing to write.
    run(Some(std::time::Duration::ZERO), true).unwrap();
    let error = run(None, false).unwrap_err().to_string();
    assert!(error.ends_with("has no best checkpoint: the hook BestModel makes it"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    let none = Fit::new(FitConfig { checkpoints: None, ..config(&saved, 1, 1) });
    let none = none.hook(ExportBest::new(&file));
    let error = trainer(&World::single()).fit_with(none, &data(), Some(&data())).unwrap_err();
    assert!(
        error.to_string().contains("it must be used with a directory of checkpoints"),
        "{error}"
    );
    // A damaged checkpoint.
    let saved = dir.path().join("damaged");
    let fit = Fit::new(config(&saved, 1, 1)).hook(BestModel::new(Monitor::loss()));
    trainer(&World::single()).fit_with(fit, &data(), Some(&data())).unwrap();
    let weights = saved.join("step-00000012/parameters.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    let error = export_best(&saved, None, &file).unwrap_err().to_string();
    assert!(error.contains("parameters.safetensors is damaged"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

#[test]
fn a_program_exports_what_it_has_evaluated() {
    for (average, is_average) in
        [("", false), ("--ema 0.9", true), ("--ema 0.9 --use-average false", false)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (saved, file) = (dir.path().join("saved"), dir.path().join("best.safetensors"));
        let options = format!(
            "--epochs 2 --batch-size 8 --checkpoint-dir {} --export-best {} {average}",
            saved.display(),
            file.display()
        );
        let args = args(&options).unwrap();
        args.check().unwrap();
        let fit = args.fit_on(&World::single(), "points", SAMPLES).unwrap();
        trainer(&World::single()).fit_with(fit, &data(), Some(&data())).unwrap();
        let mut best = trainer(&World::single());
        let params = best.opt().params().clone();
        if is_average {
            load_best_average(&saved, None, "ema", &params).unwrap();
        } else {
            load_best(&saved, None, &params).unwrap();
        }
        assert_eq!(loss_of(&file), loss(&mut best), "{average}");
    }
    let refused = args("--export-best best.safetensors").unwrap();
    let refused = refused.check().unwrap_err().to_string();
    assert_eq!(refused, "--export-best is best.safetensors: it must be used with --checkpoint-dir");
    let refused =
        args("--checkpoint-dir x --export-best /nowhere/best.safetensors").unwrap().check();
    assert!(refused.unwrap_err().to_string().starts_with("cannot write the weights /nowhere/best"));
}
