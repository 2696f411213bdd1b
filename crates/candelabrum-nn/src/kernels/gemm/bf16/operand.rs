//! Where the factors of a product lie before they are packed.

use crate::kernels::float::Float;

/// Lines of consecutive numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperandLines<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) starts: Starts<'a>,
}

/// The first number of each line.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Starts<'a> {
    /// Lines at this distance.
    Every(usize),
    /// Lines anywhere. They may overlap.
    At(&'a [usize]),
}

impl<'a> OperandLines<'a, f32> {
    /// `len` numbers of line `number`, from number `first` of it on.
    #[inline(always)]
    pub(super) fn part(&self, number: usize, first: usize, len: usize) -> &'a [f32] {
        let start = match self.starts {
            Starts::Every(distance) => number * distance,
            Starts::At(starts) => starts[number],
        };
        &self.data[start + first..][..len]
    }
}

/// A factor of a product: `width` rows of a left one or columns of a right one, and its `depth`, over which
/// the product sums.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand<'a, T> {
    /// A line for each row or column: the numbers of a line are summed over.
    Along(OperandLines<'a, T>),
    /// A line for each step of the depth, with a number for each row or column.
    Across(OperandLines<'a, T>),
}

impl<'a, T: Float> Operand<'a, T> {
    /// The factor, if its numbers are f32.
    pub(crate) fn as_f32s(self) -> Option<Operand<'a, f32>> {
        let of =
            |OperandLines { data, starts }| Some(OperandLines { data: T::f32s(data)?, starts });
        match self {
            Self::Along(lines) => of(lines).map(Operand::Along),
            Self::Across(lines) => of(lines).map(Operand::Across),
        }
    }
}

/// Numbers that a product in bf16 has as factors.
pub(crate) fn f32s<T: Float>(values: &[T]) -> &[f32] {
    T::f32s(values).expect("only products of f32 numbers are in bf16")
}

/// Numbers that a product in bf16 has as a result.
pub(crate) fn f32s_mut<T: Float>(values: &mut [T]) -> &mut [f32] {
    T::f32s_mut(values).expect("only products of f32 numbers are in bf16")
}
