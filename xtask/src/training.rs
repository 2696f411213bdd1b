//! The messages of a contender in training: `benches/step` and `scripts/bench_step.py`.

use serde::{Deserialize, Serialize};

/// The message after the warm-up.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Ready {
    /// The loss of each warm-up step. All contenders take the same steps.
    pub(crate) warm_up_losses: Vec<f64>,
    /// The version of a library that only the library itself can report.
    pub(crate) version: Option<String>,
}

/// The message about a sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) steps: usize,
    pub(crate) seconds: f64,
    /// Of all threads.
    pub(crate) cpu_seconds: f64,
    /// Of the last step. A faster contender has taken more steps by then.
    pub(crate) loss: f64,
}

/// The last message.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Done {
    pub(crate) peak_rss_mb: Option<f64>,
}
