//! What a formula may know of a parameter beside its numbers.

/// A parameter's shape, and the choices that its groups have made for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamTraits {
    /// The number of its elements.
    pub elements: usize,
    /// The number of its dimensions.
    pub dims: usize,
    /// The rows of each of its matrices: the last dimension but one. 1 for a vector.
    pub rows: usize,
    /// The columns of each of its matrices: the last dimension.
    pub columns: usize,
    /// Whether [`Muon`](crate::Muon) may update it by its own formula.
    pub muon: bool,
    /// Whether [`AdamW8bit`](crate::AdamW8bit) may keep its averages in 8 bits.
    pub state_8bit: bool,
}

impl ParamTraits {
    /// Those of a parameter of these dimensions, in no group.
    pub fn from_dims(dims: &[usize]) -> Self {
        let (rows, columns) = match dims {
            [] => (1, 1),
            [columns] => (1, *columns),
            [.., rows, columns] => (*rows, *columns),
        };
        let elements = dims.iter().product();
        Self { elements, dims: dims.len(), rows, columns, muon: true, state_8bit: true }
    }
}
