//! A row of the table of layers that [`crate::Model::compile`] makes.

/// One layer call of the dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerRow {
    /// The layer's path: `conv1`.
    pub name: String,
    /// The layer's kind and options: `Conv2d 5×5, relu`.
    pub kind: String,
    /// The shape of the output, the batch first.
    pub output: Vec<usize>,
}
