//! The networks: their parameters in PyTorch's order, with its names.

use clap::ValueEnum;

/// The number of different tokens.
pub(crate) const VOCABULARY: usize = 64;

/// The trained network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Network {
    /// SINGA's network for MNIST
    Cnn,
    /// 784-1024-1024-10
    Mlp,
    /// torchvision's `resnet18`, on 32x32 images
    Resnet18,
    /// Embedding, GRU, linear layer
    Gru,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) start: Start,
}

/// The initial values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Start {
    /// Uniform in ±1/√fan-in.
    Uniform { fan_in: usize },
    /// The same value for every element.
    Const(f32),
}

impl Network {
    /// In the order in which PyTorch's modules name them. The index is also the stream of the hash.
    pub(crate) fn parameters(self) -> Vec<Parameter> {
        let mut list = List::default();
        match self {
            Self::Cnn => {
                list.conv("conv1", [20, 1, 5, 5], true);
                list.conv("conv2", [50, 20, 5, 5], true);
                list.linear("linear1", 500, 800);
                list.linear("linear2", 10, 500);
            }
            Self::Mlp => {
                list.linear("linear1", 1024, 784);
                list.linear("linear2", 1024, 1024);
                list.linear("linear3", 10, 1024);
            }
            Self::Resnet18 => list.resnet18(),
            Self::Gru => {
                let (dim, hidden) = (64, 128);
                list.uniform("embedding.weight", &[VOCABULARY, dim], 1);
                list.uniform("gru.weight_ih", &[3 * hidden, dim], hidden);
                list.uniform("gru.weight_hh", &[3 * hidden, hidden], hidden);
                list.uniform("gru.bias_ih", &[3 * hidden], hidden);
                list.uniform("gru.bias_hh", &[3 * hidden], hidden);
                list.linear("linear", 10, hidden);
            }
        }
        list.0
    }
}

#[derive(Default)]
struct List(Vec<Parameter>);

impl List {
    fn push(&mut self, name: String, shape: &[usize], start: Start) {
        self.0.push(Parameter { name, shape: shape.to_vec(), start });
    }

    fn uniform(&mut self, name: &str, shape: &[usize], fan_in: usize) {
        self.push(name.to_owned(), shape, Start::Uniform { fan_in });
    }

    fn conv(&mut self, name: &str, shape: [usize; 4], bias: bool) {
        let fan_in = shape[1..].iter().product();
        self.uniform(&format!("{name}.weight"), &shape, fan_in);
        if bias {
            self.uniform(&format!("{name}.bias"), &shape[..1], fan_in);
        }
    }

    fn linear(&mut self, name: &str, outputs: usize, inputs: usize) {
        self.uniform(&format!("{name}.weight"), &[outputs, inputs], inputs);
        self.uniform(&format!("{name}.bias"), &[outputs], inputs);
    }

    fn norm(&mut self, name: &str, channels: usize) {
        self.push(format!("{name}.weight"), &[channels], Start::Const(1.0));
        self.push(format!("{name}.bias"), &[channels], Start::Const(0.0));
    }

    fn resnet18(&mut self) {
        self.conv("conv1", [64, 3, 7, 7], false);
        self.norm("bn1", 64);
        let mut inputs = 64;
        for (stage, channels) in [(1, 64), (2, 128), (3, 256), (4, 512)] {
            for block in 0..2 {
                let name = format!("layer{stage}.{block}");
                self.conv(&format!("{name}.conv1"), [channels, inputs, 3, 3], false);
                self.norm(&format!("{name}.bn1"), channels);
                self.conv(&format!("{name}.conv2"), [channels, channels, 3, 3], false);
                self.norm(&format!("{name}.bn2"), channels);
                if inputs != channels {
                    let name = format!("{name}.downsample");
                    self.conv(&format!("{name}.0"), [channels, inputs, 1, 1], false);
                    self.norm(&format!("{name}.1"), channels);
                }
                inputs = channels;
            }
        }
        self.linear("fc", 10, 512);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_networks_have_as_many_parameters_as_pytorchs() {
        // sum(p.numel() for p in network.parameters()) and len(list(network.parameters()))
        let expected = [(431_080, 8), (1_863_690, 6), (11_181_642, 62), (79_882, 7)];
        for (&network, (elements, tensors)) in Network::value_variants().iter().zip(expected) {
            let list = network.parameters();
            let count: usize = list.iter().map(|p| p.shape.iter().product::<usize>()).sum();
            assert_eq!((count, list.len()), (elements, tensors), "{network:?}");
        }
    }
}
