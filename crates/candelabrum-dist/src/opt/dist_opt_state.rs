//! What is the same on all ranks of a distributed optimizer between steps.

use serde::{Deserialize, Serialize};

use super::bucket_sets::BucketSetState;

/// What later steps depend on beside the vectors of the optimizer
/// ([`DistOpt::optimizer_vectors`](super::DistOpt::optimizer_vectors)) and the states of strategies ([`DistOpt::strategy_state`](super::DistOpt::strategy_state)). It is the
/// same on all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistOptState {
    /// The number of steps that the optimizer has taken.
    pub steps: u64,
    /// The optimizer's line, by which it is recognised ([`candelabrum_optim::Optimizer::describe`]).
    pub optimizer: String,
    pub(super) rate_factor: f64,
    pub(super) loss_scale: f32,
    pub(super) good_steps: u32,
    pub(super) drift: RankDrift,
    /// Whether each rank has only its shard of the vectors of the optimizer.
    #[serde(default)]
    pub sharded: bool,
    /// The order of the gradients in buckets, which ranks learn in their first steps. The buckets of a sparse
    /// strategy depend on it.
    pub(super) layouts: Vec<BucketSetState>,
}

/// The state that differs between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RankDrift {
    Nothing,
    /// The state of the optimizer. The parameters have been averaged.
    Momentum,
    Parameters,
}

impl DistOptState {
    /// Whether the vectors of the optimizer are the same on all ranks. With partialUpdate each rank has its
    /// own.
    pub fn has_equal_vectors(&self) -> bool {
        self.drift == RankDrift::Nothing
    }
}
