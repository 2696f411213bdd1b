//! A multilayer perceptron for MNIST. It has many parameters for its arithmetic, so exchanging them
//! takes a larger share of a step than in the convolutional network.

use candelabrum_nn::layers::Linear;
use candelabrum_nn::{Activation, Model, Scope};
use candle_core::{Module, Result, Tensor};

/// `(N, …) -> (N, classes)`. 1,863,690 parameters for ten classes of 28×28 images.
#[derive(Debug)]
pub struct Mlp {
    linear1: Linear,
    linear2: Linear,
    linear3: Linear,
}

impl Mlp {
    /// The network with two hidden layers of 1024 and `classes` outputs.
    pub fn new(scope: &Scope, classes: usize) -> Self {
        let relu = Activation::Relu;
        Self {
            linear1: Linear::new(&scope.pp("linear1"), 1024).activation(relu),
            linear2: Linear::new(&scope.pp("linear2"), 1024).activation(relu),
            linear3: Linear::new(&scope.pp("linear3"), classes),
        }
    }
}

impl Model for Mlp {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.linear1.forward(&xs.flatten_from(1)?)?;
        self.linear3.forward(&self.linear2.forward(&ys)?)
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;

    use super::*;

    #[test]
    fn the_summary_counts_every_parameter() -> Result<()> {
        let params = Params::new(0);
        let model = Mlp::new(&params.root(), 10);
        let summary = model.compile(&params, (1, 1, 28, 28))?;
        assert_eq!(summary.parameter_count(), 1_863_690);
        let outputs: Vec<&[usize]> = summary.layers().iter().map(|l| &l.output[..]).collect();
        let expected: [&[usize]; 3] = [&[1, 1024], &[1, 1024], &[1, 10]];
        assert_eq!(outputs, expected);
        Ok(())
    }
}
