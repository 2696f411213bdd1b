//! Where the factors of a product lie before they are packed.

/// Lines of consecutive numbers.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Lines<'a> {
    pub(in crate::ops) data: &'a [f32],
    pub(in crate::ops) starts: Starts<'a>,
}

/// The first number of each line.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) enum Starts<'a> {
    /// Lines at this distance.
    Every(usize),
    /// Lines anywhere. They may overlap.
    At(&'a [usize]),
}

impl<'a> Lines<'a> {
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
pub(in crate::ops) enum Operand<'a> {
    /// A line for each row or column: the numbers of a line are summed over.
    Along(Lines<'a>),
    /// A line for each step of the depth, with a number for each row or column.
    Across(Lines<'a>),
}
