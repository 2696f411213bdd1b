//! Comparison of tensors that names the worst element.

use candle_core::{DType, Tensor};

/// Panics unless `|actual - expected| <= atol + rtol * |expected|` for every element.
///
/// NaN equals NaN, and infinities equal themselves. The dtypes may differ.
///
/// # Panics
///
/// If the shapes differ, or with the worst element, its index and both values.
#[track_caller]
pub fn assert_close(actual: &Tensor, expected: &Tensor, rtol: f64, atol: f64) {
    assert_eq!(actual.dims(), expected.dims(), "shapes differ (actual, expected)");
    let (a, b) = (values(actual), values(expected));
    // The excess of each difference over the tolerance: infinite for NaN against a number.
    let excess = |(&a, &b): (&f64, &f64)| {
        if a == b || (a.is_nan() && b.is_nan()) {
            return f64::NEG_INFINITY;
        }
        let excess = (a - b).abs() - (atol + rtol * b.abs());
        if excess.is_nan() { f64::INFINITY } else { excess }
    };
    let excesses: Vec<f64> = a.iter().zip(&b).map(excess).collect();
    let failed = excesses.iter().filter(|excess| **excess > 0.0).count();
    let Some((worst, _)) = excesses.iter().enumerate().max_by(|x, y| x.1.total_cmp(y.1)) else {
        return;
    };
    assert!(
        failed == 0,
        "{failed} of {} elements differ by more than {atol:e} + {rtol:e} * |expected|; the worst, \
         at {:?}: actual {}, expected {}, difference {:e}",
        a.len(),
        position(worst, actual.dims()),
        a[worst],
        b[worst],
        (a[worst] - b[worst]).abs()
    );
}

/// The elements in row-major order.
pub(crate) fn values(tensor: &Tensor) -> Vec<f64> {
    tensor
        .to_dtype(DType::F64)
        .and_then(|tensor| tensor.flatten_all()?.to_vec1())
        .expect("any tensor can be read as f64")
}

/// The index, dimension by dimension, of the element with this number in row-major order.
pub(crate) fn position(mut element: usize, dims: &[usize]) -> Vec<usize> {
    let mut position: Vec<usize> = dims
        .iter()
        .rev()
        .map(|dim| {
            let index = element % dim;
            element /= dim;
            index
        })
        .collect();
    position.reverse();
    position
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use candle_core::{Device, Result};

    use super::*;

    fn message(actual: &[f64], expected: &[f64]) -> Result<String> {
        let actual = Tensor::new(actual, &Device::Cpu)?.reshape((2, ()))?;
        let expected = Tensor::new(expected, &Device::Cpu)?.reshape((2, ()))?;
        let outcome = catch_unwind(AssertUnwindSafe(|| assert_close(&actual, &expected, 0.0, 0.1)));
        let panic = outcome.expect_err("the comparison must fail");
        Ok(*panic.downcast::<String>().expect("a formatted message"))
    }

    #[test]
    fn the_worst_element_is_named() -> Result<()> {
        let message = message(&[1.0, 2.0, 3.0, 4.0], &[1.0, 2.2, 3.0, 5.0])?;
        assert!(message.starts_with("2 of 4 elements"), "{message}");
        assert!(message.contains("at [1, 1]: actual 4, expected 5"), "{message}");
        Ok(())
    }

    #[test]
    fn nan_against_a_number_is_the_worst() -> Result<()> {
        let message = message(&[f64::NAN, 2.0, 3.0, 4.0], &[1.0, 2.0, 3.0, 9.0])?;
        assert!(message.contains("at [0, 0]: actual NaN, expected 1"), "{message}");
        Ok(())
    }

    #[test]
    fn equal_nans_and_infinities_are_close() -> Result<()> {
        let tensor = Tensor::new(&[f64::NAN, f64::INFINITY, 0.0], &Device::Cpu)?;
        assert_close(&tensor, &tensor, 0.0, 0.0);
        Ok(())
    }
}
