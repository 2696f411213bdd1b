//! Inputs with mean 0 and deviation 1 in each column.
//!
//! The numbers come from the training rows alone and are applied to all rows. If the test rows had a say
//! in them, the test would measure something that the model has seen. They belong to the model: keep
//! them with its parameters, and apply them to the inputs of a prediction.

use candle_core::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::error::{Result, TableError};

/// The mean and the standard deviation of each column of some inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Standardization {
    /// The means.
    pub mean: Vec<f32>,
    /// The standard deviations, with 1 in place of the 0 of a column whose numbers are all the same.
    pub std: Vec<f32>,
}

impl Standardization {
    /// The numbers of these inputs, computed in f64. The deviation is that of all rows, as in
    /// scikit-learn.
    ///
    /// # Shapes
    /// `xs` is (N, F), in any type of floating-point numbers.
    ///
    /// # Errors
    /// Another number of dimensions, or no rows.
    pub fn fit(xs: &Tensor) -> Result<Self> {
        let (rows, columns) = xs.dims2()?;
        if rows == 0 {
            return Err(TableError::Columns { shape: xs.dims().to_vec(), columns }.into());
        }
        let rows: Vec<Vec<f64>> = xs.to_dtype(DType::F64)?.to_vec2()?;
        let count = rows.len() as f64;
        let (mut mean, mut std) = (Vec::with_capacity(columns), Vec::with_capacity(columns));
        for column in 0..columns {
            let center = rows.iter().map(|row| row[column]).sum::<f64>() / count;
            let variance =
                rows.iter().map(|row| (row[column] - center).powi(2)).sum::<f64>() / count;
            mean.push(center as f32);
            std.push(if variance > 0.0 { variance.sqrt() as f32 } else { 1.0 });
        }
        Ok(Self { mean, std })
    }

    /// `(xs - mean) / std`, in the type and on the device of the inputs.
    ///
    /// # Shapes
    /// (N, F) -> (N, F)
    ///
    /// # Errors
    /// Another number of columns.
    pub fn apply(&self, xs: &Tensor) -> Result<Tensor> {
        let (mean, std) = self.rows(xs)?;
        Ok(xs.broadcast_sub(&mean)?.broadcast_div(&std)?)
    }

    /// The reverse of [`apply`](Self::apply): from a model's outputs to the units of the targets.
    ///
    /// # Shapes
    /// (N, F) -> (N, F)
    ///
    /// # Errors
    /// Another number of columns.
    pub fn undo(&self, ys: &Tensor) -> Result<Tensor> {
        let (mean, std) = self.rows(ys)?;
        Ok(ys.broadcast_mul(&std)?.broadcast_add(&mean)?)
    }

    /// The means and the deviations in the type and on the device of `xs`.
    fn rows(&self, xs: &Tensor) -> Result<(Tensor, Tensor)> {
        let columns = self.mean.len();
        if xs.dims().len() != 2 || xs.dims()[1] != columns || self.std.len() != columns {
            return Err(TableError::Columns { shape: xs.dims().to_vec(), columns }.into());
        }
        let row = |numbers: &[f32]| -> Result<Tensor> {
            let row = Tensor::new(numbers, &Device::Cpu)?;
            Ok(row.to_dtype(xs.dtype())?.to_device(xs.device())?)
        };
        Ok((row(&self.mean)?, row(&self.std)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_get_mean_0_and_deviation_1_and_constant_ones_0() {
        let xs =
            Tensor::new(&[[1_f32, 7.0], [3.0, 7.0], [5.0, 7.0], [7.0, 7.0]], &Device::Cpu).unwrap();
        let fitted = Standardization::fit(&xs).unwrap();
        assert_eq!((&fitted.mean[..], fitted.std[1]), (&[4.0, 7.0][..], 1.0));
        assert!((fitted.std[0] - 5_f32.sqrt()).abs() < 1e-6);
        let rows: Vec<Vec<f32>> = fitted.apply(&xs).unwrap().to_vec2().unwrap();
        assert!(rows.iter().all(|row| row[1] == 0.0));
        assert!((rows[0][0] + 3.0 / 5_f32.sqrt()).abs() < 1e-6);
        let back: Vec<Vec<f32>> =
            fitted.undo(&fitted.apply(&xs).unwrap()).unwrap().to_vec2().unwrap();
        assert!((back[3][0] - 7.0).abs() < 1e-5 && back[3][1] == 7.0, "{back:?}");
        let again: Standardization =
            serde_json::from_str(&serde_json::to_string(&fitted).unwrap()).unwrap();
        assert_eq!(again, fitted);
    }

    #[test]
    fn inputs_of_another_shape_are_errors() {
        let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
        let fitted = Standardization::fit(&zeros(&[2, 3])).unwrap();
        let message = fitted.apply(&zeros(&[5, 2])).unwrap_err().to_string();
        assert_eq!(message, "inputs of shape [5, 2], means and deviations of 3 columns");
        assert!(fitted.apply(&zeros(&[3])).is_err() && fitted.undo(&zeros(&[5, 2])).is_err());
        assert!(Standardization::fit(&zeros(&[0, 3])).is_err());
        assert!(Standardization::fit(&zeros(&[3])).is_err());
    }
}
