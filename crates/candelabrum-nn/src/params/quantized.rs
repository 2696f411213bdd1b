//! A matrix in few bits for each number, as GGUF files have them: for frozen weights.

use std::ops::Range;
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{CpuStorage, DType, Device, Result, Tensor, bail};

/// A matrix `(rows, columns)` in few bits for each number. Nothing trains these numbers: a layer with such a matrix has
/// no gradient, no state of an optimizer, and no bytes between ranks for this matrix. A cheap handle.
///
/// Products dequantise some rows at a time, so the matrix never exists in f32 as a whole.
#[derive(Clone, Debug)]
pub struct QuantizedMatrix {
    tensor: Arc<QTensor>,
    rows: usize,
    columns: usize,
}

impl QuantizedMatrix {
    /// The matrix of a tensor of candle's.
    ///
    /// # Errors
    /// A tensor that is no matrix.
    pub fn new(tensor: QTensor) -> Result<Self> {
        let (rows, columns) = tensor.shape().dims2()?;
        let block = tensor.dtype().block_size();
        if !columns.is_multiple_of(block) {
            bail!(
                "a quantised matrix with rows of {columns} numbers, which are no blocks of {block}"
            );
        }
        Ok(Self { tensor: Arc::new(tensor), rows, columns })
    }

    /// The number of rows and of columns.
    pub fn dims(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// How the numbers are stored.
    pub fn format(&self) -> GgmlDType {
        self.tensor.dtype()
    }

    /// The bytes of the stored numbers.
    pub fn bytes(&self) -> usize {
        self.tensor.storage_size_in_bytes()
    }

    /// The stored numbers themselves, for a digest.
    ///
    /// # Errors
    /// Only candle's own.
    pub fn data(&self) -> Result<std::borrow::Cow<'_, [u8]>> {
        self.tensor.data()
    }

    /// The whole matrix in `dtype` on `device`.
    ///
    /// # Errors
    /// Only candle's own.
    pub fn dequantize(&self, dtype: DType, device: &Device) -> Result<Tensor> {
        self.tensor.dequantize(&self.tensor.device())?.to_dtype(dtype)?.to_device(device)
    }

    /// The rows at `indices`: `(..) -> (.., columns)` in f32, on the device of the matrix.
    ///
    /// # Errors
    /// An index that is not below the number of rows.
    pub fn rows_at(&self, indices: &Tensor) -> Result<Tensor> {
        let flat = indices.flatten_all()?.to_dtype(DType::U32)?;
        if flat.device().is_cpu() {
            let largest = flat.to_vec1::<u32>()?.into_iter().max();
            if let Some(index) = largest.filter(|index| *index as usize >= self.rows) {
                bail!("embedding: index {index}, but there are {} rows", self.rows);
            }
        }
        let rows = self.tensor.embedding(&flat.to_device(&self.tensor.device())?)?;
        let mut shape = indices.dims().to_vec();
        shape.push(self.columns);
        rows.reshape(shape)
    }

    /// Writes some rows, one after the other. On the CPU only.
    pub(crate) fn write_rows(&self, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        let format = self.tensor.dtype();
        let row = self.columns / format.block_size() * format.type_size();
        let data = self.tensor.data()?;
        let bytes = &data[range.start * row..range.end * row];
        let numbers = format.from_data(bytes.into()).dequantize(range.len() * self.columns)?;
        let CpuStorage::F32(numbers) = numbers else { bail!("a quantised matrix that is no f32") };
        out.copy_from_slice(&numbers);
        Ok(())
    }
}
