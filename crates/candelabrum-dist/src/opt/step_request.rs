//! The request of a step.

use candelabrum_nn::DistOption;
use serde::{Deserialize, Serialize};

use crate::bucketing::BucketSizing;
use crate::strategy::StrategyConfig;

/// The arguments and settings of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StepRequest {
    #[serde(with = "option_by_name")]
    pub(super) option: DistOption,
    pub(super) config: StrategyConfig,
    // Workers agree on a number that is none, too, and refuse it.
    #[serde(with = "bits")]
    pub(super) spars: f32,
    pub(super) sizing: BucketSizing,
    /// The numbers of the parameters that were frozen after the first step.
    pub(super) frozen: Vec<usize>,
}

mod option_by_name {
    use candelabrum_nn::DistOption;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    pub(super) fn serialize<S: Serializer>(option: &DistOption, to: S) -> Result<S::Ok, S::Error> {
        option.to_string().serialize(to)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<DistOption, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &f32, to: S) -> Result<S::Ok, S::Error> {
        number.to_bits().serialize(to)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<f32, D::Error> {
        Ok(f32::from_bits(u32::deserialize(from)?))
    }
}
