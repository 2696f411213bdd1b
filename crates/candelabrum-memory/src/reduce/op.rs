//! The operations of reductions.

/// The function that combines the values of several ranks. The variants are in the order of their numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// The sum, added in rank order. Integers wrap.
    Sum,
    /// The sum divided by the number of ranks. For floats only.
    Mean,
    /// The smallest value. If one value is NaN, the result is NaN.
    Min,
    /// The largest value. If one value is NaN, the result is NaN.
    Max,
    /// The product, multiplied in rank order. Integers wrap.
    Product,
}

impl ReduceOp {
    /// All operations, by number.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Mean, Self::Min, Self::Max, Self::Product];

    /// The operation's name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::Product => "product",
        }
    }

    /// The operation's number on the wire.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The operation with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}
