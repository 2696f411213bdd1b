//! Inputs with mean 0 and deviation 1 in each column.
//!
//! The numbers come from the training rows alone and are applied to all rows. If the test rows had a say
//! in them, the test would measure something that the model has seen. They belong to the model: keep
//! them with its parameters, and apply them to the inputs of a prediction.

use candle_core::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The mean and the standard deviation of each column of some inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Standardization {
    /// The means.
    pub mean: Vec<f64>,
    /// The standard deviations, with 1 in place of the 0 of a column whose numbers are all the same.
    pub std: Vec<f64>,
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
            return Err(wrong_columns(xs, columns));
        }
        let rows: Vec<Vec<f64>> = xs.to_dtype(DType::F64)?.to_vec2()?;
        let moments = (0..columns).map(|column| {
            let (mean, deviation) = mean_and_deviation(rows.iter().map(|row| row[column]));
            (mean, if deviation > 0.0 { deviation } else { 1.0 })
        });
        let (mean, std) = moments.unzip();
        Ok(Self { mean, std })
    }

    /// `(xs - mean) / std`, computed in f64, in the type and on the device of the inputs. Inputs that are
    /// integers become f32.
    ///
    /// # Shapes
    /// (N, F) -> (N, F)
    ///
    /// # Errors
    /// Another number of columns.
    pub fn apply(&self, xs: &Tensor) -> Result<Tensor> {
        let (mean, std) = self.rows(xs)?;
        let xs64 = xs.to_dtype(DType::F64)?;
        Ok(xs64.broadcast_sub(&mean)?.broadcast_div(&std)?.to_dtype(float(xs.dtype()))?)
    }

    /// The reverse of [`apply`](Self::apply): from a model's outputs to the units of the targets. Give it
    /// f64 for targets beyond the integers of f32, such as times.
    ///
    /// # Shapes
    /// (N, F) -> (N, F)
    ///
    /// # Errors
    /// Another number of columns.
    pub fn undo(&self, ys: &Tensor) -> Result<Tensor> {
        let (mean, std) = self.rows(ys)?;
        let ys64 = ys.to_dtype(DType::F64)?;
        Ok(ys64.broadcast_mul(&std)?.broadcast_add(&mean)?.to_dtype(float(ys.dtype()))?)
    }

    /// The means and the deviations as f64 on the device of `xs`.
    fn rows(&self, xs: &Tensor) -> Result<(Tensor, Tensor)> {
        let columns = self.mean.len();
        if xs.dims().len() != 2 || xs.dims()[1] != columns || self.std.len() != columns {
            return Err(wrong_columns(xs, columns));
        }
        let row = |numbers: &[f64]| Tensor::new(numbers, xs.device());
        Ok((row(&self.mean)?, row(&self.std)?))
    }
}

/// The mean and the deviation of some numbers. The deviation of numbers that are all the same is 0,
/// whatever the rounding of their mean.
pub(crate) fn mean_and_deviation(numbers: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let Some(first) = numbers.clone().next() else { return (0.0, 0.0) };
    let (sum, count) = numbers.clone().fold((0.0, 0.0), |(sum, n), x| (sum + (x - first), n + 1.0));
    let mean = first + sum / count;
    let squares: f64 = numbers.map(|x| (x - mean).powi(2)).sum();
    (mean, (squares / count).sqrt())
}

fn wrong_columns(xs: &Tensor, columns: usize) -> Error {
    let shape = xs.dims();
    Error::argument(format!("inputs of shape {shape:?}, means and deviations of {columns} columns"))
}

/// The type of the results for inputs of this type.
fn float(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::F32 }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn columns_get_mean_0_and_deviation_1_and_constant_ones_0() {
        let xs =
            Tensor::new(&[[1_f32, 7.0], [3.0, 7.0], [5.0, 7.0], [7.0, 7.0]], &Device::Cpu).unwrap();
        let fitted = Standardization::fit(&xs).unwrap();
        assert_eq!((&fitted.mean[..], fitted.std[1]), (&[4.0, 7.0][..], 1.0));
        assert!((fitted.std[0] - 5_f64.sqrt()).abs() < 1e-12);
        let rows: Vec<Vec<f32>> = fitted.apply(&xs).unwrap().to_vec2().unwrap();
        assert!(rows.iter().all(|row| row[1] == 0.0));
        assert!((rows[0][0] + 3.0 / 5_f32.sqrt()).abs() < 1e-6);
        let back: Vec<Vec<f32>> =
            fitted.undo(&fitted.apply(&xs).unwrap()).unwrap().to_vec2().unwrap();
        assert!((back[3][0] - 7.0).abs() < 1e-5 && back[3][1] == 7.0, "{back:?}");
        let again: Standardization =
            serde_json::from_str(&serde_json::to_string(&fitted).unwrap()).unwrap();
        assert_eq!(again, fitted);
        // Numbers that are all the same have the deviation 0, although their sum is rounded.
        let tenths = Tensor::full(0.1_f64, (10, 1), &Device::Cpu).unwrap();
        let fitted = Standardization::fit(&tenths).unwrap();
        assert_eq!((fitted.mean[0], fitted.std[0]), (0.1, 1.0));
    }

    #[test]
    fn large_numbers_that_differ_little_and_integers_are_standardized_too() {
        let times = Tensor::new(&[[1_600_000_001_i64], [1_600_000_003]], &Device::Cpu).unwrap();
        let fitted = Standardization::fit(&times).unwrap();
        assert_eq!((fitted.mean[0], fitted.std[0]), (1_600_000_002.0, 1.0));
        let rows: Vec<Vec<f32>> = fitted.apply(&times).unwrap().to_vec2().unwrap();
        assert_eq!(rows, [[-1.0], [1.0]]);
        let back = fitted.undo(&Tensor::new(&[[-1_f64]], &Device::Cpu).unwrap()).unwrap();
        assert_eq!(back.to_vec2::<f64>().unwrap(), [[1_600_000_001.0]]);
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
