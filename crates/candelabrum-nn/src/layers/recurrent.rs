//! Recurrent layers over whole sequences: one layer, one direction, the batch first.

use candle_core::{Module, Result, Tensor};
use once_cell::sync::OnceCell;

use super::{check_features, sizes};
use crate::ops::{self, RecurrentWeights};
use crate::{Init, Param, Scope};

/// Gated recurrent unit, `(N, T, in) -> (N, T, hidden)`: PyTorch's `nn.GRU` with
/// `batch_first=True`. The equations are at [`ops::gru()`].
///
/// The first input determines the number of inputs. The parameters are `weight_ih`
/// `(3 hidden, in)`, `weight_hh` `(3 hidden, hidden)`, `bias_ih` and `bias_hh` `(3 hidden)`, with
/// the gates in the order r, z, n. They start uniform within `1 / sqrt(hidden)`. If you need only
/// the last hidden state, apply [`ops::last_step()`] to the output.
#[derive(Debug)]
pub struct Gru {
    scope: Scope,
    hidden: usize,
    weights: OnceCell<CellWeights>,
}

impl Gru {
    /// A layer of `hidden` units.
    pub fn new(scope: &Scope, hidden: usize) -> Self {
        Self { scope: scope.clone(), hidden, weights: OnceCell::new() }
    }

    /// Starts from the hidden state `state` `(N, hidden)` instead of zeros. Returns all hidden
    /// states and the final one. To cut gradients between the pieces of a long sequence, detach the
    /// final state before you pass it to the next piece.
    ///
    /// # Errors
    /// Shapes that do not fit together.
    pub fn forward_with(&self, xs: &Tensor, state: &Tensor) -> Result<(Tensor, Tensor)> {
        let ys = self.run(xs, Some(state))?;
        let state = ops::last_step(&ys)?;
        Ok((ys, state))
    }

    fn run(&self, xs: &Tensor, state: Option<&Tensor>) -> Result<Tensor> {
        let weights = CellWeights::of(&self.weights, &self.scope, (3, self.hidden), xs)?;
        let ys = ops::gru(xs, weights.borrow(), state)?;
        self.scope.trace("Gru", &ys);
        Ok(ys)
    }
}

impl Module for Gru {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.run(xs, None)
    }
}

/// Long short-term memory, `(N, T, in) -> (N, T, hidden)`: PyTorch's `nn.LSTM` with
/// `batch_first=True`. The equations are at [`ops::lstm()`].
///
/// The parameters are those of [`Gru`], with four gates in the order i, f, g, o.
#[derive(Debug)]
pub struct Lstm {
    scope: Scope,
    hidden: usize,
    weights: OnceCell<CellWeights>,
}

impl Lstm {
    /// A layer of `hidden` units.
    pub fn new(scope: &Scope, hidden: usize) -> Self {
        Self { scope: scope.clone(), hidden, weights: OnceCell::new() }
    }

    /// Starts from a hidden and a cell state, both `(N, hidden)`, instead of zeros. Returns all
    /// hidden states, and the final hidden and cell state. To cut gradients between the pieces of a
    /// long sequence, detach both states before you pass them to the next piece.
    ///
    /// # Errors
    /// Shapes that do not fit together.
    pub fn forward_with(
        &self,
        xs: &Tensor,
        (hidden, cell): (&Tensor, &Tensor),
    ) -> Result<(Tensor, (Tensor, Tensor))> {
        let (ys, cell) = self.run(xs, Some((hidden, cell)))?;
        let hidden = ops::last_step(&ys)?;
        Ok((ys, (hidden, cell)))
    }

    fn run(&self, xs: &Tensor, state: Option<(&Tensor, &Tensor)>) -> Result<(Tensor, Tensor)> {
        let weights = CellWeights::of(&self.weights, &self.scope, (4, self.hidden), xs)?;
        let (ys, cell) = ops::lstm(xs, weights.borrow(), state)?;
        self.scope.trace("Lstm", &ys);
        Ok((ys, cell))
    }
}

impl Module for Lstm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        Ok(self.run(xs, None)?.0)
    }
}

/// The parameters of a recurrent layer.
#[derive(Debug)]
struct CellWeights {
    weight_ih: Param,
    weight_hh: Param,
    bias_ih: Param,
    bias_hh: Param,
}

impl CellWeights {
    /// The weights in `cell`. The first call creates them for the input `xs`.
    fn of<'a>(
        cell: &'a OnceCell<Self>,
        scope: &Scope,
        (gates, hidden): (usize, usize),
        xs: &Tensor,
    ) -> Result<&'a Self> {
        let [_, _, inputs] = sizes(scope, xs, "(N, T, in)")?;
        let weights = cell.get_or_try_init(|| Self::new(scope, gates, hidden, inputs))?;
        check_features(scope, "features", weights.weight_ih.var().dim(1)?, inputs)?;
        Ok(weights)
    }

    fn new(scope: &Scope, gates: usize, hidden: usize, inputs: usize) -> Result<Self> {
        if hidden == 0 {
            candle_core::bail!("layer `{}` has no hidden units", scope.path())
        }
        let bound = 1.0 / (hidden as f64).sqrt();
        let init = Init::Uniform { low: -bound, high: bound };
        let rows = gates * hidden;
        Ok(Self {
            weight_ih: scope.param("weight_ih", (rows, inputs), init)?,
            weight_hh: scope.param("weight_hh", (rows, hidden), init)?,
            bias_ih: scope.param("bias_ih", rows, init)?,
            bias_hh: scope.param("bias_hh", rows, init)?,
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
