//! Functions as separate layers, which have neither parameters nor settings. [`Conv2d`](super::Conv2d) and
//! [`Linear`](super::Linear) can fuse an activation.

use candle_core::{Module, Result, Tensor};

use crate::ops;

/// A layer for each function of a tensor.
macro_rules! functions {
    ($($(#[$doc:meta])* $layer:ident => $function:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $layer;

        impl Module for $layer {
            fn forward(&self, xs: &Tensor) -> Result<Tensor> {
                $function(xs)
            }
        }
    )*};
}

functions! {
    /// `max(x, 0)`, for any shape. The gradient at exactly 0 is 0, as in PyTorch.
    ReLU => ops::relu;
    /// `min(max(x, 0), 6)`, for any shape: [`ops::relu6`].
    ReLU6 => ops::relu6;
    /// `x Phi(x)`, exact by the error function, for any shape: [`ops::gelu`].
    Gelu => ops::gelu;
    /// [`Gelu`] approximated by tanh, for any shape: [`ops::gelu_tanh`].
    GeluTanh => ops::gelu_tanh;
    /// `x sigmoid(x)`, for any shape: [`ops::silu`].
    Silu => ops::silu;
    /// `1 / (1 + e^-x)`, for any shape: [`ops::sigmoid`].
    Sigmoid => ops::sigmoid;
    /// The hyperbolic tangent, for any shape: [`ops::tanh`].
    Tanh => ops::tanh;
    /// Probabilities from logits, over the last dimension: `(.., C) -> (.., C)`.
    ///
    /// Do not use it to train a classifier: [`SoftMaxCrossEntropy`](super::SoftMaxCrossEntropy) takes
    /// the logits.
    Softmax => ops::softmax;
    /// `(N, ..) -> (N, M)`, where `M` is the product of all dimensions but the first.
    Flatten => flatten;
}

fn flatten(xs: &Tensor) -> Result<Tensor> {
    xs.flatten_from(1)
}
