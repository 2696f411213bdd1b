//! Numbers in the caller's memory that a collective replaces.

use std::fmt;

use candelabrum_memory::{Element, ElementType};

use super::{Collective, Payload};
use crate::{Error, Result};

/// Numbers of one type in the caller's memory.
pub struct BorrowedElements<'a> {
    element: ElementType,
    bytes: &'a mut [u8],
}

impl<'a, T: Element> From<&'a mut [T]> for BorrowedElements<'a> {
    fn from(values: &'a mut [T]) -> Self {
        Self { element: T::TYPE, bytes: bytemuck::cast_slice_mut(values) }
    }
}

impl BorrowedElements<'_> {
    /// The type of the numbers.
    pub fn element_type(&self) -> ElementType {
        self.element
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.element.size()
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The numbers' bytes, in this machine's order, aligned for the numbers.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// Gives `run` a copy of the numbers and replaces the numbers by its result. `op` is for the
    /// error message.
    pub(super) fn by_copy(
        &mut self,
        op: Collective,
        run: impl FnOnce(Payload) -> Result<Payload>,
    ) -> Result<()> {
        let mut payload = Payload::zeros(self.element, self.len());
        payload.bytes_mut().copy_from_slice(self.bytes);
        let result = run(payload)?;
        result.check_on_host()?;
        if result.element_type() != self.element {
            return Err(Error::element_type(result.element_type(), self.element));
        }
        if result.len() != self.len() {
            let (expected, got) = (result.len(), self.len());
            return Err(Error::Length { op: op.name(), expected, got });
        }
        self.bytes.copy_from_slice(result.bytes());
        Ok(())
    }
}

impl fmt::Debug for BorrowedElements<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Borrowed({} × {})", self.len(), self.element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReduceOp;

    #[test]
    fn a_result_of_another_type_or_length_is_refused_by_its_cause() {
        let (op, mut values) = (Collective::AllReduce(ReduceOp::Sum), [1.0_f32, 2.0]);
        let mut answer =
            |result: Payload| BorrowedElements::from(&mut values[..]).by_copy(op, |_| Ok(result));
        let error = answer(Payload::from_slice(&[3_i32, 4])).unwrap_err();
        assert!(matches!(error, Error::Memory(_)), "{error}");
        let error = answer(Payload::from_slice(&[3.0_f32])).unwrap_err();
        assert!(matches!(error, Error::Length { expected: 1, got: 2, .. }), "{error}");
        assert!(answer(Payload::from_slice(&[3.0_f32, 4.0])).is_ok());
        assert_eq!(values, [3.0, 4.0]);
    }
}
