//! Conversion of f32 numbers to a 16-bit type for sending, and back.

use half::{bf16, f16};

use crate::error::check_len;
use crate::{ElementType, Error, FlatTensor, Half, Result, Span, SpanMut};

/// The number of elements converted at a time, which stay in the first-level cache.
const BLOCK: usize = 1024;

impl FlatTensor {
    /// Replaces the numbers of this buffer, which are fp16 or bf16, by `values / divisor`: divided
    /// in f32, then rounded to nearest, ties to even. A quotient that is too large becomes
    /// infinite.
    ///
    /// # Errors
    /// [`Error::Length`] if the lengths differ, [`Error::ElementType`] for numbers of another type,
    /// and a device's error.
    pub fn narrow_from(&mut self, values: Span<'_>, divisor: f32) -> Result<()> {
        let element = self.check_half("narrow", values.len())?;
        match values {
            Span::Host(values) if element == ElementType::F16 => {
                narrow(values, divisor, self.as_mut_slice::<f16>()?);
            }
            Span::Host(values) => narrow(values, divisor, self.as_mut_slice::<bf16>()?),
            Span::Cuda(values) => {
                let to = self.cuda_memory_mut().ok_or(Error::OnDevice)?;
                values.narrow(divisor, element, to)?;
            }
        }
        Ok(())
    }

    /// Writes the numbers of this buffer, which are fp16 or bf16, to `values`, exactly.
    ///
    /// # Errors
    /// Those of [`Self::narrow_from`].
    pub fn widen_into(&self, values: SpanMut<'_>) -> Result<()> {
        let element = self.check_half("widen", values.len())?;
        match values {
            SpanMut::Host(values) if element == ElementType::F16 => {
                Half::widen(self.as_slice::<f16>()?, values);
            }
            SpanMut::Host(values) => Half::widen(self.as_slice::<bf16>()?, values),
            SpanMut::Cuda(mut values) => {
                values.widen(element, self.cuda_memory().ok_or(Error::OnDevice)?)?;
            }
        }
        Ok(())
    }

    /// The type of the `len` numbers, which is fp16 or bf16.
    fn check_half(&self, op: &'static str, len: usize) -> Result<ElementType> {
        check_len(op, self.len(), len)?;
        match self.element_type() {
            half @ (ElementType::F16 | ElementType::Bf16) => Ok(half),
            expected => Err(Error::ElementType { expected, got: ElementType::F16 }),
        }
    }
}

fn narrow<T: Half>(values: &[f32], divisor: f32, wire: &mut [T]) {
    let mut quotients = [0.0; BLOCK];
    for (values, wire) in values.chunks(BLOCK).zip(wire.chunks_mut(BLOCK)) {
        let quotients = &mut quotients[..values.len()];
        for (quotient, value) in quotients.iter_mut().zip(values) {
            *quotient = value / divisor;
        }
        T::narrow(quotients, wire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_divided_before_they_are_rounded() -> Result<()> {
        let values: Vec<f32> = (0..2500).map(|i| i as f32 * 65.5).collect();
        let mut wire = FlatTensor::zeros(ElementType::F16, values.len());
        wire.narrow_from(Span::from(&values), 4.0)?;
        let mut back = vec![0.0_f32; values.len()];
        wire.widen_into(SpanMut::from(&mut back))?;
        for (value, back) in values.iter().zip(&back) {
            assert_eq!(*back, f16::from_f32(value / 4.0).to_f32());
        }
        assert!(wire.narrow_from(Span::from(&values[1..]), 4.0).is_err());
        let mut whole = FlatTensor::zeros(ElementType::F32, values.len());
        assert!(whole.narrow_from(Span::from(&values), 1.0).is_err());
        Ok(())
    }
}
