//! Recurrent layers over whole sequences, the batch first: one layer or several, in one direction or in both.

use candle_core::{Module, Result, Tensor, bail};
use once_cell::sync::OnceCell;

use super::{check_features, sizes};
use crate::ops::{self, RecurrentWeights, SequenceSteps};
use crate::{Activation, Init, Param, Scope};

/// Simple recurrent layer, `(N, T, in) -> (N, T, hidden)`: PyTorch's `nn.RNN` with `batch_first=True`. The
/// equation is at [`ops::rnn()`].
///
/// The first input determines the number of inputs. The parameters are `weight_ih` `(hidden, in)`, `weight_hh`
/// `(hidden, hidden)`, `bias_ih` and `bias_hh` `(hidden)`. They start uniform within `1 / sqrt(hidden)`. Further
/// layers and directions have the names of PyTorch: `weight_ih_l1`, `weight_ih_reverse`, `weight_ih_l1_reverse`. A
/// [`NameMap`](crate::NameMap) that renames `_l0` to nothing loads PyTorch's weights.
#[derive(Debug)]
pub struct Rnn {
    stack: LayerStack,
    activation: Activation,
}

/// Gated recurrent unit, `(N, T, in) -> (N, T, hidden)`: PyTorch's `nn.GRU` with
/// `batch_first=True`. The equations are at [`ops::gru()`].
///
/// The first input determines the number of inputs. The parameters are `weight_ih`
/// `(3 hidden, in)`, `weight_hh` `(3 hidden, hidden)`, `bias_ih` and `bias_hh` `(3 hidden)`, with
/// the gates in the order r, z, n. They start uniform within `1 / sqrt(hidden)`. Further layers and directions
/// have names as those of [`Rnn`]. If you need only the last hidden state, apply [`ops::last_step()`] to the output.
#[derive(Debug)]
pub struct Gru {
    stack: LayerStack,
}

/// Long short-term memory, `(N, T, in) -> (N, T, hidden)`: PyTorch's `nn.LSTM` with
/// `batch_first=True`. The equations are at [`ops::lstm()`].
///
/// The parameters are those of [`Gru`], with four gates in the order i, f, g, o.
#[derive(Debug)]
pub struct Lstm {
    stack: LayerStack,
}

/// The settings that the three layers have in common.
macro_rules! stacked {
    ($($Layer:ident)*) => {$(
        impl $Layer {
            builder! { layer:
                /// Puts so many layers above each other. Each takes the results of the one before it.
                layers(count: usize) => layer.stack.layers = count;
                /// Adds to each layer one against the direction of time. The results of both are side by side:
                /// `(N, T, 2 hidden)`.
                bidirectional() => layer.stack.directions = 2;
                /// In training, sets the results between two layers to zero with probability `p`.
                dropout(p: f32) => layer.stack.dropout = p;
            }
        }

        impl Module for $Layer {
            fn forward(&self, xs: &Tensor) -> Result<Tensor> {
                Ok(self.run(xs, None, None, false)?.0)
            }
        }
    )*};
}
stacked!(Rnn Gru Lstm);

/// The methods of the two layers whose state is a hidden state alone.
macro_rules! with_hidden_state {
    ($($Layer:ident)*) => {$(
        impl $Layer {
            /// Starts from the hidden state `state` `(N, hidden)` instead of zeros. Returns all hidden
            /// states and the final one. To cut gradients between the pieces of a long sequence, detach the
            /// final state before you pass it to the next piece.
            ///
            /// Several layers or directions have states `(layers · directions, N, hidden)`, in the order of PyTorch: both
            /// directions of the first layer, then those of the next one.
            ///
            /// # Errors
            /// Shapes that do not fit together.
            pub fn forward_with(&self, xs: &Tensor, state: &Tensor) -> Result<(Tensor, Tensor)> {
                self.run(xs, Some(state), None, true)
            }

            /// [`forward_with`](Self::forward_with) for sequences that end at their `lengths` `(N)`, as PyTorch's packed
            /// sequences, but in the order of the batch: results behind a length are 0, the final state is that at the
            /// length, and the other direction begins at the length. Padding is not read. [`SequenceSteps`] says more.
            /// [`ops::sequence_lengths()`] finds the lengths of tokens.
            ///
            /// # Errors
            /// Shapes or lengths that do not fit together.
            pub fn forward_lengths(
                &self,
                xs: &Tensor,
                lengths: &Tensor,
                state: Option<&Tensor>,
            ) -> Result<(Tensor, Tensor)> {
                self.run(xs, state, Some(lengths), true)
            }
        }
    )*};
}
with_hidden_state!(Rnn Gru);

impl Rnn {
    /// A layer of `hidden` units with tanh.
    pub fn new(scope: &Scope, hidden: usize) -> Self {
        Self { stack: LayerStack::new(scope, 1, hidden), activation: Activation::Tanh }
    }

    builder! { layer:
        /// Takes [`Relu`](Activation::Relu) for [`Tanh`](Activation::Tanh), or the reverse.
        activation(activation: Activation) => layer.activation = activation;
    }

    fn run(
        &self,
        xs: &Tensor,
        state: Option<&Tensor>,
        lengths: Option<&Tensor>,
        ends: bool,
    ) -> Result<(Tensor, Tensor)> {
        let call = LayerCall { kind: "Rnn", lengths, ends };
        let (ys, [h, _]) =
            self.stack.run(xs, [state, None], &call, |xs, weights, [h, _], steps| {
                Ok((ops::rnn(xs, weights, h, self.activation, steps)?, None))
            })?;
        Ok((ys, h))
    }
}

impl Gru {
    /// A layer of `hidden` units.
    pub fn new(scope: &Scope, hidden: usize) -> Self {
        Self { stack: LayerStack::new(scope, 3, hidden) }
    }

    fn run(
        &self,
        xs: &Tensor,
        state: Option<&Tensor>,
        lengths: Option<&Tensor>,
        ends: bool,
    ) -> Result<(Tensor, Tensor)> {
        let call = LayerCall { kind: "Gru", lengths, ends };
        let (ys, [h, _]) =
            self.stack.run(xs, [state, None], &call, |xs, weights, [h, _], steps| {
                Ok((ops::gru_with(xs, weights, h, steps)?, None))
            })?;
        Ok((ys, h))
    }
}

impl Lstm {
    /// A layer of `hidden` units.
    pub fn new(scope: &Scope, hidden: usize) -> Self {
        Self { stack: LayerStack::new(scope, 4, hidden) }
    }

    /// Starts from a hidden and a cell state, both `(N, hidden)`, instead of zeros. Returns all
    /// hidden states, and the final hidden and cell state. To cut gradients between the pieces of a
    /// long sequence, detach both states before you pass them to the next piece.
    ///
    /// States of several layers or directions are those of [`Gru::forward_with`].
    ///
    /// # Errors
    /// Shapes that do not fit together.
    pub fn forward_with(
        &self,
        xs: &Tensor,
        state: (&Tensor, &Tensor),
    ) -> Result<(Tensor, (Tensor, Tensor))> {
        self.run(xs, Some(state), None, true)
    }

    /// As [`Gru::forward_lengths`].
    ///
    /// # Errors
    /// Shapes or lengths that do not fit together.
    pub fn forward_lengths(
        &self,
        xs: &Tensor,
        lengths: &Tensor,
        state: Option<(&Tensor, &Tensor)>,
    ) -> Result<(Tensor, (Tensor, Tensor))> {
        self.run(xs, state, Some(lengths), true)
    }

    fn run(
        &self,
        xs: &Tensor,
        state: Option<(&Tensor, &Tensor)>,
        lengths: Option<&Tensor>,
        ends: bool,
    ) -> Result<(Tensor, (Tensor, Tensor))> {
        let call = LayerCall { kind: "Lstm", lengths, ends };
        let states = state.unzip().into();
        let (ys, [h, c]) = self.stack.run(xs, states, &call, |xs, weights, [h, c], steps| {
            let (ys, c) = ops::lstm_with(xs, weights, h.zip(c), steps)?;
            Ok((ys, Some(c)))
        })?;
        Ok((ys, (h, c)))
    }
}

/// How a layer is called.
struct LayerCall<'a> {
    /// The name of the layer in the summary.
    kind: &'static str,
    lengths: Option<&'a Tensor>,
    /// Whether the caller takes the final states.
    ends: bool,
}

/// Layers of one kind above each other, in one direction or in both.
#[derive(Debug)]
struct LayerStack {
    scope: Scope,
    gates: usize,
    hidden: usize,
    layers: usize,
    directions: usize,
    dropout: f32,
    /// By layer, and by direction within a layer.
    weights: OnceCell<Vec<CellWeights>>,
}

impl LayerStack {
    fn new(scope: &Scope, gates: usize, hidden: usize) -> Self {
        let weights = OnceCell::new();
        Self {
            scope: scope.clone(),
            gates,
            hidden,
            layers: 1,
            directions: 1,
            dropout: 0.0,
            weights,
        }
    }

    /// Runs `cell` for each layer and direction. Returns the results of the last layer, and the final hidden and
    /// cell states if they are asked for. Without them, and for cells that have none, the tensors are `ys`.
    fn run(
        &self,
        xs: &Tensor,
        states: [Option<&Tensor>; 2],
        call: &LayerCall<'_>,
        cell: impl Fn(
            &Tensor,
            RecurrentWeights<'_>,
            [Option<&Tensor>; 2],
            &SequenceSteps,
        ) -> Result<(Tensor, Option<Tensor>)>,
    ) -> Result<(Tensor, [Tensor; 2])> {
        let weights = self.weights(xs)?;
        let forwards =
            call.lengths.map_or_else(|| Ok(SequenceSteps::default()), SequenceSteps::of_lengths)?;
        let steps = [forwards.clone(), forwards.reversed()];
        let mut ys = xs.clone();
        let (mut hs, mut cs) = (Vec::new(), Vec::new());
        for layer in 0..self.layers {
            if layer > 0 && self.dropout > 0.0 && self.scope.is_training() {
                ys = ops::dropout(&ys, self.dropout, self.scope.noise_seed())?;
            }
            let mut results = Vec::new();
            for (direction, steps) in steps.iter().enumerate().take(self.directions) {
                let number = layer * self.directions + direction;
                let [h, c] = states.map(|states| states.map(|states| self.state(states, number)));
                let (h, c) = (h.transpose()?, c.transpose()?);
                let weights = weights[number].borrow();
                let (ys, end) = cell(&ys, weights, [h.as_ref(), c.as_ref()], steps)?;
                if call.ends {
                    hs.push(ops::final_state(&ys, h.as_ref(), steps)?);
                    cs.extend(end);
                }
                results.push(ys);
            }
            ys = joined(results, 2)?;
        }
        self.scope.trace(&self.described(call.kind), &ys);
        let ends = |states: Vec<Tensor>| match (states.len(), states.first()) {
            (0, _) => Ok(ys.clone()),
            (1, Some(state)) => Ok(state.clone()),
            _ => joined(states.iter().map(|state| state.unsqueeze(0)).collect::<Result<_>>()?, 0),
        };
        let ends = [ends(hs)?, ends(cs)?];
        Ok((ys, ends))
    }

    /// The state of a layer and direction in those of all, which are (N, hidden) if there is only one.
    fn state(&self, states: &Tensor, number: usize) -> Result<Tensor> {
        let count = self.layers * self.directions;
        if count == 1 {
            return Ok(states.clone());
        }
        if states.rank() != 3 || states.dim(0)? != count {
            bail!(
                "layer `{}`: states of shape {:?}, expected ({count}, N, {})",
                self.scope.path(),
                states.shape(),
                self.hidden
            )
        }
        states.narrow(0, number, 1)?.squeeze(0)
    }

    /// The weights. The first call creates them for the input `xs`.
    fn weights(&self, xs: &Tensor) -> Result<&[CellWeights]> {
        let [_, _, inputs] = sizes(&self.scope, xs, "(N, T, in)")?;
        let weights = self.weights.get_or_try_init(|| self.create(inputs))?;
        check_features(&self.scope, "features", weights[0].weight_ih.variable().dim(1)?, inputs)?;
        Ok(weights)
    }

    fn create(&self, inputs: usize) -> Result<Vec<CellWeights>> {
        if self.hidden == 0 || self.layers == 0 {
            bail!("layer `{}` has no hidden units", self.scope.path())
        }
        let mut weights = Vec::new();
        for layer in 0..self.layers {
            let inputs = if layer == 0 { inputs } else { self.directions * self.hidden };
            let layer = if layer == 0 { String::new() } else { format!("_l{layer}") };
            for direction in ["", "_reverse"].iter().take(self.directions) {
                let suffix = format!("{layer}{direction}");
                weights.push(CellWeights::new(
                    &self.scope,
                    self.gates,
                    [self.hidden, inputs],
                    &suffix,
                )?);
            }
        }
        Ok(weights)
    }

    fn described(&self, kind: &str) -> String {
        let layers = match self.layers {
            1 => String::new(),
            layers => format!(", {layers} layers"),
        };
        let directions = if self.directions == 1 { "" } else { ", both directions" };
        format!("{kind}{layers}{directions}")
    }
}

/// The tensors one after the other along a dimension.
fn joined(mut tensors: Vec<Tensor>, dim: usize) -> Result<Tensor> {
    match tensors.len() {
        1 => Ok(tensors.remove(0)),
        _ => ops::cat(&tensors, dim),
    }
}

/// The parameters of one layer in one direction.
#[derive(Debug)]
struct CellWeights {
    weight_ih: Param,
    weight_hh: Param,
    bias_ih: Param,
    bias_hh: Param,
}

impl CellWeights {
    fn new(
        scope: &Scope,
        gates: usize,
        [hidden, inputs]: [usize; 2],
        suffix: &str,
    ) -> Result<Self> {
        let bound = 1.0 / (hidden as f64).sqrt();
        let init = Init::Uniform { low: -bound, high: bound };
        let rows = gates * hidden;
        let name = |name: &str| format!("{name}{suffix}");
        Ok(Self {
            weight_ih: scope.param(&name("weight_ih"), (rows, inputs), init)?,
            weight_hh: scope.param(&name("weight_hh"), (rows, hidden), init)?,
            bias_ih: scope.param(&name("bias_ih"), rows, init)?,
            bias_hh: scope.param(&name("bias_hh"), rows, init)?,
        })
    }

    fn borrow(&self) -> RecurrentWeights<'_> {
        RecurrentWeights {
            weight_ih: self.weight_ih.tensor(),
            weight_hh: self.weight_hh.tensor(),
            bias_ih: Some(self.bias_ih.tensor()),
            bias_hh: Some(self.bias_hh.tensor()),
        }
    }
}
