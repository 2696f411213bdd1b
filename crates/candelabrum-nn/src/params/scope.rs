//! Paths into a store of parameters. Layers create their parameters under them.

use std::fmt;

use candle_core::{DType, Shape, Tensor, Var};

use super::buffers::Buffer;
use super::init::Init;
use super::master;
use super::param::Param;
use super::store::Params;
use super::weight::{Weight, WeightMatrix};
use crate::autograd::saved;
use crate::layer_row::LayerRow;
use crate::{Result, seed};

impl Params {
    /// The scope in which a model creates its layers.
    pub fn root(&self) -> Scope {
        Scope { params: self.clone(), path: String::new() }
    }
}

/// A path into a [`Params`] store, under which a layer creates its parameters.
#[derive(Clone, Debug)]
pub struct Scope {
    params: Params,
    path: String,
}

impl Scope {
    /// The scope `name` below this one, as in candle's `VarBuilder::pp`.
    #[must_use]
    pub fn pp(&self, name: impl fmt::Display) -> Self {
        Self { params: self.params.clone(), path: self.join(&name.to_string()) }
    }

    /// The path so far, joined by dots. Empty at the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The store behind the scope.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Creates the parameter `name` of this scope.
    ///
    /// # Errors
    /// [`Error::DuplicateName`](crate::Error::DuplicateName) if this name exists already.
    pub fn param(&self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Param> {
        let (name, shape) = (self.join(name), shape.into());
        if let Some(variable) = self.pretrained(&name, &shape)? {
            let param = self.params.insert(name, variable, false)?;
            param.note_pretrained();
            return Ok(param);
        }
        let var = self.initial(&name, &shape, self.params.dtype(), init)?;
        let param = self.params.insert(name, var, false)?;
        if self.params.initial_values().is_some() && !matches!(init, Init::Const(_)) {
            param.note_drawn();
        }
        Ok(param)
    }

    /// The variable `name` with the values of the files that the model is loaded from.
    fn pretrained(&self, name: &str, shape: &Shape) -> Result<Option<Var>> {
        let Some(values) = self.params.initial_values() else { return Ok(None) };
        Ok(values.variable(name, shape, self.params.dtype(), self.params.device())?)
    }

    /// Creates the matrix `name` of a linear layer: a parameter, unless the store's
    /// [initial values](Params::set_initial_values) have it quantised.
    ///
    /// # Errors
    /// Those of [`param`](Self::param).
    pub fn weight(&self, name: &str, shape: (usize, usize), init: Init) -> Result<Weight> {
        self.weight_of(name, shape, init, false)
    }

    /// [`weight`](Self::weight), of a layer that may make the output of the model.
    pub(crate) fn weight_of(
        &self,
        name: &str,
        shape: (usize, usize),
        init: Init,
        is_output: bool,
    ) -> Result<Weight> {
        let mut weight = self.table(name, shape, init)?;
        weight.is_output = is_output;
        self.params.add_weight(weight.clone());
        Ok(weight)
    }

    /// Creates the table `name` of an embedding, as [`weight`](Self::weight) does. A table gets no adapter.
    ///
    /// # Errors
    /// Those of [`param`](Self::param).
    pub fn table(&self, name: &str, shape: (usize, usize), init: Init) -> Result<Weight> {
        let path = self.join(name);
        let quantized = match self.params.initial_values() {
            Some(values) => values.quantized(&path, shape, self.params.device())?,
            None => None,
        };
        let matrix = match quantized {
            Some(matrix) => {
                self.params.insert_constant(&path, &matrix)?;
                WeightMatrix::Quantized(matrix)
            }
            None => WeightMatrix::Param(self.param(name, shape, init)?),
        };
        Ok(Weight::new(path, self.params.dtype(), matrix))
    }

    /// Creates the buffer `name` of this scope: state that is not trained. Beside parameters in f16
    /// and bf16 it is in f32, because it has no master.
    ///
    /// # Errors
    /// [`Error::DuplicateName`](crate::Error::DuplicateName) if a buffer or a parameter has this name.
    pub fn buffer(&self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Buffer> {
        let name = self.join(name);
        let dtype = self.params.dtype();
        let dtype = if master::is_half(dtype) { DType::F32 } else { dtype };
        let var = self.initial(&name, &shape.into(), dtype, init)?;
        self.params.insert_buffer(Buffer::new(name.into(), var))
    }

    fn initial(&self, name: &str, shape: &Shape, dtype: DType, init: Init) -> Result<Var> {
        let mut rng = seed::rng(seed::derive(self.params.seed(), name));
        Ok(Var::from_tensor(&init.tensor(shape, dtype, self.params.device(), &mut rng)?)?)
    }

    /// Whether layers are in training mode.
    pub fn is_training(&self) -> bool {
        self.params.is_training()
    }

    /// See [`Self::noise_seed`].
    pub(crate) fn next_noise_seed(&self) -> u64 {
        let (stream, draw) = self.params.next_noise_draw();
        let stream = seed::nth(self.params.seed(), stream);
        seed::nth(seed::derive(stream, &self.path), draw)
    }

    /// Adds the layer of this scope with its `output` to the summary, if one is being made.
    pub fn trace(&self, kind: &str, output: &Tensor) {
        self.trace_dims(kind, output.dims());
    }

    /// [`trace`](Self::trace) for an output of which no tensor exists.
    pub(crate) fn trace_dims(&self, kind: &str, dims: &[usize]) {
        saved::layer_ends(&self.path);
        self.params.add_row(|| LayerRow {
            name: self.path.clone(),
            kind: kind.to_owned(),
            output: dims.to_vec(),
        });
    }

    fn join(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_differs_by_call_by_stream_and_by_scope() {
        let params = Params::new(0);
        let scope = params.root().pp("drop");
        let first = scope.noise_seed();
        assert_ne!(first, scope.noise_seed());
        let other = Params::new(0);
        other.set_noise_stream(1);
        assert_ne!(first, other.root().pp("drop").noise_seed());
        let same = Params::new(0);
        assert_eq!(first, same.root().pp("drop").noise_seed());
    }
}
