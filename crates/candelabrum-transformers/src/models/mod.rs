//! The networks, by their families. A parameter has the name that it has in Hugging Face's files.

mod bert;
mod common;
mod distilbert;
mod encoder_layer;
pub(crate) mod family;
mod gpt2;
mod head;
mod llama;
mod llama_config;
mod rotary_config;
mod text_encoder;
mod vit;

pub(crate) use bert::Bert;
pub(crate) use bert::BertHead;
pub(crate) use common::pad_token_id;
pub(crate) use distilbert::DistilBert;
pub(crate) use distilbert::DistilBertHead;
pub(crate) use gpt2::Gpt2;
pub use head::IGNORED;
pub(crate) use head::LmHead;
pub(crate) use llama::Llama;
pub(crate) use text_encoder::TextEncoder;
pub(crate) use vit::Vit;
pub(crate) use vit::VitHead;
