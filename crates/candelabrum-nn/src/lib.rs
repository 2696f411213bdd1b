//! Layers, parameters and the [`Model`] trait for candle.
//!
//! | idea | where |
//! |---|---|
//! | named, ordered, seeded parameters | [`Params`], [`Scope`], [`Init`] |
//! | state that is not trained | [`Buffer`] |
//! | weights in files, those of PyTorch too | [`Params::load_weights`], [`NameMap`], [`LoadReport`] |
//! | layers with inferred input sizes | [`layers`] |
//! | a model, its training step, its summary | [`Model`], [`Summary`] |
//! | a check of a model's gradients against its loss | [`check_gradients`] |
//! | fused operations with their own backward | [`ops`] |
//! | which operations of candle to replace in a training graph | [`ops`](ops#candles-operations-between-these) |
//! | the time of a step by operation, candle's included | [`ops::profile`] |
//! | how much of its batch a loss counts | [`LossWeight`], [`weighted`] |
//! | blocks that are computed again instead of kept | [`recompute`] |
//! | gradients in buckets, complete one by one | [`FlatGradients`], [`BucketPlan`] |
//!
//! The crate knows no ranks. A training step gives its loss to a [`BackwardAndUpdate`], and
//! replicas share the statistics of their batches through a [`StatisticsExchange`]. Other crates
//! implement both traits.

mod activation;
mod autograd;
mod dist_option;
mod error;
#[cfg(feature = "f64")]
mod f64_kernels;
#[cfg(not(feature = "f64"))]
#[path = "no_f64_kernels.rs"]
mod f64_kernels;
mod kernels;
mod layer_row;
mod lora;
mod model;
mod noise;
mod params;
mod statistics_exchange;
mod summary;
mod weights;

pub mod layers;
pub mod ops;
pub mod seed;

pub use activation::Activation;
pub use autograd::saved;
pub use autograd::{
    BucketPlan, BucketPool, BucketSlot, FlatGradients, LossWeight, MissingGradients, Observer,
    PassState, check_gradients, recompute, trust_gradient, weighted,
};
pub use dist_option::DistOption;
pub use error::{Error, Result};
pub use layer_row::LayerRow;
pub use lora::{LoraConfig, LoraLayers};
pub use model::{BackwardAndUpdate, FromModule, FromModuleT, Model};
pub use noise::{NoiseRecorder, RecordedNoise};
pub use params::{
    Buffer, Init, InitialValues, Param, Params, QuantizedMatrix, Recompute, Scope, ShardedValues,
    Weight, to_flat, with_span,
};
pub use statistics_exchange::StatisticsExchange;
pub use summary::Summary;
pub use weights::{LoadReport, NameMap, ShapeMismatch};
