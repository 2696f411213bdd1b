//! A table of vectors, one per word.

use candle_core::{Module, Result, Tensor};
use once_cell::sync::OnceCell;

use crate::{Init, Param, Scope, Weight};

/// `(..) -> (.., dim)`: row `i` of the table for each index `i` of u8, u32 or i64.
///
/// An index on the CPU that is out of range is an error. On a GPU it gives a row of NaN, as
/// [`ops::embedding`](crate::ops::embedding) explains.
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
    table: OnceCell<Weight>,
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
            table: OnceCell::new(),
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
    /// A second layer of the same name, or a table that is [quantised](crate::QuantizedMatrix): take
    /// [`table`](Self::table).
    pub fn weight(&self) -> Result<&Param> {
        let Some(weight) = self.table()?.param() else {
            candle_core::bail!("layer `{}` has a quantised table, no parameter", self.scope.path())
        };
        Ok(weight)
    }

    /// The table, which may be quantised. The first use of the layer creates it, and this call is a use. A last layer
    /// that uses it as its weight calls [`Weight::linear`] or [`Weight::cross_entropy`].
    ///
    /// # Errors
    /// A second layer of the same name.
    pub fn table(&self) -> Result<&Weight> {
        self.table.get_or_try_init(|| self.create())
    }

    fn create(&self) -> Result<Weight> {
        let shape = (self.vocabulary, self.dim);
        let table = self.scope.table("weight", shape, self.init)?;
        let padding = self.padding_index.filter(|index| *index < self.vocabulary);
        if let (Some(index), Some(weight)) = (padding, table.param()) {
            let tensor = weight.var().as_detached_tensor();
            let row = tensor.narrow(0, index, 1)?.zeros_like()?;
            weight.set(&tensor.slice_scatter0(&row, index)?)?;
        }
        Ok(table)
    }
}

impl Module for Embedding {
    fn forward(&self, indices: &Tensor) -> Result<Tensor> {
        let ys = self.table()?.rows(indices, self.padding_index)?;
        self.scope.trace(&format!("Embedding {}", self.vocabulary), &ys);
        Ok(ys)
    }
}
