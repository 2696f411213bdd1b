//! What becomes of the sums of a tile.

/// `out = scale sums`, or `out += scale sums` if `add`.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Finish {
    pub(in crate::ops) scale: f32,
    pub(in crate::ops) add: bool,
}
