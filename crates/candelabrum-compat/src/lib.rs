//! `candle-nn` whose layers can all be trained.
//!
//! This package takes the place of `candle-nn` in a manifest, and a model that is written for candle trains without a
//! changed line:
//!
//! ```toml
//! [dependencies]
//! candle-nn = { package = "candelabrum-compat", path = "CHECKOUT/crates/candelabrum-compat" }
//! ```
//!
//! It exports everything of `candle-nn`. The modules below have other layers and functions in the place of those
//! without a backward pass, and of some slow ones, with the same names, arguments and parameters. The layers of
//! `candle-nn` itself, `VarBuilder` and `VarMap` for instance, are the same types as there.
//!
//! | module | with other kernels |
//! |---|---|
//! | [`layer_norm`](mod@layer_norm) | `LayerNorm`, `RmsNorm` |
//! | [`ops`] | `layer_norm`, `rms_norm`, `softmax_last_dim`, `softmax`, `log_softmax`, `silu`, `sigmoid` |
//! | [`rotary_emb`] | `rope`, `rope_i`, `rope_thd` |
//! | [`linear`](mod@linear), [`embedding`](mod@embedding), [`conv`], [`group_norm`](mod@group_norm) | `Linear`, `Embedding`, `Conv1d`, `Conv2d`, `GroupNorm` |
//! | [`loss`] | `cross_entropy`, `binary_cross_entropy_with_logit` |
//! | [`attention`], [`ops::sdpa`] | candle's, which refuse inputs whose gradients are computed: they have no backward pass |
//!
//! `kv_cache` and `moe` are candle's, for the generation of text. Nothing that goes through them has gradients; a step
//! of a `candelabrum` optimizer says so, a loop with an optimizer of candle does not.

#![forbid(unsafe_code)]
#![expect(clippy::needless_pass_by_value, reason = "the signatures are candle's")]
#![expect(
    clippy::disallowed_methods,
    reason = "their results get the backward pass that they lack"
)]

pub mod attention;
pub mod conv;
pub mod cpu_flash_attention;
pub mod embedding;
mod given_backward;
pub mod group_norm;
pub mod layer_norm;
pub mod linear;
pub mod loss;
pub mod ops;
pub mod rotary_emb;

pub use candle_nn::*;

pub use conv::{Conv1d, Conv2d, conv1d, conv1d_no_bias, conv2d, conv2d_no_bias};
pub use embedding::{Embedding, embedding};
pub use group_norm::{GroupNorm, group_norm};
pub use layer_norm::{LayerNorm, RmsNorm, layer_norm, layer_norm_no_bias, rms_norm};
pub use linear::{Linear, linear, linear_b, linear_no_bias};
