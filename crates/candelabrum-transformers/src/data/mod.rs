//! Texts as tokens of a pretrained model: datasets for language models, classification and conversations.
//!
//! The batches of texts are as wide as their longest text. A fixed width would make a model compute padding.

mod chats;
mod classified_texts;
mod conversation;
mod rows;
mod token_blocks;
mod vocabulary;

pub(crate) use self::rows::padded;
pub use self::{
    chats::Chats, classified_texts::ClassifiedTexts, token_blocks::TokenBlocks,
    vocabulary::check_vocabulary,
};
