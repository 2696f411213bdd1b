//! The sums that the gradient of a normalised channel needs.

/// The sums over the whole batch in the gradient of the input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    /// The number of values of a channel.
    pub(super) count: f64,
    /// The gradients of weight and bias.
    pub(super) dw: f64,
    pub(super) db: f64,
}
