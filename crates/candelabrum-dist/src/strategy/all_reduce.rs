//! fp32, fp16 and bf16: an all-reduce of gradients in one of these types.
//!
//! fp32 sums in rank order and divides the sum by the number of ranks. fp16 and bf16 divide by the
//! number of ranks in fp32 *before* the cast, so a sum overflows only if the average itself
//! overflows. (PyTorch's `fp16_compress` hook does the same. SINGA divides after the sum.) The cast
//! rounds to nearest, ties to even. All transports of this crate accumulate half precision in fp32
//! and round once. NCCL accumulates in half precision.

use candelabrum_memory::{ElementType, FlatTensor, SpanMut};

use crate::comm::{Collective, ReduceOp};
use crate::{Error, Result};

/// The element type of a bucket's numbers between ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AllReduce {
    /// f32, or a half precision.
    pub(crate) element: ElementType,
    /// The magnitude to which each element of this rank's gradient is clipped before the cast to
    /// half precision. This is SINGA's `clipping`.
    clip: Option<f32>,
}

impl AllReduce {
    /// Gradients without conversion.
    pub(crate) const FP32: Self = Self { element: ElementType::F32, clip: None };

    /// Gradients in a half precision.
    ///
    /// # Errors
    /// [`Error::Setting`] for a clip that is not above 0.
    pub(crate) fn half(element: ElementType, clip: Option<f32>) -> Result<Self> {
        if clip.is_some_and(|limit| limit.is_nan() || limit <= 0.0) {
            let value = clip.unwrap_or_default().to_string();
            return Err(Error::Setting { setting: "clip", value, range: "above 0" });
        }
        Ok(Self { element, clip })
    }

    /// The name and every setting. Ranks compare their descriptions.
    pub(crate) fn describe(self) -> String {
        let name = match self.element {
            ElementType::F16 => "fp16",
            ElementType::Bf16 => "bf16",
            _ => "fp32",
        };
        self.clip.map_or(name.to_owned(), |limit| format!("{name} clip={limit}"))
    }

    /// Whether a NaN or infinity in one rank's gradient always shows in the average. With a clip it
    /// does not, because the clip makes an infinity finite.
    pub(crate) fn shows_bad_numbers(self) -> bool {
        self.clip.is_none()
    }

    /// Whether the bucket itself is sent, and not a copy in another type.
    pub(crate) fn is_in_place(self) -> bool {
        self.element == ElementType::F32
    }

    /// The collective that averages a bucket, or adds it up. Servers have no gradients, so with them a mean over the ranks is
    /// no mean over the gradients.
    pub(crate) fn op(self, has_servers: bool) -> Collective {
        let mean = self.is_in_place() && !has_servers;
        Collective::AllReduce(if mean { ReduceOp::Mean } else { ReduceOp::Sum })
    }

    /// Writes this rank's share of the average of `values` to `wire`.
    ///
    /// # Errors
    /// Memory of another length or type, or an error of the device.
    pub(crate) fn pack(
        self,
        mut values: SpanMut<'_>,
        wire: &mut FlatTensor,
        world_size: usize,
    ) -> Result<()> {
        if let Some(limit) = self.clip {
            values.clamp(limit)?;
        }
        Ok(wire.narrow_from(values.as_span(), world_size as f32)?)
    }
}
