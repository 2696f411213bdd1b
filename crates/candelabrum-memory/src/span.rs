//! A borrowed run of f32 numbers in any kind of memory, and the arithmetic of a training step on
//! it.
//!
//! A span has one variant per kind of memory. The variant is checked once per call, on a whole
//! parameter or bucket, so a loop over numbers has no branch on it. Apart from the optimizer's
//! formula, the methods are all operations of a step on numbers. A new kind of memory must
//! implement each of them, and the compiler names the missing ones.

use std::ops::Range;

use crate::chunks::{by_chunks, of_each_chunk, squares, total};
use crate::cuda::{CudaNorm, CudaSpan, CudaSpanMut};
use crate::error::{check_len, kernel_on_host};
use crate::{Error, Result};

/// A run of f32 numbers.
#[derive(Clone, Copy, Debug)]
pub enum Span<'a> {
    /// In memory that this processor can access.
    Host(&'a [f32]),
    /// In the memory of a GPU.
    Cuda(CudaSpan<'a>),
}

/// A mutable run of f32 numbers.
#[derive(Debug)]
pub enum SpanMut<'a> {
    /// In memory that this processor can access.
    Host(&'a mut [f32]),
    /// In the memory of a GPU.
    Cuda(CudaSpanMut<'a>),
}

impl<'a, T: AsRef<[f32]> + ?Sized> From<&'a T> for Span<'a> {
    fn from(values: &'a T) -> Self {
        Self::Host(values.as_ref())
    }
}

impl<'a, T: AsMut<[f32]> + ?Sized> From<&'a mut T> for SpanMut<'a> {
    fn from(values: &'a mut T) -> Self {
        Self::Host(values.as_mut())
    }
}

impl<'a> Span<'a> {
    /// The number of numbers.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Cuda(values) => values.len(),
        }
    }

    /// Whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Some of the numbers.
    ///
    /// # Panics
    /// If the range is not inside.
    #[must_use]
    pub fn range(self, range: Range<usize>) -> Self {
        match self {
            Self::Host(values) => Self::Host(&values[range]),
            Self::Cuda(values) => Self::Cuda(values.range(range)),
        }
    }

    /// The numbers, if this processor can access them.
    ///
    /// # Errors
    /// [`Error::OnDevice`] for numbers in a GPU's memory.
    pub fn host(self) -> Result<&'a [f32]> {
        match self {
            Self::Host(values) => Ok(values),
            Self::Cuda(_) => Err(Error::OnDevice),
        }
    }

    /// The numbers, if they are on a GPU.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for numbers in host memory.
    pub fn cuda(self) -> Result<CudaSpan<'a>> {
        match self {
            Self::Cuda(values) => Ok(values),
            Self::Host(_) => Err(kernel_on_host()),
        }
    }

    /// Copies the numbers to the host. Waits for a device.
    ///
    /// # Errors
    /// [`Error::Length`] if the lengths differ, and a device's error.
    pub fn copy_to_slice(self, to: &mut [f32]) -> Result<()> {
        check_len("copy_to_slice", to.len(), self.len())?;
        match self {
            Self::Host(values) => to.copy_from_slice(values),
            Self::Cuda(values) => values.download(to)?,
        }
        Ok(())
    }
}

impl<'a> SpanMut<'a> {
    /// The number of numbers.
    pub fn len(&self) -> usize {
        self.as_span().len()
    }

    /// Whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Some of the numbers.
    ///
    /// # Panics
    /// If the range is not inside.
    #[must_use]
    pub fn range(self, range: Range<usize>) -> Self {
        match self {
            Self::Host(values) => Self::Host(&mut values[range]),
            Self::Cuda(values) => Self::Cuda(values.range(range)),
        }
    }

    /// The numbers, if this processor can access them.
    ///
    /// # Errors
    /// [`Error::OnDevice`] for numbers in a GPU's memory.
    pub fn host(self) -> Result<&'a mut [f32]> {
        match self {
            Self::Host(values) => Ok(values),
            Self::Cuda(_) => Err(Error::OnDevice),
        }
    }

    /// The numbers, if they are on a GPU.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for numbers in host memory.
    pub fn cuda(self) -> Result<CudaSpanMut<'a>> {
        match self {
            Self::Cuda(values) => Ok(values),
            Self::Host(_) => Err(kernel_on_host()),
        }
    }

    /// The same numbers, read-only.
    pub fn as_span(&self) -> Span<'_> {
        match self {
            Self::Host(values) => Span::Host(values),
            Self::Cuda(values) => Span::Cuda(values.as_span()),
        }
    }

    /// The same numbers, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> SpanMut<'_> {
        match self {
            Self::Host(values) => SpanMut::Host(values),
            Self::Cuda(values) => SpanMut::Cuda(values.reborrow()),
        }
    }

    /// The first `at` numbers, and the rest.
    ///
    /// # Panics
    /// With an `at` above the length.
    pub fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            Self::Host(values) => {
                let (head, tail) = values.split_at_mut(at);
                (Self::Host(head), Self::Host(tail))
            }
            Self::Cuda(values) => {
                let (head, tail) = values.split_at(at);
                (Self::Cuda(head), Self::Cuda(tail))
            }
        }
    }

    /// Sets every number to `value`.
    ///
    /// # Errors
    /// A device's error.
    pub fn fill(&mut self, value: f32) -> Result<()> {
        match self {
            Self::Host(values) => values.fill(value),
            Self::Cuda(values) => values.fill(value)?,
        }
        Ok(())
    }

    /// Multiplies every number by `factor`.
    ///
    /// # Errors
    /// A device's error.
    pub fn scale(&mut self, factor: f32) -> Result<()> {
        match self {
            Self::Host(values) => {
                by_chunks(
                    &mut **values,
                    #[inline(always)]
                    |chunk: &mut [f32]| {
                        chunk.iter_mut().for_each(|value| *value *= factor);
                        [0.0; 2]
                    },
                );
            }
            Self::Cuda(values) => values.scale(factor)?,
        }
        Ok(())
    }

    /// Limits every number to at most `limit` in magnitude. NaN stays NaN.
    ///
    /// # Errors
    /// A device's error.
    ///
    /// # Panics
    /// If the limit is negative or NaN.
    pub fn clamp(&mut self, limit: f32) -> Result<()> {
        assert!(limit >= 0.0, "a limit of {limit}");
        match self {
            Self::Host(values) => {
                by_chunks(
                    &mut **values,
                    #[inline(always)]
                    |chunk: &mut [f32]| {
                        chunk.iter_mut().for_each(|value| *value = value.clamp(-limit, limit));
                        [0.0; 2]
                    },
                );
            }
            Self::Cuda(values) => values.clamp(limit)?,
        }
        Ok(())
    }

    /// Replaces the numbers by those of `from`, in memory of any kind. A copy between the host and a
    /// device waits for the device.
    ///
    /// # Errors
    /// [`Error::Length`] if the lengths differ, and a device's error.
    pub fn copy_from(&mut self, from: Span<'_>) -> Result<()> {
        check_len("copy", self.len(), from.len())?;
        match (self, from) {
            (Self::Host(to), from) => from.copy_to_slice(to)?,
            (Self::Cuda(to), Span::Cuda(from)) => to.copy_from(from)?,
            (Self::Cuda(to), Span::Host(from)) => to.upload(from)?,
        }
        Ok(())
    }

    /// Adds the numbers of `from`, which are in the same kind of memory.
    ///
    /// # Errors
    /// [`Error::Length`] if the lengths differ, [`Error::OnDevice`] if the kinds of memory do, and
    /// a device's error.
    pub fn add(&mut self, from: Span<'_>) -> Result<()> {
        check_len("add", self.len(), from.len())?;
        match (self, from) {
            (Self::Host(to), Span::Host(from)) => {
                to.iter_mut().zip(from).for_each(|(sum, x)| *sum += x);
            }
            (Self::Cuda(to), Span::Cuda(from)) => to.add(from)?,
            (Self::Host(_), Span::Cuda(_)) | (Self::Cuda(_), Span::Host(_)) => {
                return Err(Error::OnDevice);
            }
        }
        Ok(())
    }

    /// Replaces the first number by NaN if one of `others` is not finite. Does not wait for a
    /// device.
    ///
    /// # Errors
    /// [`Error::OnDevice`] if the kinds of memory differ, and a device's error.
    pub fn poison_unless_finite(&mut self, others: Span<'_>) -> Result<()> {
        match (self, others) {
            (Self::Host(values), Span::Host(others)) => {
                if let Some(first) = values.first_mut()
                    && !others.iter().all(|other| other.is_finite())
                {
                    *first = f32::NAN;
                }
            }
            (Self::Cuda(values), Span::Cuda(others)) => values.poison_unless_finite(others)?,
            (Self::Host(_), Span::Cuda(_)) | (Self::Cuda(_), Span::Host(_)) => {
                return Err(Error::OnDevice);
            }
        }
        Ok(())
    }
}

/// The Euclidean norm of several spans together, in f64. The bits of the result depend only on the
/// spans and their order, not on the number of threads.
#[derive(Debug, Default)]
pub struct Norm {
    on_host: f64,
    on_device: Option<CudaNorm>,
}

impl Norm {
    /// Adds the numbers of `values`.
    ///
    /// # Errors
    /// A device's error.
    pub fn add(&mut self, values: Span<'_>) -> Result<()> {
        match values {
            Span::Host(values) => {
                self.on_host += by_chunks(
                    values,
                    #[inline(always)]
                    |chunk: &[f32]| [squares(chunk), 0.0],
                )[0];
                Ok(())
            }
            Span::Cuda(values) => {
                let norm = match &mut self.on_device {
                    Some(norm) => norm,
                    none => none.insert(CudaNorm::new(values)?),
                };
                norm.add(values)
            }
        }
    }

    /// Adds a vector of which only the sums of squares of its chunks are known, as [`square_sums`] has them.
    pub fn add_square_sums(&mut self, sums: &[f64]) {
        let pairs: Vec<[f64; 2]> = sums.iter().map(|&sum| [sum, 0.0]).collect();
        self.on_host += total(&pairs)[0];
    }

    /// The sum of the squares. Waits for devices.
    ///
    /// # Errors
    /// A device's error.
    pub fn sum_of_squares(&self) -> Result<f64> {
        let on_device = self.on_device.as_ref().map_or(Ok(0.0), CudaNorm::sum_of_squares)?;
        Ok(self.on_host + on_device)
    }

    /// The norm. Waits for devices.
    ///
    /// # Errors
    /// A device's error.
    pub fn get(&self) -> Result<f64> {
        Ok(self.sum_of_squares()?.sqrt())
    }
}

/// The sum of squares of each chunk of `values` ([`crate::chunks`]), for [`Norm::add_square_sums`].
pub fn square_sums(values: &[f32]) -> Vec<f64> {
    let sums = of_each_chunk(
        values,
        #[inline(always)]
        |chunk: &[f32]| [squares(chunk), 0.0],
    );
    sums.into_iter().map(|[sum, _]| sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::CHUNK;

    #[test]
    fn a_norm_of_chunks_has_the_bits_of_the_norm_of_the_whole() -> Result<()> {
        for len in [0, 1, CHUNK, 3 * CHUNK + 5] {
            let values: Vec<f32> = (0..len).map(|i| (i as f32 * 0.37).sin()).collect();
            let (mut whole, mut parts) = (Norm::default(), Norm::default());
            whole.add(Span::Host(&values))?;
            let (first, second) = values.split_at(CHUNK.min(len));
            let mut sums = square_sums(first);
            sums.extend(square_sums(second));
            sums.truncate(len.div_ceil(CHUNK));
            parts.add_square_sums(&sums);
            assert_eq!(whole.get()?.to_bits(), parts.get()?.to_bits(), "{len}");
        }
        Ok(())
    }

    #[test]
    fn a_span_is_changed_as_its_slice_would_be() -> Result<()> {
        let mut values = [1.0_f32, -4.0, f32::NAN];
        let mut span = SpanMut::from(&mut values);
        span.clamp(3.0)?;
        span.scale(2.0)?;
        span.add(Span::from(&[1.0_f32, 1.0, 1.0]))?;
        assert_eq!(values[..2], [3.0, -5.0]);
        assert!(values[2].is_nan());
        let mut span = SpanMut::from(&mut values);
        span.copy_from(Span::from(&[7.0_f32, 8.0, 9.0]))?;
        assert!(span.copy_from(Span::from(&[1.0_f32])).is_err());
        assert_eq!(span.reborrow().host()?, [7.0, 8.0, 9.0]);
        span.fill(0.0)?;
        assert_eq!((span.len(), span.as_span().host()?), (3, &[0.0; 3][..]));
        assert!(span.as_span().cuda().is_err() && span.reborrow().cuda().is_err());
        Ok(())
    }
}
