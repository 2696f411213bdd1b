//! One table of all operations, and all that is asked of each: the kernel computes what the composite does and what
//! PyTorch did, gradients are slopes, views and threads change nothing, a batch may be empty, 16 bits and a GPU
//! compute the same. A new operation is a function here with its cases.

mod attention;
mod case;
mod convolutions;
mod elementwise;
mod embeddings;
mod layers;
mod losses;
mod norms;
mod pass;
mod poolings;
mod products;
mod questions;
mod rearrangements;
mod recurrent;

pub(crate) use case::Cases;
pub(crate) use elementwise::apply;
pub(crate) use norms::some_running;
pub(crate) use questions::gpu;
