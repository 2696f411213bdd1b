//! Squares of f32 numbers on processors without SSE.

pub(crate) use super::square::transposed;
