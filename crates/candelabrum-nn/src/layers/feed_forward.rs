//! The feed-forward branch of a transformer.

use candle_core::{Module, Result, Tensor};
use once_cell::sync::OnceCell;

use super::{Dropout, Linear, last};
use crate::ops::{self, HiddenUnits};
use crate::{Activation, Init, Scope};

/// `(.., C) -> (.., C)`: `down(act(up(x)))`, two linear layers with hidden units between them, in one
/// operation: [`ops::feed_forward`].
///
/// The parameters are `up.weight`, `up.bias`, `down.weight` and `down.bias`. With SwiGLU, `up` computes the
/// gates first and then the gated values.
#[derive(Debug)]
pub struct FeedForward {
    scope: Scope,
    bias: bool,
    hidden: Option<usize>,
    units: HiddenUnits,
    init: Option<Init>,
    down_init: Option<Init>,
    dropout: Option<Dropout>,
    layers: OnceCell<Layers>,
}

#[derive(Debug)]
struct Layers {
    hidden: usize,
    up: Linear,
    down: Linear,
}

impl FeedForward {
    /// `4 C` hidden units with GELU, and biases.
    pub fn new(scope: &Scope) -> Self {
        Self {
            scope: scope.clone(),
            bias: true,
            hidden: None,
            units: HiddenUnits::Activation(Activation::Gelu),
            init: None,
            down_init: None,
            dropout: None,
            layers: OnceCell::new(),
        }
    }

    builder! { layer:
        /// The number of hidden units, instead of `4 C`, or of `8 C / 3` with SwiGLU, which then has as many
        /// parameters.
        hidden(hidden: usize) => layer.hidden = Some(hidden);
        /// The activation of the hidden units, instead of GELU.
        activation(activation: Activation) => layer.units = HiddenUnits::Activation(activation);
        /// Gates the hidden units: [`ops::swiglu`].
        swiglu() => layer.units = HiddenUnits::SwiGlu;
        /// Makes linear layers without biases.
        no_bias() => layer.bias = false;
        /// Drops each element of the result with probability `p` in training.
        dropout(p: f32) => {
            layer.dropout = (p != 0.0).then(|| Dropout::new(&layer.scope.pp("dropout"), p));
        };
        /// The distribution of the initial weights of both layers.
        init(init: Init) => (layer.init, layer.down_init) = (Some(init), Some(init));
        /// The distribution of the initial weights of `down`, whose result is added to a residual. Call it after
        /// [`init`](Self::init).
        residual_init(init: Init) => layer.down_init = Some(init);
    }

    /// The result plus `residual`, in one operation if there is no dropout.
    ///
    /// # Errors
    /// Shapes that do not fit together.
    pub fn forward_add(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        match &self.dropout {
            None => self.run(xs, Some(residual)),
            Some(dropout) => ops::add(&dropout.forward(&self.run(xs, None)?)?, residual, None),
        }
    }

    fn run(&self, xs: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let features = last(&self.scope, xs, "(.., C)")?;
        let Layers { hidden, up, down } = self.layers.get_or_init(|| self.create(features));
        let (up, down) = (up.weights(xs)?, down.weights_for(*hidden)?);
        let ys = match (up.plain(), down.plain()) {
            (Some(up), Some(down)) => ops::feed_forward(xs, up, self.units, down, residual)?,
            _ => {
                let hidden = self.units.apply(up.weight.linear(xs, up.bias(), None)?)?;
                match residual {
                    Some(residual) => down.weight.linear_add(&hidden, down.bias(), residual)?,
                    None => down.weight.linear(&hidden, down.bias(), None)?,
                }
            }
        };
        self.trace(*hidden, &ys, residual.is_some());
        Ok(ys)
    }

    fn create(&self, features: usize) -> Layers {
        let linear =
            |name, outputs, init| Linear::with(&self.scope.pp(name), outputs, self.bias, init);
        let hidden = self.hidden.unwrap_or(match self.units {
            HiddenUnits::Activation(_) => 4 * features,
            HiddenUnits::SwiGlu => 8 * features / 3,
        });
        Layers {
            hidden,
            up: linear("up", self.units.inputs(hidden), self.init),
            down: linear("down", features, self.down_init),
        }
    }

    /// Adds both linear layers to the summary, with the shapes of their results.
    fn trace(&self, hidden: usize, ys: &Tensor, is_added: bool) {
        let units = match self.units {
            HiddenUnits::Activation(activation) => activation.to_string(),
            HiddenUnits::SwiGlu => "SwiGLU".to_owned(),
        };
        let mut dims = ys.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = self.units.inputs(hidden);
        }
        self.scope.pp("up").trace_dims(&format!("Linear, {units}"), &dims);
        self.scope.pp("down").trace(if is_added { "Linear, added" } else { "Linear" }, ys);
    }
}

impl Module for FeedForward {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.run(xs, None)?;
        match &self.dropout {
            Some(dropout) => dropout.forward(&ys),
            None => Ok(ys),
        }
    }
}
