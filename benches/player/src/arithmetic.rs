//! The arithmetic of a network: the multiplications, each with its addition, in its matrix products and
//! convolutions. Everything else that a step computes is small beside them.
//!
//! The products of attention with causal masks count half, because half of their numbers are hidden. What
//! a backward pass computes for a second time, such as scores, does not count.

use candelabrum::nn::{LayerRow, Params, Summary};

/// The multiplications on the batch with which the summary was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Multiplications {
    pub(crate) forward: u64,
    /// The forward and the backward pass.
    pub(crate) step: u64,
}

impl Multiplications {
    /// A layer multiplies each number of its weights once for each place in its output. Attention within
    /// T positions multiplies queries by keys, and the weights of its sums by values: T multiplications
    /// for each number of its output, twice.
    ///
    /// The backward pass takes as many for the gradient of the weights, and as many again for the
    /// gradient of the input. In attention these are the gradients of both factors. The first layer
    /// needs no gradient of its input, unless the input is an embedding.
    pub(crate) fn from_summary(summary: &Summary, params: &Params) -> Self {
        let weights: Vec<(String, Vec<usize>)> = params
            .list()
            .iter()
            .map(|param| (param.name().to_owned(), param.var().dims().to_vec()))
            .filter(|(_, dims)| dims.len() > 1)
            .collect();
        let of_layer = |layer: &LayerRow| {
            if layer.kind.starts_with("Attention") && !layer.kind.contains("Pooling") {
                return Some(of_attention(layer));
            }
            // A table may have the name of its layer.
            let own = |name: &str| {
                let path = name.rsplit_once('.').map(|(path, _)| path);
                path == Some(&layer.name) || name == layer.name
            };
            let own = weights.iter().filter(|(name, _)| own(name));
            let numbers: usize = own.map(|(_, dims)| dims.iter().product::<usize>()).sum();
            let features = match layer.output[..] {
                [_, channels, _, _] => channels,
                _ => layer.output.last().copied().unwrap_or(1),
            };
            let places = layer.output.iter().product::<usize>() / features.max(1);
            let is_lookup = layer.kind.starts_with("Embedding");
            (numbers > 0).then_some(if is_lookup { 0 } else { (numbers * places) as u64 })
        };
        let layers: Vec<u64> = summary.layers().iter().filter_map(of_layer).collect();
        let forward = layers.iter().sum();
        Self { forward, step: 3 * forward - layers.first().copied().unwrap_or(0) }
    }
}

/// Both products of attention within a sequence, whose output is `(N, T, C)`.
fn of_attention(layer: &LayerRow) -> u64 {
    let length = layer.output.iter().rev().nth(1).copied().unwrap_or(1);
    let one = layer.output.iter().product::<usize>() * length;
    (if layer.kind.contains("causal") { one } else { 2 * one }) as u64
}

#[cfg(test)]
mod tests {
    use candelabrum::models::{CharLstm, Cnn, Gpt, GptConfig, MobileNetV2, ResNet18, ResNet50};
    use candelabrum::prelude::*;

    use super::*;
    use crate::sizes::LSTM;

    fn of(model: impl FnOnce(&Scope) -> Box<dyn FnOnce(&Params) -> Summary>) -> Multiplications {
        let params = Params::new(0);
        let summary = model(&params.root())(&params);
        Multiplications::from_summary(&summary, &params)
    }

    fn of_images<M: Model + 'static>(
        new: impl FnOnce(&Scope) -> M,
        shape: (usize, usize, usize, usize),
    ) -> Multiplications {
        of(|root| {
            let model = new(root);
            Box::new(move |params| model.compile(params, shape).expect("it takes images"))
        })
    }

    #[test]
    fn networks_for_images_have_the_known_multiplications() {
        // torchvision's documentation says 1.81, 4.09 and 0.3 billion for an image.
        let image = (1, 3, 224, 224);
        let resnet18 = of_images(|root| ResNet18::new(root, 1000), image);
        assert_eq!(resnet18.forward, 1_814_073_344);
        // The first convolution: 112 · 112 places, 64 · 3 · 7 · 7 weights.
        assert_eq!(resnet18.step, 3 * 1_814_073_344 - 118_013_952);
        let resnet50 = of_images(|root| ResNet50::new(root, 1000), image);
        assert_eq!(resnet50.forward, 4_089_184_256);
        let mobilenet = of_images(|root| MobileNetV2::new(root, 1000), image);
        assert_eq!(mobilenet.forward, 300_774_272);
        // A batch has as many times more as images.
        let cnn = of_images(|root| Cnn::new(root, 10), (3, 1, 28, 28));
        let [conv1, conv2] = [24 * 24 * 20 * 25, 8 * 8 * 50 * 20 * 25];
        assert_eq!(cnn.forward, 3 * (conv1 + conv2 + 800 * 500 + 500 * 10));
        assert_eq!(cnn.step, 3 * cnn.forward - 3 * conv1);
    }

    #[test]
    fn a_recurrent_network_multiplies_at_every_position() {
        let network = of(|root| {
            let model = CharLstm::new(root, LSTM);
            let tokens = Tensor::zeros((2, 5), DType::U32, &Device::Cpu).expect("there is memory");
            Box::new(move |params| model.compile_with(params, &tokens).expect("it takes tokens"))
        });
        assert_eq!(network.forward, 2 * 5 * (4 * 256 * (64 + 256) + 256 * 96));
        // The table of the embedding needs the gradient of the first layer's input.
        assert_eq!(network.step, 3 * network.forward);
    }

    #[test]
    fn a_transformer_multiplies_weights_at_every_position_and_positions_by_positions() {
        // 3 sequences of 5 tokens: the weights of a block, and two products of which half is hidden.
        let block = 3 * 5 * (4 + 8) * 128 * 128 + 3 * 5 * 5 * 128;
        for tied in [true, false] {
            let network = of(|root| {
                let model = Gpt::new(root, GptConfig { tied, ..GptConfig::tiny() });
                let tokens =
                    Tensor::zeros((3, 5), DType::U32, &Device::Cpu).expect("there is memory");
                Box::new(move |params| {
                    model.compile_with(params, &tokens).expect("it takes tokens")
                })
            });
            assert_eq!(network.forward, 4 * block + 3 * 5 * 128 * 96);
            assert_eq!(network.step, 3 * network.forward);
        }
    }

    #[test]
    fn attention_without_hidden_positions_has_twice_the_products() {
        let row = |causal: bool| {
            let params = Params::new(0);
            let layer = MultiHeadAttention::new(&params.root(), 4);
            let layer = if causal { layer.causal() } else { layer };
            let summary = Layer(layer).compile(&params, (2, 7, 8)).expect("it takes features");
            let row = summary.layers().iter().find(|row| row.kind.starts_with("Attention"));
            of_attention(row.expect("the layer has a row"))
        };
        assert_eq!([true, false].map(row), [2 * 7 * 7 * 8, 2 * 2 * 7 * 7 * 8]);
    }

    struct Layer(MultiHeadAttention);

    impl Model for Layer {
        fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
            self.0.forward(xs)
        }

        fn loss(&self, output: &Tensor, _: &Tensor) -> candle_core::Result<Tensor> {
            output.sum_all()
        }
    }
}
