//! What one layer call did, as the dry run of [`crate::Model::compile`] sees it.

/// One layer call seen in the dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerRow {
    /// The layer's path: `conv1`.
    pub name: String,
    /// What it is: `Conv2d 5×5, relu`.
    pub kind: String,
    /// The shape of what it made, the batch first.
    pub output: Vec<usize>,
}
