//! Pretrained transformers: models of Hugging Face's folders and of GGUF files, their tokenizers and texts.
//!
//! | idea | where |
//! |---|---|
//! | a folder or a GGUF file | [`Pretrained`], [`Quantization`], [`Config`] |
//! | models | [`CausalLm`], [`Classifier`], [`Encoder`] |
//! | texts as tokens | [`Tokenizer`], [`ChatMessage`], [`check_vocabulary`] |
//! | data | [`TokenBlocks`], [`Chats`], [`ClassifiedTexts`] |
//! | adapters as folders of `peft` | [`load_adapter`], [`save_adapter`] |
//! | generation | [`CausalLm::generate`], [`GenerationConfig`], [`Cache`] |
//!
//! The crate knows no ranks. Every rank reads its files for itself.

#![forbid(unsafe_code)]

mod cache;
mod causal_lm;
mod classifier;
mod companions;
mod config;
mod data;
mod encoder;
mod error;
mod generation;
mod generation_settings;
mod hub;
mod images;
mod models;
mod networks;
mod neutral;
mod new_files;
mod peft;
mod pooling;
mod pretrained;
mod source_files;
mod tokenizer;
mod weights;

pub use cache::Cache;
pub use causal_lm::CausalLm;
pub use classifier::Classifier;
pub use config::Config;
pub use data::{Chats, ClassifiedTexts, TokenBlocks, check_vocabulary};
pub use encoder::Encoder;
pub use error::{Error, Result};
pub use generation::GenerationConfig;
pub use models::IGNORED;
pub use peft::{load_adapter, save_adapter};
pub use pretrained::Pretrained;
pub use tokenizer::{ChatMessage, Tokenizer};
pub use weights::Quantization;
