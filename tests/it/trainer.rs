//! `Trainer`: modes that are restored, a second `fit` that continues the first, options for
//! training and evaluation, ranks with different data.

use std::cell::RefCell;

use candelabrum::models::{GruClassifier, GruClassifierConfig, Mlp};
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::RanksOf;

use crate::ranks::world_of_rank;

/// A perceptron that records a weighted sum of each input, in training and in evaluation.
struct Witness {
    hidden: Linear,
    dropout: Dropout,
    out: Linear,
    params: Params,
    trained: RefCell<Vec<f32>>,
    evaluated: RefCell<Vec<f32>>,
}

impl Model for Witness {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        // The weights depend on the place, so the sum depends on the order of the images.
        let count = xs.elem_count();
        let weights = Tensor::arange(0_f32, count as f32, xs.device())?.affine(1e-6, 1.0)?;
        let sum = (xs.flatten_all()? * weights)?.sum_all()?.to_scalar::<f32>()?;
        let seen = if self.params.is_training() { &self.trained } else { &self.evaluated };
        seen.borrow_mut().push(sum);
        let ys = self.dropout.forward(&self.hidden.forward(&xs.flatten_from(1)?)?)?;
        self.out.forward(&ys)
    }
}

fn trainer(world: &World) -> Trainer<Witness> {
    let params = Params::new(1);
    let root = params.root();
    let model = Witness {
        hidden: Linear::new(&root.pp("hidden"), 16).activation(Activation::Relu),
        dropout: Dropout::new(&root.pp("dropout"), 0.2),
        out: Linear::new(&root.pp("out"), 10),
        params: params.clone(),
        trained: RefCell::default(),
        evaluated: RefCell::default(),
    };
    let sgd = Sgd::new(0.05).momentum(0.9);
    let mut trainer = Trainer::new(model, DistOpt::new(sgd, &params, world).unwrap());
    trainer.compile((1, 1, 28, 28)).unwrap();
    trainer.model().evaluated.borrow_mut().clear();
    trainer
}

fn config(epochs: usize) -> FitConfig {
    FitConfig { epochs, batch_size: 16, seed: 5, ..FitConfig::default() }
}

#[test]
fn evaluation_gives_back_the_mode_that_it_found() {
    let data = Mnist::synthetic(0, 32, 20).unwrap();
    let other_size = ImageDataset::new(vec![0; 4 * 9], vec![0; 4], [1, 3, 3], 10).unwrap();
    let mut trainer = trainer(&World::single());
    for training in [true, false] {
        if training {
            trainer.train();
        } else {
            trainer.eval();
        }
        let mode = |trainer: &Trainer<Witness>| trainer.opt().params().is_training();
        trainer.evaluate(&data.test, 8).unwrap();
        assert_eq!(mode(&trainer), training, "after an evaluation");
        trainer.evaluate(&other_size, 2).unwrap_err();
        assert_eq!(mode(&trainer), training, "after an evaluation that failed");
        trainer.fit(&data.train, &data.test, &config(1), &mut Vec::new()).unwrap();
        assert_eq!(mode(&trainer), training, "after a run");
    }
    assert!(trainer.model().evaluated.borrow().len() >= 6);
}

/// A perceptron whose loss ignores a class.
struct Ignoring(Mlp, i64);

impl Model for Ignoring {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        self.0.forward(&xs.flatten_from(1)?)
    }

    fn loss(&self, output: &Tensor, targets: &Tensor) -> candelabrum::candle::Result<Tensor> {
        SoftMaxCrossEntropy::new().ignore_index(self.1).forward(output, targets)
    }
}

#[test]
fn an_epoch_of_which_no_target_counts_is_an_error() {
    let images = ImageDataset::new(vec![7; 16 * 9], vec![2; 16], [1, 3, 3], 10).unwrap();
    let train = |ignored| {
        let params = Params::new(1);
        let model = Ignoring(Mlp::new(&params.root(), 10), ignored);
        let opt = DistOpt::new(Sgd::new(0.05), &params, &World::single()).unwrap();
        Trainer::new(model, opt).fit(&images, &images, &config(1), &mut Vec::new())
    };
    train(3).unwrap();
    let error = train(2).unwrap_err().to_string();
    assert!(error.contains("epoch 0 has counted no target"), "{error}");
}

#[test]
fn runs_of_one_epoch_each_are_one_run() {
    const EPOCHS: usize = 4;
    let data = Mnist::synthetic(0, 100, 20).unwrap();
    let train = |calls: &[usize]| {
        let images = data.train.clone().augmented(Augmentation::crop_only());
        let mut trainer = trainer(&World::single());
        let mut printed = Vec::new();
        let mut losses = Vec::new();
        for &epochs in calls {
            let reports = trainer.fit(&images, &data.test, &config(epochs), &mut printed).unwrap();
            losses.extend(reports.into_iter().map(|report| report.train_loss));
        }
        assert_eq!(trainer.epochs(), EPOCHS);
        let seen = trainer.model().trained.take();
        let printed = String::from_utf8(printed).unwrap();
        let heads: Vec<String> =
            printed.lines().filter(|l| l.starts_with("Starting")).map(str::to_owned).collect();
        (seen, heads, losses, trainer.parameters_sha256().unwrap())
    };
    let whole = train(&[EPOCHS]);
    assert_eq!(whole.1[3], "Starting Epoch 3:");
    assert_eq!(train(&[1; EPOCHS]), whole);
    assert_eq!(train(&[1, 3]), whole);
    // 6 batches of 16 in each epoch, all different.
    let mut seen = whole.0;
    assert_eq!(seen.len(), 6 * EPOCHS);
    seen.sort_by(f32::total_cmp);
    assert!(seen.windows(2).all(|pair| pair[0] != pair[1]), "{seen:?}");
}

#[test]
fn a_run_can_begin_with_any_epoch() {
    let data = Mnist::synthetic(0, 64, 20).unwrap();
    let mut whole = trainer(&World::single());
    whole.fit(&data.train, &data.test, &config(3), &mut Vec::new()).unwrap();
    let mut resumed = trainer(&World::single());
    resumed.set_epochs(2);
    let mut printed = Vec::new();
    resumed.fit(&data.train, &data.test, &config(1), &mut printed).unwrap();
    assert!(String::from_utf8(printed).unwrap().starts_with("Starting Epoch 2:\n"));
    assert_eq!(resumed.model().trained.take(), whole.model().trained.take()[8..]);
}

#[test]
fn images_are_scaled_in_training_and_evaluation_and_augmented_in_training_alone() {
    // Every image is the same, so the order does not matter: dark with a bright corner.
    let image: Vec<u8> = (0..784).map(|pixel| if pixel < 5 { 255 } else { 51 }).collect();
    let data = ImageDataset::new(image.repeat(16), vec![1; 16], [1, 28, 28], 10).unwrap();
    let see = |data: &ImageDataset| {
        let mut trainer = trainer(&World::single());
        trainer.fit(data, data, &config(1), &mut Vec::new()).unwrap();
        let evaluated = trainer.model().evaluated.take();
        (trainer.model().trained.take()[0], evaluated[0])
    };
    let plain = see(&data);
    assert_eq!(plain.0, plain.1);
    let scaling = Scaling::standardized([0.2], [0.5]);
    let standardized = see(&data.clone().scaled(scaling).unwrap());
    assert_eq!(standardized.0, standardized.1);
    assert!(standardized.0 < 0.5 * plain.0, "{standardized:?} {plain:?}");
    let augmented = see(&data.clone().augmented(Augmentation::crop_only()));
    assert_eq!(augmented.1, plain.1);
    assert_ne!(augmented.0, plain.0);

    let error = data.scaled(Scaling::IMAGENET).unwrap_err().to_string();
    assert!(error.contains("3 means") && error.contains("1 channel"), "{error}");
}

#[test]
fn batches_have_the_type_of_the_parameters_whatever_the_options() {
    let params = Params::on(0, DType::BF16, &Device::Cpu);
    let opt = DistOpt::new(Sgd::new(0.1), &params, &World::single()).unwrap();
    let mut trainer = Trainer::new(Mlp::new(&params.root(), 10), opt);
    trainer.compile((1, 1, 28, 28)).unwrap();
    let data = Mnist::synthetic(0, 32, 16).unwrap();
    for scaling in [Scaling::Unit, Scaling::MNIST] {
        let loading = LoaderOptions { dtype: DType::F64, ..LoaderOptions::default() };
        trainer = trainer.with_loading(loading);
        let [train, test] =
            [&data.train, &data.test].map(|data| data.clone().scaled(scaling.clone()));
        trainer.fit(&train.unwrap(), &test.unwrap(), &config(1), &mut Vec::new()).unwrap();
    }
}

#[test]
fn a_model_of_tokens_is_compiled_by_an_input_of_its_own() {
    let params = Params::new(0);
    let config = GruClassifierConfig { vocabulary: 9, embedding: 4, hidden: 8, classes: 3 };
    let model = GruClassifier::new(&params.root(), config);
    let opt = DistOpt::new(Sgd::new(0.1), &params, &World::single()).unwrap();
    let mut trainer = Trainer::new(model, opt);
    assert!(trainer.compile((1, 5)).is_err());
    let tokens = Tensor::zeros((1, 5), DType::U32, &Device::Cpu).unwrap();
    let summary = trainer.compile_with(&tokens).unwrap();
    assert_eq!(summary.parameter_count(), params.element_count());
    assert!(params.is_training());
    let labels = Tensor::new(&[1_u32], &Device::Cpu).unwrap();
    trainer.train_one_batch(&tokens, &labels, DistOption::Fp32, 0.0).unwrap();
}

/// The program of each rank of the tests below. `TRAINER_CASE` names the difference of rank 2.
#[test]
fn rank_main() {
    let Some(world) = world_of_rank() else { return };
    let case = std::env::var("TRAINER_CASE").unwrap();
    let odd = world.rank() == 2;
    let mut data = Mnist::synthetic(0, 64, 20).unwrap();
    if case == "data" && odd {
        // As many images of the same shape, but one pixel of one image differs.
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for (image, label) in (0..64).filter_map(|index| data.train.get(index)) {
            pixels.extend_from_slice(image);
            labels.push(label);
        }
        pixels[40 * 784 + 300] ^= 1;
        data.train = ImageDataset::new(pixels, labels, [1, 28, 28], 10).unwrap();
    }
    let (mut trainer, mut out) = (trainer(&world), Vec::new());
    if case == "scaling" && odd {
        data.train = data.train.scaled(Scaling::MNIST).unwrap();
    }
    if case == "epochs" && odd {
        trainer.set_epochs(1);
    }
    let mut fit = Fit::new(FitConfig { profile_memory: case == "memory" && odd, ..config(1) })
        .output(&mut out);
    let mut test = EvaluationSets::new(&data.test);
    if case == "test data" {
        // A hook that one rank alone would refuse.
        fit = fit.hook(EarlyStopping::new(Monitor::loss(), 1));
        if odd {
            test = None::<&ImageDataset>.into();
        }
    }
    match trainer.fit_with(fit, &data.train, test) {
        Ok(_) => println!("trained"),
        Err(error) => println!("refused: {error}"),
    }
}

#[test]
fn ranks_whose_data_or_options_differ_are_refused_by_name() {
    for (case, expected) in [
        ("none", "trained"),
        ("data", "refused: the training data differs between ranks"),
        ("scaling", "refused: the training data differs between ranks"),
        ("epochs", "refused: the number of epochs and steps trained before differs between ranks"),
        ("memory", "refused: `profile_memory` differs between ranks"),
        ("test data", "refused: the test data differs between ranks"),
    ] {
        for output in RanksOf::new(rank_main).env("TRAINER_CASE", case).run_all_good(3) {
            assert!(output.text.contains(expected), "{case}: {}", output.text);
            assert_eq!(output.text.contains("rank(s) 2 "), case != "none", "{}", output.text);
        }
    }
}
