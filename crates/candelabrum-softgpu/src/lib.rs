//! A software GPU for tests: stand-ins for CUDA's libraries and for its compiler, which carry the
//! calls out on the CPU. docs/software-gpu.md says what it finds and what it cannot find.
//!
//! [`SoftGpuKit::build`] compiles the stand-ins and returns the environment in which programs are built and
//! run with them. No package that is released may depend on this one.
#![forbid(unsafe_code)]

mod digest;
mod error;
mod kit;
mod steps;

pub use error::{Error, Result};
pub use kit::SoftGpuKit;

/// The programs without which no kit can be built.
pub const NEEDED_PROGRAMS: [&str; 3] = ["g++", "python3", "ar"];
