//! Squares of f32 numbers on processors without SSE.

pub(in crate::ops) use super::square::transposed;
