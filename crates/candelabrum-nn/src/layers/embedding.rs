//! A table of vectors, one per word.

use candle_core::{Module, Result, Tensor};
use once_cell::sync::OnceCell;

use crate::{Init, Param, Scope, ops};

/// `(..) -> (.., dim)`: row `i` of the table for each index `i` of u8, u32 or i64.
///
/// An index on the CPU that is out of range is an error. On a GPU it gives a row of NaN, as
/// [`ops::embedding`] explains.
///
/// The table `weight` `(vocabulary, dim)` starts normal with deviation 1, as in PyTorch.
/// [`init`](Self::init) chooses another distribution.
#[derive(Debug)]
pub struct Embedding {
    scope: Scope,
    vocabulary: usize,
    dim: usize,
    padding_index: Option<usize>,
    init: Init,
    weight: OnceCell<Param>,
}

impl Embedding {
    /// A table of `vocabulary` rows of `dim` elements.
    pub fn new(scope: &Scope, vocabulary: usize, dim: usize) -> Self {
        Self {
            scope: scope.clone(),
            vocabulary,
            dim,
            padding_index: None,
            init: Init::Normal { std: 1.0 },
            weight: OnceCell::new(),
        }
    }

    builder! { layer:
        /// Makes row `index` the padding: it starts at zero and is not trained.
        padding_index(index: usize) => layer.padding_index = Some(index);
        /// The distribution of the table's initial values.
        init(init: Init) => layer.init = init;
    }

    /// The table. The first use of the layer creates it, and this call is a use. With it a last layer
    /// can use the table as its weight: `ops::linear(&xs, table.tensor(), None, None)`.
    ///
    /// # Errors
    /// A second layer of the same name.
    pub fn weight(&self) -> Result<&Param> {
        self.weight.get_or_try_init(|| self.create())
    }

    fn create(&self) -> Result<Param> {
        let shape = (self.vocabulary, self.dim);
        let weight = self.scope.param("weight", shape, self.init)?;
        if let Some(index) = self.padding_index.filter(|index| *index < self.vocabulary) {
            let tensor = weight.var().as_detached_tensor();
            let row = tensor.narrow(0, index, 1)?.zeros_like()?;
            weight.set(&tensor.slice_scatter0(&row, index)?)?;
        }
        Ok(weight)
    }
}

impl Module for Embedding {
    fn forward(&self, indices: &Tensor) -> Result<Tensor> {
        let ys = ops::embedding(self.weight()?.tensor(), indices, self.padding_index)?;
        self.scope.trace(&format!("Embedding {}", self.vocabulary), &ys);
        Ok(ys)
    }
}
