//! Errors of the distributed optimizer, and the state that an error leaves unchanged.

use candelabrum::dist::{Error, parameters_sha256};
use candelabrum::nn::Init;
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::RanksOf;
use candle_nn::{VarBuilder, VarMap};

use crate::ranks::world_of_rank;

const CASE: &str = "DIST_OPT_CASE";

struct Net {
    hidden: Linear,
    out: Linear,
}

impl Net {
    fn new(scope: &Scope, units: usize) -> Self {
        Self {
            hidden: Linear::new(&scope.pp("hidden"), units).activation(Activation::Relu),
            out: Linear::new(&scope.pp("out"), 3),
        }
    }
}

impl Model for Net {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        self.out.forward(&self.hidden.forward(xs)?)
    }
}

fn batch(value: f32) -> (Tensor, Tensor) {
    let xs = Tensor::full(value, (4, 5), &Device::Cpu).unwrap();
    let ys = Tensor::new(&[0_u32, 1, 2, 0], &Device::Cpu).unwrap();
    (xs, ys)
}

fn sgd() -> Sgd {
    Sgd::new(0.1).momentum(0.9)
}

/// One rank of a case. The case says how the last rank differs from the others.
#[test]
fn rank_main() {
    let Some(world) = world_of_rank() else { return };
    let odd = world.rank() == world.world_size() - 1;
    let case = std::env::var(CASE).unwrap();
    let params = Params::new(if case == "lazy" { world.rank() as u64 } else { 0 });
    let model = Net::new(&params.root(), if case == "model" && odd { 8 } else { 7 });
    if case != "lazy" {
        model.compile(&params, (1, 5)).unwrap();
    }
    let sgd = if case == "optimizer" && odd { sgd().weight_decay(0.5) } else { sgd() };
    let result = DistOpt::new(sgd, &params, &world).and_then(|mut opt| {
        let before = parameters_sha256(&params)?;
        let (xs, ys) = batch(if case == "nan" && odd { f32::NAN } else { 1.0 });
        let result = model.train_one_batch(&mut opt, &xs, &ys, DistOption::Fp32, 0.05).map(|_| ());
        if result.is_err() && case != "lazy" {
            assert_eq!(parameters_sha256(&params)?, before, "a failed step changed something");
        }
        result
    });
    let error = result.expect_err("every case is an error");
    println!("\nrank {} says: {error}", world.rank());
}

/// Runs a case on three ranks: each must give the same error, with all of `parts` in it.
fn refuse(case: &str, parts: &[&str]) {
    let outputs = RanksOf::new(rank_main).env(CASE, case).run_all_good(3);
    for (rank, output) in outputs.iter().enumerate() {
        let says = format!("rank {rank} says: ");
        let line = output.text.lines().find(|line| line.starts_with(&says));
        let line = line.unwrap_or_else(|| panic!("rank {rank} said nothing: {}", output.text));
        for part in parts {
            assert!(line.contains(part), "`{part}` is missing: {line}");
        }
    }
}

#[test]
fn a_rank_that_differs_is_named_on_every_rank_and_changes_nothing() {
    refuse("model", &["parameter hidden.weight", "[7, 5]", "rank(s) 2", "[8, 5]"]);
    let parts = ["the optimizer", "weight_decay=0", "rank(s) 2", "weight_decay=0.5"];
    refuse("optimizer", &parts);
    refuse("lazy", &["hidden.weight", "compile the model first", "rank(s) 1, 2"]);
    refuse("nan", &["the loss is not finite on rank 2", "no parameter was changed"]);
}

#[test]
fn a_gradient_that_is_infinite_is_named_though_the_loss_is_finite() {
    let params = Params::new(0);
    let weight = params.root().param("weight", 2, Init::ZEROS).unwrap();
    let mut opt = DistOpt::new(sgd(), &params, &World::single()).unwrap();
    let loss = weight.tensor().sqrt().unwrap().sum_all().unwrap(); // the slope at 0 is infinite
    let error = opt.backward_and_update(&loss).unwrap_err();
    assert!(matches!(&error, Error::NotFinite { .. }), "{error}");
    assert!(error.to_string().contains("the gradient of `weight`"), "{error}");
    assert_eq!(weight.tensor().to_vec1::<f32>().unwrap(), [0.0, 0.0]);
}

#[test]
fn a_parameter_without_a_gradient_is_named_unless_allowed() {
    let params = Params::new(0);
    let used = params.root().param("used", 2, Init::Const(1.0)).unwrap();
    let unused = params.root().param("unused", 2, Init::Const(1.0)).unwrap();
    let loss = || used.tensor().sqr().unwrap().sum_all().unwrap();
    let mut opt = DistOpt::new(sgd(), &params, &World::single()).unwrap();
    let error = opt.backward_and_update(&loss()).unwrap_err().to_string();
    assert!(
        error.contains("no gradient reached `unused`: the forward pass does not use"),
        "{error}"
    );

    let config = DistOptConfig { allow_unused: true, ..DistOptConfig::default() };
    let mut opt = DistOpt::with_config(sgd(), &params, &World::single(), config).unwrap();
    opt.backward_and_update(&loss()).unwrap();
    assert_eq!(unused.tensor().to_vec1::<f32>().unwrap(), [1.0, 1.0]);
    assert_eq!(used.tensor().to_vec1::<f32>().unwrap(), [0.8, 0.8]);
}

/// The parameters after five steps on a batch of eight, gradients clipped.
fn clipped(option: DistOption, clip_gradients: Option<Clip>) -> Vec<f32> {
    let params = Params::new(0);
    let model = Net::new(&params.root(), 7);
    model.compile(&params, (1, 5)).unwrap();
    let config = DistOptConfig { clip_gradients, ..DistOptConfig::default() };
    let mut opt = DistOpt::with_config(sgd(), &params, &World::single(), config).unwrap();
    let xs = candelabrum_testkit::uniform((8, 5), 1, -3.0, 3.0, DType::F32).unwrap();
    let ys = Tensor::new(&[0_u32, 1, 2, 0, 2, 2, 1, 0], &Device::Cpu).unwrap();
    for _ in 0..5 {
        model.train_one_batch(&mut opt, &xs, &ys, option, 0.05).unwrap();
    }
    let values = |param: &candelabrum::nn::Param| param.tensor().flatten_all()?.to_vec1::<f32>();
    params.list().iter().flat_map(|param| values(param).unwrap()).collect()
}

const LIMIT: Option<Clip> = Some(Clip::Norm(0.1));

#[test]
fn a_rank_alone_clips_with_every_strategy() {
    let one = clipped(DistOption::Fp32, LIMIT);
    let free = clipped(DistOption::Fp32, None);
    let is_far = one.iter().zip(&free).any(|(a, b)| (a - b).abs() > 1e-2);
    assert!(is_far, "nothing was clipped");
    assert_eq!(one, clipped(DistOption::PartialUpdate, LIMIT));
}

/// Prints the seed of the first dropout mask, after two optimizers have been made for the
/// parameters.
#[test]
fn noise_main() {
    let Some(world) = world_of_rank() else { return };
    let params = Params::new(0);
    Net::new(&params.root(), 7).compile(&params, (1, 5)).unwrap();
    if std::env::var(CASE).unwrap() == "chosen" {
        params.set_noise_stream(5);
    }
    for _ in 0..2 {
        drop(DistOpt::new(sgd(), &params, &world).unwrap());
    }
    println!("seed {}.", params.root().pp("dropout").noise_seed());
}

#[test]
fn ranks_draw_noise_of_their_own_unless_a_stream_was_chosen() {
    let seeds = |case: &str| {
        let outputs = RanksOf::new(noise_main).env(CASE, case).run_all_good(2);
        let seed = |text: &str| {
            let seed = text.split_once("seed ").and_then(|(_, rest)| rest.split_once('.'));
            seed.expect(text).0.to_owned()
        };
        [0, 1].map(|rank: usize| seed(&outputs[rank].text))
    };
    let [zero, one] = seeds("own");
    assert_ne!(zero, one);
    let [zero, one] = seeds("chosen");
    assert_eq!(zero, one);
}

#[test]
fn a_limit_that_clips_everything_or_nothing_is_refused() {
    for limit in [Clip::Norm(0.0), Clip::Value(f32::NAN)] {
        let config = DistOptConfig { clip_gradients: Some(limit), ..DistOptConfig::default() };
        let world = World::single();
        let error = DistOpt::with_config(sgd(), &Params::new(0), &world, config).unwrap_err();
        assert!(error.to_string().contains("above 0"), "{error}");
    }
}

#[test]
fn a_group_selects_by_the_names_of_the_model() {
    let params = Params::new(0);
    let model = Net::new(&params.root(), 7);
    model.compile(&params, (1, 5)).unwrap();
    let frozen = || params.list().iter().map(|p| p.tensor().copy().unwrap()).collect::<Vec<_>>();
    let before = frozen();
    let adam = AdamW::new(0.1).group(ParamGroup::matching("hidden.*").lr_scale(0.0));
    let mut opt = DistOpt::new(adam, &params, &World::single()).unwrap();
    let (xs, ys) = batch(1.0);
    model.train_one_batch(&mut opt, &xs, &ys, DistOption::Fp32, 0.05).unwrap();
    for ((param, old), new) in params.list().iter().zip(&before).zip(&frozen()) {
        let same = old.flatten_all().unwrap().to_vec1::<f32>().unwrap()
            == new.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(same, param.name().starts_with("hidden."), "{}", param.name());
    }

    let adam = AdamW::new(0.1).group(ParamGroup::matching("hiden.*").lr_scale(0.0));
    let mut opt = DistOpt::new(adam, &params, &World::single()).unwrap();
    let error = model.train_one_batch(&mut opt, &xs, &ys, DistOption::Fp32, 0.05).unwrap_err();
    assert!(error.to_string().contains("`hiden.*`"), "{error}");
    assert!(error.to_string().contains("hidden.weight"), "{error}");
}

#[test]
fn a_stock_candle_nn_model_trains_unchanged() {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let model = FromModule(
        candle_nn::seq()
            .add(candle_nn::linear(5, 16, vb.pp("a")).unwrap())
            .add(candle_nn::Activation::Relu)
            .add(candle_nn::linear(16, 3, vb.pp("b")).unwrap()),
    );
    let params = Params::from_varmap(&varmap).unwrap();
    let mut trainer = Trainer::new(model, DistOpt::new(sgd(), &params, &World::single()).unwrap());
    let xs = Tensor::new(&[[1_f32, 0., 0., 0., 0.], [0., 1., 0., 0., 0.]], &Device::Cpu).unwrap();
    let ys = Tensor::new(&[2_u32, 1], &Device::Cpu).unwrap();
    let mut losses = (0..30).map(|_| {
        let (_, loss) = trainer.train_one_batch(&xs, &ys, DistOption::Fp32, 0.05).unwrap();
        loss.to_scalar::<f32>().unwrap()
    });
    let (first, last) = (losses.next().unwrap(), losses.last().unwrap());
    assert!(last < 0.1 * first, "{first} -> {last}");
}

#[test]
fn a_dataset_that_was_partitioned_already_is_not_divided_again() {
    let share = Mnist::synthetic(0, 64, 32).unwrap().partition(0, 2, Remainder::Drop).unwrap();
    let params = Params::new(0);
    let model = candelabrum::models::Cnn::new(&params.root(), 10);
    let mut trainer = Trainer::new(model, DistOpt::new(sgd(), &params, &World::single()).unwrap());
    let config = FitConfig { epochs: 1, batch_size: 8, ..FitConfig::default() };
    let error = trainer.fit(&share.train, &share.test, &config, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("already a share of 2 ranks"), "{error}");
    assert!(trainer.evaluate(&share.test, 8).is_err());
}

#[test]
fn parameters_that_come_too_late_or_not_at_all_are_said() {
    let params = Params::new(0);
    let mut opt = DistOpt::new(sgd(), &params, &World::single()).unwrap();
    let elsewhere = Params::new(0).root().param("w", 2, Init::Const(1.0)).unwrap();
    let error = opt.backward_and_update(&elsewhere.tensor().sum_all().unwrap()).unwrap_err();
    assert!(matches!(error, Error::NoParameters), "{error}");

    let first = params.root().param("first", 2, Init::Const(1.0)).unwrap();
    let loss = || first.tensor().sqr().unwrap().sum_all().unwrap();
    opt.backward_and_update(&loss()).unwrap();
    params.root().param("late", 2, Init::ZEROS).unwrap();
    for _ in 0..2 {
        let error = opt.backward_and_update(&loss()).unwrap_err().to_string();
        assert!(error.contains("late came into being after the first step"), "{error}");
    }
}

#[test]
fn a_step_that_failed_can_be_followed_by_one_that_does_not() {
    let params = Params::new(0);
    let weight = params.root().param("weight", 2, Init::Const(1.0)).unwrap();
    let other = params.root().param("other", 2, Init::Const(1.0)).unwrap();
    let mut opt = DistOpt::new(sgd(), &params, &World::single()).unwrap();
    let incomplete = weight.tensor().sqr().unwrap().sum_all().unwrap();
    assert!(opt.backward_and_update(&incomplete).is_err());
    let complete = (weight.tensor() * other.tensor()).unwrap().sum_all().unwrap();
    opt.backward_and_update(&complete).unwrap();
    assert_eq!(weight.tensor().to_vec1::<f32>().unwrap(), [0.9, 0.9]);
}
