//! Layers. Each layer is a candle [`Module`](candle_core::Module). It creates its parameters at its
//! first call, so it infers the input sizes that the user does not give.

#[macro_use]
mod builder;

mod attention;
mod attention_pooling;
mod batch_norm1d;
mod batch_norm2d;
mod blocks;
mod conv1d;
mod conv2d;
mod conv_transpose2d;
mod dropout;
mod embedding;
mod feed_forward;
mod functions;
mod group_norm;
mod layer_norm;
mod linear;
mod local_response_norm;
mod pool2d;
mod products;
mod recurrent;
mod separable_conv2d;
mod softmax_cross_entropy;
mod transformer;

pub use attention::MultiHeadAttention;
pub use attention_pooling::AttentionPooling;
pub use batch_norm1d::BatchNorm1d;
pub use batch_norm2d::BatchNorm2d;
pub use blocks::Blocks;
pub use conv_transpose2d::ConvTranspose2d;
pub use conv1d::Conv1d;
pub use conv2d::Conv2d;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use feed_forward::FeedForward;
pub use functions::{Flatten, Gelu, GeluTanh, ReLU, ReLU6, Sigmoid, Silu, Softmax, Tanh};
pub use group_norm::{GroupNorm, InstanceNorm2d};
pub use layer_norm::{LayerNorm, RmsNorm};
pub use linear::Linear;
pub use local_response_norm::LocalResponseNorm;
pub use pool2d::{AdaptiveAvgPool2d, AvgPool2d, GlobalAvgPool, MaxPool2d};
pub use recurrent::{Gru, Lstm, Rnn};
pub use separable_conv2d::SeparableConv2d;
pub use softmax_cross_entropy::SoftMaxCrossEntropy;
pub use transformer::TransformerBlock;

use candle_core::{Result, Tensor};

use crate::{Activation, Init, Param, Scope, ops};

/// Weight and bias of a layer.
#[derive(Debug)]
struct LayerWeights {
    weight: Param,
    bias: Option<Param>,
}

impl LayerWeights {
    /// A weight with initial values from `init`, and a bias of zeros for each output.
    fn new(
        scope: &Scope,
        (shape, outputs): (&[usize], usize),
        init: Init,
        bias: bool,
    ) -> Result<Self> {
        if outputs == 0 {
            candle_core::bail!("layer `{}` has no outputs", scope.path())
        }
        let weight = scope.param("weight", shape, init)?;
        let bias = if bias { Some(scope.param("bias", outputs, Init::ZEROS)?) } else { None };
        Ok(Self { weight, bias })
    }

    fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref().map(Param::tensor)
    }

    fn pair(&self) -> (&Tensor, Option<&Tensor>) {
        (self.weight.tensor(), self.bias())
    }
}

/// `kind` with the fused activation, for the summary.
fn described(kind: String, activation: Option<Activation>) -> String {
    match activation {
        Some(activation) => format!("{kind}, {activation}"),
        None => kind,
    }
}

/// The sizes of the input of the layer at `scope`, which takes the dimensions `expected`.
fn sizes<const RANK: usize>(scope: &Scope, xs: &Tensor, expected: &str) -> Result<[usize; RANK]> {
    ops::sizes(format_args!("layer `{}`", scope.path()), "input", xs.shape(), expected)
}

/// The size of the last dimension of the input of the layer at `scope`.
fn last(scope: &Scope, xs: &Tensor, expected: &str) -> Result<usize> {
    let name = format_args!("layer `{}`", scope.path());
    ops::rows_and_last(name, "input", xs.shape(), expected).map(|(_, last)| last)
}

/// The number of groups, into which the input channels of the layer at `scope` divide.
fn check_groups(scope: &Scope, channels: usize, groups: usize) -> Result<usize> {
    if groups == 0 || !channels.is_multiple_of(groups) {
        candle_core::bail!(
            "layer `{}`: {channels} input channels do not divide into {groups} groups",
            scope.path()
        )
    }
    Ok(groups)
}

/// Returns an error if the input has `got` features and the layer at `scope` takes `expected`.
fn check_features(scope: &Scope, what: &str, expected: usize, got: usize) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    candle_core::bail!("layer `{}` takes {expected} {what}, the input has {got}", scope.path())
}
