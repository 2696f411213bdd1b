//! The last layers of AlexNet and VGG: three linear layers, the first two with ReLU and dropout.

use candelabrum_nn::layers::{Dropout, Linear};
use candelabrum_nn::{Activation, Init, Scope};
use candle_core::{Module, Result, Tensor};

/// `(N, C, H, W) -> (N, classes)`.
#[derive(Debug)]
pub(crate) struct ClassifierLayers {
    /// Whether dropout comes before a hidden layer, and not behind it.
    drops_first: bool,
    hidden: [(Dropout, Linear); 2],
    last: Linear,
}

/// The sizes of a [`ClassifierLayers`], and the numbers that torchvision gives to its layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassifierConfig {
    pub(crate) classes: usize,
    /// The units of a hidden layer.
    pub(crate) units: usize,
    /// The probability of dropout.
    pub(crate) dropout: f32,
    /// The numbers of the linear layers.
    pub(crate) linear: [usize; 3],
    /// The numbers of the dropouts.
    pub(crate) drops: [usize; 2],
    /// The distribution of the initial weights, if not that of [`Linear`].
    pub(crate) init: Option<Init>,
}

impl ClassifierLayers {
    pub(crate) fn new(scope: &Scope, config: ClassifierConfig) -> Self {
        let ClassifierConfig { classes, units, dropout, linear: numbers, drops, init } = config;
        let linear = |number: usize, outputs| {
            let linear = Linear::new(&scope.pp(numbers[number]), outputs);
            if let Some(init) = init { linear.init(init) } else { linear }
        };
        let hidden = |number: usize| {
            let linear = linear(number, units).activation(Activation::Relu);
            (Dropout::new(&scope.pp(drops[number]), dropout), linear)
        };
        Self {
            drops_first: drops[0] < numbers[0],
            hidden: [hidden(0), hidden(1)],
            last: linear(2, classes),
        }
    }
}

impl Module for ClassifierLayers {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut ys = xs.flatten_from(1)?;
        for (dropout, linear) in &self.hidden {
            ys = if self.drops_first {
                linear.forward(&dropout.forward(&ys)?)?
            } else {
                dropout.forward(&linear.forward(&ys)?)?
            };
        }
        self.last.forward(&ys)
    }
}
