//! The trained network: a ready model by name.

use candelabrum::candle;
use candelabrum::models::{Cnn, Mlp};
use candelabrum::prelude::*;
use clap::ValueEnum;

/// The name of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// SINGA's MNIST network: two 5x5 convolutions with pooling, two linear layers
    Cnn,
    /// Two hidden layers of 1024
    Mlp,
}

/// A model chosen at run time.
#[derive(Debug)]
pub(crate) enum Network {
    Cnn(Box<Cnn>),
    Mlp(Box<Mlp>),
}

impl Name {
    /// The name on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Cnn => "cnn",
            Self::Mlp => "mlp",
        }
    }

    /// The default number of measured steps: about one second on a current core.
    pub(crate) fn default_steps(self) -> usize {
        match self {
            Self::Cnn => 120,
            Self::Mlp => 120,
        }
    }

    /// The model with all its parameters.
    pub(crate) fn build(self, params: &Params) -> candle::Result<Network> {
        let scope = params.root();
        let network = match self {
            Self::Cnn => Network::Cnn(Box::new(Cnn::new(&scope, 10))),
            Self::Mlp => Network::Mlp(Box::new(Mlp::new(&scope, 10))),
        };
        network.compile(params, (1, 1, 28, 28))?;
        Ok(network)
    }
}

impl Model for Network {
    fn forward(&self, xs: &Tensor) -> candle::Result<Tensor> {
        match self {
            Self::Cnn(model) => model.forward(xs),
            Self::Mlp(model) => model.forward(xs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_the_command_line_takes() {
        for &name in Name::value_variants() {
            assert_eq!(Name::from_str(name.as_str(), false), Ok(name));
        }
    }
}
