//! Initial values of parameters that do not come from a distribution: those of a pretrained model.

use candle_core::{DType, Device, Result, Shape, Var};

use super::quantized::QuantizedMatrix;

/// Where a store takes the initial values of parameters, instead of drawing them.
///
/// So a model of a billion parameters never holds values that it does not use, and a parameter exists with its
/// pretrained values or not at all.
pub trait InitialValues: Send + Sync {
    /// A new variable with the values of the parameter `name`. `None` leaves them to the distribution that the layer
    /// asks for.
    ///
    /// # Errors
    /// Values that cannot be read, or of another shape.
    fn variable(
        &self,
        name: &str,
        shape: &Shape,
        dtype: DType,
        device: &Device,
    ) -> Result<Option<Var>>;

    /// The matrix `name` of a linear layer or of an embedding, if this matrix is to stay in few bits for each number
    /// and frozen. `None`, the default, makes it a parameter.
    ///
    /// # Errors
    /// Those of [`variable`](Self::variable).
    fn quantized(
        &self,
        name: &str,
        (rows, columns): (usize, usize),
        device: &Device,
    ) -> Result<Option<QuantizedMatrix>> {
        let _ = (name, rows, columns, device);
        Ok(None)
    }
}
