//! Half precision learns on the GPU what f32 learns.

use candelabrum::dist::DistOptConfig;
use candelabrum::prelude::*;
use candelabrum::train::cli::Precision;

use crate::ranks::on_ranks;

struct Perceptron {
    hidden: Linear,
    out: Linear,
}

impl Model for Perceptron {
    fn forward(&self, xs: &Tensor) -> candelabrum::candle::Result<Tensor> {
        self.out.forward(&self.hidden.forward(&xs.flatten_from(1)?)?)
    }
}

/// The accuracy after three epochs on synthetic digits.
fn accuracy(world: &World, precision: Precision) -> f64 {
    let data = Mnist::synthetic(0, 4000, 1000).unwrap();
    let params = precision.params(0, world.device());
    let scope = params.root();
    let model = Perceptron {
        hidden: Linear::new(&scope.pp("hidden"), 64).activation(Activation::Relu),
        out: Linear::new(&scope.pp("out"), 10),
    };
    let loss_scale = precision.loss_scale();
    let config = DistOptConfig { loss_scale, ..DistOptConfig::default() };
    let sgd = Sgd::new(0.03).momentum(0.9);
    let opt = DistOpt::with_config(sgd, &params, world, config).unwrap();
    let mut trainer = Trainer::new(model, opt);
    trainer.compile((1, 1, 28, 28)).unwrap();
    let config = FitConfig { epochs: 3, batch_size: 32, ..FitConfig::default() };
    let epochs = trainer.fit(&data.train, &data.test, &config, &mut Vec::new()).unwrap();
    epochs[2].accuracy()
}

#[test]
fn three_epochs_reach_the_accuracy_of_f32() {
    let Some(world) = on_ranks(three_epochs_reach_the_accuracy_of_f32, &[1, 2]) else { return };
    let exact = accuracy(&world, Precision::F32);
    assert!(exact > 0.8, "{exact}");
    for half in [Precision::Bf16, Precision::F16] {
        let rounded = accuracy(&world, half);
        assert!((rounded - exact).abs() <= 0.01, "{half:?}: {rounded}, {exact}");
    }
}
