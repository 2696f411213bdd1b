//! The memory of numbers, and the arithmetic on them.
//!
//! | idea | where |
//! |---|---|
//! | the types of numbers that can be stored and sent | [`ElementType`], [`Element`] |
//! | numbers of one type, in host memory, shared memory or a GPU's memory | [`FlatTensor`], [`Location`] |
//! | a borrowed run of f32 numbers, and the arithmetic of a training step on it | [`Span`], [`SpanMut`] |
//! | the norm of several spans | [`Norm`] |
//! | a search for the first number that is not finite | [`FiniteCheck`] |
//! | the reduction of several runs of numbers into one | [`reduce`] |
//! | the sizes of a convolution on a GPU | [`Convolution`] |
//! | 16-bit floats to and from f32 | [`Half`] |
//! | large vectors in chunks, over the threads of a pool | [`chunks`] |
//! | a loop divided over threads that spin until the next one | [`thread_pool`] |
//! | how much memory is allocated, and the most so far | [`usage`], on the CPU [`heap`] |
//! | numbers that look like chance, for seeds and noise | [`hash`] |
//! | loops compiled for the vectors of this machine | [`simd`] |
//!
//! Parameters, gradients, the state of an optimizer and the buckets of an all-reduce are all
//! [`FlatTensor`]s or [`Span`]s. Code that only moves or scales numbers calls the methods of a span and
//! does not know the kind of memory. Code that computes on the host uses the slice
//! ([`SpanMut::host`]).
//!
//! **Invariant** This crate knows no graphs of tensors, no ranks and no models.

pub mod chunks;
pub mod hash;
pub mod heap;
pub mod reduce;
pub mod simd;
pub mod thread_pool;
pub mod usage;

#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
pub mod cuda;
#[cfg(feature = "cuda")]
pub mod cuda;

mod allocation;
mod convolution;
mod element;
mod error;
mod finite;
mod flat;
mod half;
mod kernels;
mod span;
mod wire;

pub use convolution::Convolution;
pub use element::{Element, ElementType};
pub use error::{Error, Result};
pub use finite::{FiniteCheck, first_bad};
pub use flat::{CACHE_LINE, FlatTensor, Location, SharedMemory};
pub use half::Half;
pub use reduce::{BadNumber, ReduceOp};
pub use span::{Norm, Span, SpanMut, square_sums};
