//! A borrowed run of f32 numbers in any kind of memory, and the arithmetic of a training step on
//! it.
//!
//! A span has one variant per kind of memory. The variant is checked once per call, on a whole
//! parameter or bucket, so a loop over numbers has no branch on it. Apart from the optimizer's
//! formula, the methods are all operations of a step on numbers. A new kind of memory must
//! implement each of them, and the compiler names the missing ones.

use crate::chunks::{by_chunks, squares};
use crate::{Error, Result};

/// A run of f32 numbers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Span<'a> {
    /// In memory that this processor can access.
    Host(&'a [f32]),
}

/// A mutable run of f32 numbers.
#[derive(Debug)]
#[non_exhaustive]
pub enum SpanMut<'a> {
    /// In memory that this processor can access.
    Host(&'a mut [f32]),
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
        let Self::Host(values) = self;
        values.len()
    }

    /// Whether there are no numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers, if this processor can access them.
    ///
    /// # Errors
    /// [`Error::OnDevice`] for numbers in a GPU's memory.
    pub fn host(self) -> Result<&'a [f32]> {
        let Self::Host(values) = self;
        Ok(values)
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

    /// The numbers, if this processor can access them.
    ///
    /// # Errors
    /// [`Error::OnDevice`] for numbers in a GPU's memory.
    pub fn host(self) -> Result<&'a mut [f32]> {
        let Self::Host(values) = self;
        Ok(values)
    }

    /// The same numbers, read-only.
    pub fn as_span(&self) -> Span<'_> {
        let Self::Host(values) = self;
        Span::Host(values)
    }

    /// The same numbers, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> SpanMut<'_> {
        let Self::Host(values) = self;
        SpanMut::Host(values)
    }

    /// The first `at` numbers, and the rest.
    ///
    /// # Panics
    /// With an `at` above the length.
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let Self::Host(values) = self;
        let (head, tail) = values.split_at_mut(at);
        (Self::Host(head), Self::Host(tail))
    }

    /// Sets every number to `value`.
    ///
    /// # Errors
    /// A device's error.
    pub fn fill(&mut self, value: f32) -> Result<()> {
        let Self::Host(values) = self;
        values.fill(value);
        Ok(())
    }

    /// Multiplies every number by `factor`.
    ///
    /// # Errors
    /// A device's error.
    pub fn scale(&mut self, factor: f32) -> Result<()> {
        let Self::Host(values) = self;
        by_chunks(&mut **values, &|chunk: &mut [f32]| {
            chunk.iter_mut().for_each(|value| *value *= factor);
            [0.0; 2]
        });
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
        let Self::Host(values) = self;
        by_chunks(&mut **values, &|chunk: &mut [f32]| {
            chunk.iter_mut().for_each(|value| *value = value.clamp(-limit, limit));
            [0.0; 2]
        });
        Ok(())
    }

    /// Replaces the numbers by those of `from`.
    ///
    /// # Errors
    /// [`Error::Length`] if the lengths differ, and a device's error.
    pub fn copy_from(&mut self, from: Span<'_>) -> Result<()> {
        self.check_len("copy", from)?;
        let (Self::Host(to), Span::Host(from)) = (self, from);
        to.copy_from_slice(from);
        Ok(())
    }

    /// Adds the numbers of `from`.
    ///
    /// # Errors
    /// [`Error::Length`] if the lengths differ, and a device's error.
    pub fn add(&mut self, from: Span<'_>) -> Result<()> {
        self.check_len("add", from)?;
        let (Self::Host(to), Span::Host(from)) = (self, from);
        to.iter_mut().zip(from).for_each(|(sum, x)| *sum += x);
        Ok(())
    }

    fn check_len(&self, op: &'static str, from: Span<'_>) -> Result<()> {
        let (expected, got) = (self.len(), from.len());
        if expected == got { Ok(()) } else { Err(Error::Length { op, expected, got }) }
    }
}

/// The Euclidean norm of several spans together, in f64. The bits of the result depend only on the
/// spans and their order, not on the number of threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Norm {
    sum_of_squares: f64,
}

impl Norm {
    /// Adds the numbers of `values`.
    ///
    /// # Errors
    /// A device's error.
    pub fn add(&mut self, values: Span<'_>) -> Result<()> {
        let Span::Host(values) = values;
        self.sum_of_squares += by_chunks(values, &|chunk: &[f32]| [squares(chunk), 0.0])[0];
        Ok(())
    }

    /// The norm. Waits for devices.
    ///
    /// # Errors
    /// A device's error.
    pub fn get(&self) -> Result<f64> {
        Ok(self.sum_of_squares.sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        Ok(())
    }
}
