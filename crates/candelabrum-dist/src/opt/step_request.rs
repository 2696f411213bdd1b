//! The request of a step.

use candelabrum_nn::DistOption;

use crate::bucketing::BucketSizing;
use crate::strategy::StrategyConfig;

/// The arguments and settings of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StepRequest {
    pub(super) option: DistOption,
    pub(super) config: StrategyConfig,
    pub(super) spars: f32,
    pub(super) sizing: BucketSizing,
    /// The numbers of the parameters that were frozen after the first step.
    pub(super) frozen: Vec<usize>,
}
