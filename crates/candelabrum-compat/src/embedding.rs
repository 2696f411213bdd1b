//! `candle_nn::embedding` with a backward pass on all threads.

use candelabrum_nn::ops;
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::VarBuilder;

/// The rows of a table.
#[derive(Clone, Debug)]
pub struct Embedding(candle_nn::Embedding);

impl Embedding {
    /// The layer of a table of shape (rows, `hidden_size`).
    pub fn new(embeddings: Tensor, hidden_size: usize) -> Self {
        Self(candle_nn::Embedding::new(embeddings, hidden_size))
    }

    /// The table.
    pub fn embeddings(&self) -> &Tensor {
        self.0.embeddings()
    }

    /// The length of a row.
    pub fn hidden_size(&self) -> usize {
        self.0.hidden_size()
    }
}

impl Module for Embedding {
    /// Indices (..) in u8, u32 or i64 -> (.., hidden size)
    fn forward(&self, indices: &Tensor) -> Result<Tensor> {
        let table = self.embeddings();
        // Our operation would make an f32 copy of the whole table.
        if table.device().is_cpu() && matches!(table.dtype(), DType::F16 | DType::BF16) {
            return self.0.forward(indices);
        }
        ops::embedding(table, indices, None)
    }
}

/// A layer with the parameter `weight`.
///
/// # Errors
/// Those of the builder.
pub fn embedding(in_size: usize, out_size: usize, vb: VarBuilder<'_>) -> Result<Embedding> {
    candle_nn::embedding(in_size, out_size, vb).map(Embedding)
}
