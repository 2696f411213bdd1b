//! What becomes of the sums of a tile.

/// `out = scale sums`, or `out += scale sums` if `add`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Finish {
    pub(crate) scale: f32,
    pub(crate) add: bool,
}
