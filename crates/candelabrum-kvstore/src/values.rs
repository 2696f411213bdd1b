//! The values that a program gives to a store and gets from it.

use std::borrow::Cow;

use candelabrum_memory::Span;
use candelabrum_nn::with_span;
use candle_core::{DType, Tensor};

use crate::{Error, Result};

/// A value to be pushed: one, or several that are added first, in their order.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum PushValues<'a> {
    /// A tensor in f32, f16 or bf16 of the key's shape, on any device.
    Tensor(&'a Tensor),
    /// Such tensors, to be added in f32.
    Sum(&'a [Tensor]),
    /// The elements in row-major order.
    Slice(&'a [f32]),
}

impl<'a> From<&'a Tensor> for PushValues<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl<'a> From<&'a [Tensor]> for PushValues<'a> {
    fn from(tensors: &'a [Tensor]) -> Self {
        Self::Sum(tensors)
    }
}

impl<'a, const N: usize> From<&'a [Tensor; N]> for PushValues<'a> {
    fn from(tensors: &'a [Tensor; N]) -> Self {
        Self::Sum(tensors)
    }
}

impl<'a> From<&'a [f32]> for PushValues<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::Slice(values)
    }
}

impl<'a> PushValues<'a> {
    /// The first dimensions that are not `expected`.
    pub(crate) fn other_dims(&self, expected: &[usize]) -> Option<Vec<usize>> {
        let differs = |tensor: &&Tensor| tensor.dims() != expected;
        match self {
            Self::Tensor(tensor) => Some(tensor).filter(|t| differs(t)).map(|t| t.dims().to_vec()),
            Self::Sum(tensors) => tensors.iter().find(differs).map(|t| t.dims().to_vec()),
            Self::Slice(values) => {
                (values.len() != expected.iter().product::<usize>()).then(|| vec![values.len()])
            }
        }
    }

    /// The first element type that a store does not have.
    pub(crate) fn other_type(&self) -> Option<DType> {
        let tensors = match self {
            Self::Tensor(tensor) => std::slice::from_ref(*tensor),
            Self::Sum(tensors) => tensors,
            Self::Slice(_) => &[],
        };
        let is_other = |dtype: &DType| !matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        tensors.iter().map(Tensor::dtype).find(is_other)
    }

    /// The elements on the host, added up.
    pub(crate) fn elements(self) -> Result<Cow<'a, [f32]>> {
        match self {
            Self::Slice(values) => Ok(values.into()),
            Self::Tensor(tensor) => Ok(elements(tensor)?.into()),
            Self::Sum(tensors) => {
                let mut sum = Vec::new();
                for tensor in tensors {
                    let values = elements(tensor)?;
                    if sum.is_empty() {
                        sum = values;
                    } else {
                        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
                    }
                }
                Ok(sum.into())
            }
        }
    }
}

fn elements(tensor: &Tensor) -> Result<Vec<f32>> {
    with_span(tensor, |span: Span<'_>| {
        let mut values = vec![0.0; span.len()];
        span.copy_to_slice(&mut values)?;
        Ok::<_, Error>(values)
    })
}

/// Some rows of a table: their numbers, and their values one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowSparse {
    /// The numbers of the rows. In a value from a store they ascend, and none is there twice.
    pub rows: Vec<u32>,
    /// The elements of all these rows.
    pub values: Vec<f32>,
}
