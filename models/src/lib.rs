//! Ready models. Each is a small file to read, copy and change. No model knows about ranks.

#![forbid(unsafe_code)]

mod cnn;
mod gpt;
mod gru_classifier;
mod mlp;
mod resnet;

pub use cnn::Cnn;
pub use gpt::{Gpt, GptConfig};
pub use gru_classifier::{GruClassifier, GruClassifierConfig};
pub use mlp::Mlp;
pub use resnet::{ResNet18, Stem};
