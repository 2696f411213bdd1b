//! The options of a batch normalisation.

use crate::{Activation, Buffer};

/// The name in errors.
pub(super) const NAME: &str = "batch_norm2d";

/// The mean and the variance of every channel (C) over past batches.
#[derive(Clone, Debug)]
pub struct RunningStatistics {
    /// Starts at 0.
    pub mean: Buffer,
    /// The unbiased variance. Starts at 1.
    pub variance: Buffer,
}

/// The options of a batch normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormConfig {
    /// Whether to normalise by the statistics of the batch instead of the running statistics.
    pub training: bool,
    /// The weight of a new batch in the running statistics.
    pub momentum: f64,
    /// Added to the variance.
    pub eps: f64,
    /// Applied to the result.
    pub activation: Option<Activation>,
}

/// PyTorch's defaults: training, momentum 0.1, eps 1e-5, no activation.
impl Default for BatchNormConfig {
    fn default() -> Self {
        Self { training: true, momentum: 0.1, eps: 1e-5, activation: None }
    }
}
