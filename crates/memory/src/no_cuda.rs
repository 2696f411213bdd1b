//! Replaces `cuda.rs` in builds without it: there is no memory on a GPU.

use candle_core::Device;

use crate::{ElementType, Error, Flat, Result};

/// # Errors
/// Always [`Error::NotCompiled`].
pub(crate) fn zeros(_device: &Device, _element: ElementType, _len: usize) -> Result<Flat> {
    Err(Error::NotCompiled { what: "a buffer on a GPU".to_owned(), feature: "cuda" })
}
