//! Ready models. Each is a small file to read, copy and change; none knows of ranks.

#![forbid(unsafe_code)]

mod cnn;
mod mlp;

pub use cnn::Cnn;
pub use mlp::Mlp;
