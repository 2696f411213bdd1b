//! LeNet-5 (LeCun, Bottou, Bengio and Haffner, *Gradient-Based Learning Applied to Document Recognition*,
//! Proceedings of the IEEE 1998, section II), as it is built today: each kernel of the second convolution sees all
//! six channels, the averages have no weights of their own, and the last layer is linear.

use candelabrum_nn::layers::{AvgPool2d, Conv2d, Linear};
use candelabrum_nn::{Activation, Model, Scope};
use candle_core::{Module, Result, Tensor};

/// `(N, C, 28, 28) -> (N, classes)`. 61,706 parameters for ten classes of grey images.
#[derive(Debug)]
pub struct LeNet {
    conv1: Conv2d,
    pool1: AvgPool2d,
    conv2: Conv2d,
    pool2: AvgPool2d,
    fc1: Linear,
    fc2: Linear,
    fc3: Linear,
}

impl LeNet {
    /// The network with `classes` outputs. The first convolution pads images of 28×28 to the paper's 32×32.
    pub fn new(scope: &Scope, classes: usize) -> Self {
        let tanh = Activation::Tanh;
        Self {
            conv1: Conv2d::new(&scope.pp("conv1"), 6, 5).padding(2).activation(tanh),
            pool1: AvgPool2d::new(2).named(&scope.pp("pool1")),
            conv2: Conv2d::new(&scope.pp("conv2"), 16, 5).activation(tanh),
            pool2: AvgPool2d::new(2).named(&scope.pp("pool2")),
            fc1: Linear::new(&scope.pp("fc1"), 120).activation(tanh),
            fc2: Linear::new(&scope.pp("fc2"), 84).activation(tanh),
            fc3: Linear::new(&scope.pp("fc3"), classes),
        }
    }
}

impl Model for LeNet {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.pool1.forward(&self.conv1.forward(xs)?)?; // (N, 6, 14, 14)
        let ys = self.pool2.forward(&self.conv2.forward(&ys)?)?; // (N, 16, 5, 5)
        let ys = self.fc1.forward(&ys.flatten_from(1)?)?;
        self.fc3.forward(&self.fc2.forward(&ys)?)
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::Params;

    use super::*;

    #[test]
    fn the_summary_counts_every_parameter() -> Result<()> {
        let params = Params::new(0);
        let summary = LeNet::new(&params.root(), 10).compile(&params, (1, 1, 28, 28))?;
        assert_eq!(summary.parameter_count(), 61_706);
        let outputs: Vec<&[usize]> = summary.layers().iter().map(|l| &l.output[..]).collect();
        let expected: [&[usize]; 7] = [
            &[1, 6, 28, 28],
            &[1, 6, 14, 14],
            &[1, 16, 10, 10],
            &[1, 16, 5, 5],
            &[1, 120],
            &[1, 84],
            &[1, 10],
        ];
        assert_eq!(outputs, expected);
        Ok(())
    }
}
