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
//! | gradients in buckets, complete one by one | [`FlatGradients`], [`BucketPlan`] |
//!
//! The crate knows no ranks. A training step gives its loss to a [`BackwardAndUpdate`], and
//! replicas share the statistics of their batches through a [`StatisticsExchange`]. Other crates
//! implement both traits.

mod activation;
mod arrival;
mod bucket_plan;
mod buffers;
mod check_gradients;
mod dist_option;
mod error;
mod freeze;
mod gradients;
mod hooks;
mod init;
mod layer_row;
mod loss_weight;
mod master;
mod missing;
mod model;
mod noise;
mod params;
mod pass;
mod statistics_exchange;
mod summary;
mod tensors;
mod together;
mod var_builder;
mod weights;
mod wrong_gradients;

pub mod layers;
pub mod ops;
pub mod seed;

pub use activation::Activation;
pub use bucket_plan::{BucketPlan, BucketSlot};
pub use buffers::Buffer;
pub use check_gradients::check_gradients;
pub use dist_option::DistOption;
pub use error::{Error, Result};
pub use gradients::{FlatGradients, Observer, PassState};
pub use init::Init;
pub use layer_row::LayerRow;
pub use loss_weight::{LossWeight, weighted};
pub use missing::MissingGradients;
pub use model::{BackwardAndUpdate, FromModule, FromModuleT, Model};
pub use noise::{Noise, NoiseRecorder};
pub use params::{Param, Params, Scope};
pub use statistics_exchange::StatisticsExchange;
pub use summary::Summary;
pub use tensors::{to_flat, with_span};
pub use weights::{LoadReport, NameMap, Unfit};
pub use wrong_gradients::trust_gradient;
