//! Optimizers over flat parameters, updated in place.
//!
//! An [`Optimizer`] uses only numbers: spans of values and of gradients, by the parameter's index.
//! It knows neither tensors nor ranks, so the same code serves one process, gradient buckets that
//! arrive one by one, and tests against PyTorch.
//!
//! | what | where |
//! |---|---|
//! | formulas | [`Sgd`], [`Adam`], [`AdamW`], [`RmsProp`], [`AdaGrad`], [`Lamb`], [`Lars`], [`Muon`], [`Adafactor`], [`AdamW8bit`] |
//! | learning rates | [`Schedule`], [`OneCycle`] |
//! | other settings for some parameters | [`ParamGroup`] |
//! | clipping | [`Clip`] |
//! | state in bf16 | [`RuleOptimizer::bf16_state`] |
//! | settings as data | [`Recipe`] |
//! | the common part of all optimizers, for your own rule | [`RuleOptimizer`], [`UpdateRule`] |
//!
//! ```
//! use candelabrum_optim::{Adam, ParamGroup, Optimizer, ParamInfo, Schedule};
//!
//! let rate = Schedule::Cosine { lr: 1e-3, steps: 900, min: 0.0 }.warm_up(100, 0.1);
//! let mut adam = Adam::new(rate)
//!     .weight_decay(1e-2)
//!     .group(ParamGroup::matching("*.bias").weight_decay(0.0).lr_scale(2.0));
//! adam.bind(&[
//!     ParamInfo::on_host("fc.weight", &[2, 2]),
//!     ParamInfo::on_host("fc.bias", &[2]),
//! ])?;
//! let (mut weight, mut bias) = ([0.5, -0.5, 0.25, 1.0], [0.0, 0.0]);
//! adam.update(0, (&mut weight).into(), (&[0.1, 0.2, -0.1, 0.0]).into())?;
//! adam.update(1, (&mut bias).into(), (&[1.0, -1.0]).into())?;
//! adam.step();
//! assert!(bias[0] < 0.0 && bias[1] > 0.0);
//! # Ok::<(), candelabrum_optim::Error>(())
//! ```

#![forbid(unsafe_code)]

#[macro_use]
mod builder;

mod ada_grad;
mod adafactor;
mod adam;
mod adamw_8bit;
mod average;
mod bf16_state;
mod clip;
mod dynamic_code;
mod error;
mod lamb;
mod lars;
mod matmul;
mod muon;
mod one_cycle;
mod optimizer;
mod param_group;
mod param_traits;
mod parts;
mod recipe;
mod rms_prop;
mod rule;
mod rule_optimizer;
mod schedule;
mod sgd;

pub use ada_grad::{AdaGrad, AdaGradRule};
pub use adafactor::{Adafactor, AdafactorRule};
pub use adam::{Adam, AdamRule, AdamW};
pub use adamw_8bit::{AdamW8bit, AdamW8bitRule};
pub use clip::{Clip, clip};
pub use error::{AllowedRange, Error, Result};
pub use lamb::{Lamb, LambRule};
pub use lars::{Lars, LarsRule};
pub use muon::{Muon, MuonRule, MuonScale};
pub use one_cycle::{Anneal, OneCycle};
pub use optimizer::{Optimizer, ParamInfo, Update};
pub use param_group::ParamGroup;
pub use param_traits::ParamTraits;
pub use parts::{MAX_STATES, ParamParts};
pub use recipe::{Recipe, RecipeSettings};
pub use rms_prop::{RmsProp, RmsPropRule};
pub use rule::{StepSettings, UpdateRule};
pub use rule_optimizer::RuleOptimizer;
pub use schedule::Schedule;
pub use sgd::{Sgd, SgdRule};
