//! What a contender in training says: `benches/step` and `scripts/bench_step.py`.

use serde::{Deserialize, Serialize};

/// What a contender says when it is warm.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Ready {
    /// The loss of each warm-up step: the same steps for everybody.
    pub(crate) warm_up_losses: Vec<f64>,
    /// Of the library, where it can only tell itself.
    pub(crate) version: Option<String>,
}

/// What it says of a sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) steps: usize,
    pub(crate) seconds: f64,
    /// Of all threads.
    pub(crate) cpu_seconds: f64,
    /// Of the last step; the faster contender is further on.
    pub(crate) loss: f64,
}

/// Its last words.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Done {
    pub(crate) peak_rss_mb: Option<f64>,
}
