//! Work that a GPU repeats, without a value in builds without GPUs.

use std::convert::Infallible;

use candle_core::Device;

use super::not_compiled;
use crate::Result;

/// A capture under way.
#[derive(Debug)]
pub struct Capture(Infallible);

/// Recorded work, ready to run.
#[derive(Debug)]
pub struct Graph(Infallible);

impl Capture {
    /// # Errors
    /// Always [`Error::NotCompiled`](crate::Error::NotCompiled).
    pub fn begin(_device: &Device) -> Result<Self> {
        Err(not_compiled())
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// Recorded work that cannot be repeated, and the driver's error.
    pub fn end(self) -> Result<Graph> {
        match self.0 {}
    }
}

impl Graph {
    /// Enqueues the recorded work.
    ///
    /// # Errors
    /// The driver's error.
    pub fn launch(&self) -> Result<()> {
        match self.0 {}
    }
}
