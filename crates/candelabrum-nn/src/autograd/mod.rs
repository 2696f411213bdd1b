//! The backward pass: fused operations in candle's graph, and where their gradients go.
//!
//! | idea | file |
//! |---|---|
//! | an operation with a backward of its own, in candle's graph | `fused/` |
//! | views of a result, whose gradients are written to their places | `view.rs` |
//! | the pass of a thread, by which an operation finds the memory for gradients | `pass.rs` |
//! | reports of complete gradients in the middle of a pass | `hooks.rs` |
//! | what all of this relies on in candle's pass, tried in each process | `candle_pass.rs` |
//! | gradients in buckets | `gradients.rs`, `bucket_plan.rs` |
//! | blocks that are computed again in the pass | `fused/recompute.rs`, `recomputing.rs` |
//! | how much of its batch a loss counts | `loss_weight.rs` |
//! | what can be wrong with gradients | `missing.rs`, `wrong_gradients.rs`, `check_gradients.rs` |
//! | the time of a step by operation | `profile.rs` |
//! | the memory that a forward pass keeps, by layer | `saved.rs` |

mod bucket_plan;
mod bucket_pool;
mod candle_pass;
mod check_gradients;
pub(crate) mod fused;
mod gradients;
pub(crate) mod hooks;
pub(crate) mod loss_weight;
mod missing;
pub(crate) mod pass;
pub mod profile;
pub(crate) mod recomputing;
pub mod saved;
pub(crate) mod view;
mod wrong_gradients;

pub use bucket_plan::{BucketPlan, BucketSlot};
pub use bucket_pool::BucketPool;
pub use check_gradients::check_gradients;
pub use fused::recompute;
pub(crate) use fused::recompute_at;
pub use gradients::{FlatGradients, Observer, PassState};
pub use loss_weight::{LossWeight, weighted};
pub use missing::MissingGradients;
pub use wrong_gradients::trust_gradient;
