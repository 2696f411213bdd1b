//! The matrix of a linear layer or of an embedding.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use candle_core::{DType, Result, Tensor};

use super::param::Param;
use super::quantized::QuantizedMatrix;

/// The matrix `(outputs, inputs)` of a linear layer, or the table `(vocabulary, dim)` of an embedding: a parameter, or
/// numbers in few bits that nothing trains. A LoRA adapter may add to it. A cheap handle: clones share all.
///
/// Its products are those of [`layers`](crate::layers): [`linear`](Self::linear),
/// [`linear_add`](Self::linear_add), [`cross_entropy`](Self::cross_entropy) and [`rows`](Self::rows).
#[derive(Clone, Debug)]
pub struct Weight {
    name: Arc<str>,
    /// Of rows that are looked up.
    pub(crate) dtype: DType,
    pub(crate) matrix: WeightMatrix,
    /// Whether the layer makes the output of the model.
    pub(crate) is_output: bool,
    adapter: Arc<RwLock<Option<Arc<dyn Adapter>>>>,
}

/// What adds to the products of a weight.
pub(crate) trait Adapter: fmt::Debug + Send + Sync {
    /// Whether the weight already has what the adapter would add.
    fn is_merged(&self) -> bool;

    /// `residual + xs weight^T + bias`, and what the adapter adds.
    fn product(
        &self,
        weight: &Weight,
        xs: &Tensor,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor>;
}

#[derive(Clone, Debug)]
pub(crate) enum WeightMatrix {
    Param(Param),
    Quantized(QuantizedMatrix),
}

impl Weight {
    pub(super) fn new(name: String, dtype: DType, matrix: WeightMatrix) -> Self {
        Self { name: name.into(), dtype, matrix, is_output: false, adapter: Arc::default() }
    }

    /// The full name, as in `blocks.0.up.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of the layer: the name without `.weight`.
    pub fn layer(&self) -> &str {
        layer_of(&self.name)
    }

    /// The number of rows and of columns.
    pub fn dims(&self) -> (usize, usize) {
        match &self.matrix {
            WeightMatrix::Param(param) => {
                let dims = param.dims();
                (dims[0], dims[1])
            }
            WeightMatrix::Quantized(matrix) => matrix.dims(),
        }
    }

    /// The parameter, unless the matrix is quantised.
    pub fn param(&self) -> Option<&Param> {
        match &self.matrix {
            WeightMatrix::Param(param) => Some(param),
            WeightMatrix::Quantized(_) => None,
        }
    }

    /// The numbers in few bits, if the matrix is quantised.
    pub fn quantized(&self) -> Option<&QuantizedMatrix> {
        match &self.matrix {
            WeightMatrix::Param(_) => None,
            WeightMatrix::Quantized(matrix) => Some(matrix),
        }
    }

    /// The adapter, if one is attached that still adds something.
    pub(crate) fn active_adapter(&self) -> Option<Arc<dyn Adapter>> {
        let adapter = self.adapter.read().unwrap_or_else(PoisonError::into_inner);
        adapter.as_ref().filter(|adapter| !adapter.is_merged()).cloned()
    }

    /// Whether an adapter is attached.
    pub(crate) fn has_adapter(&self) -> bool {
        self.adapter.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(crate) fn set_adapter(&self, adapter: Arc<dyn Adapter>) {
        *self.adapter.write().unwrap_or_else(PoisonError::into_inner) = Some(adapter);
    }
}

/// The layer to which a parameter of this name belongs.
pub(crate) fn layer_of(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(layer, _)| layer)
}
