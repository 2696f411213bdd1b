//! Ready models. Each is a small file to read, copy and change. No model knows about ranks.

#![forbid(unsafe_code)]

mod alexnet;
mod char_lstm;
mod classifier;
mod cnn;
mod conv;
mod gpt;
mod gru_classifier;
mod lenet;
mod mlp;
mod mobilenet_v2;
mod resnet;
mod vgg;
mod vit;
mod xception;

pub use alexnet::{AlexNet, AlexNetConfig, AlexNetPooling};
pub use char_lstm::{CharLstm, CharLstmConfig};
pub use cnn::Cnn;
pub use gpt::{Gpt, GptConfig};
pub use gru_classifier::{GruClassifier, GruClassifierConfig};
pub use lenet::LeNet;
pub use mlp::Mlp;
pub use mobilenet_v2::MobileNetV2;
pub use resnet::{ResNet18, ResNet34, ResNet50, ResNet101, ResNet152, Stem};
pub use vgg::{Vgg, VggConfig, VggDepth};
pub use vit::{Vit, VitConfig};
pub use xception::Xception;
