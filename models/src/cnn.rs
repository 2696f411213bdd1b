//! SINGA's convolutional network for MNIST: two 5×5 convolutions with pooling, two linear layers.

use candelabrum_nn::layers::{Conv2d, Linear, MaxPool2d};
use candelabrum_nn::{Activation, Model, Scope};
use candle_core::{Module, Result, Tensor};

/// `(N, 1, 28, 28) -> (N, classes)`. 431,080 parameters for ten classes.
#[derive(Debug)]
pub struct Cnn {
    conv1: Conv2d,
    pool1: MaxPool2d,
    conv2: Conv2d,
    pool2: MaxPool2d,
    linear1: Linear,
    linear2: Linear,
}

impl Cnn {
    /// The network with `classes` outputs.
    pub fn new(scope: &Scope, classes: usize) -> Self {
        let relu = Activation::Relu;
        Self {
            conv1: Conv2d::new(&scope.pp("conv1"), 20, 5).activation(relu),
            pool1: MaxPool2d::new(2).named(&scope.pp("pool1")),
            conv2: Conv2d::new(&scope.pp("conv2"), 50, 5).activation(relu),
            pool2: MaxPool2d::new(2).named(&scope.pp("pool2")),
            linear1: Linear::new(&scope.pp("linear1"), 500).activation(relu),
            linear2: Linear::new(&scope.pp("linear2"), classes),
        }
    }
}

impl Model for Cnn {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.pool1.forward(&self.conv1.forward(xs)?)?; // (N, 20, 12, 12)
        let ys = self.pool2.forward(&self.conv2.forward(&ys)?)?; // (N, 50, 4, 4)
        self.linear2.forward(&self.linear1.forward(&ys.flatten_from(1)?)?)
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;

    use super::*;

    #[test]
    fn the_summary_counts_every_parameter() -> Result<()> {
        let params = Params::new(0);
        let model = Cnn::new(&params.root(), 10);
        let summary = model.compile(&params, (1, 1, 28, 28))?;
        assert_eq!(summary.parameter_count(), 431_080);
        let outputs: Vec<&[usize]> = summary.layers().iter().map(|l| &l.output[..]).collect();
        let expected: [&[usize]; 6] = [
            &[1, 20, 24, 24],
            &[1, 20, 12, 12],
            &[1, 50, 8, 8],
            &[1, 50, 4, 4],
            &[1, 500],
            &[1, 10],
        ];
        assert_eq!(outputs, expected);
        assert!(summary.to_string().contains("431,080 parameters"), "{summary}");
        Ok(())
    }
}
