//! A backward pass whose gradients are born in their buckets, and what is wrong with them.

use candelabrum_nn::{FlatGradients, GradientBuffer, Param};
use candle_core::{DType, Tensor};

use super::units::{Bucket, Layout};
use crate::comm::Buffer;
use crate::{Error, Result};

impl GradientBuffer for Buffer {
    fn values_mut(&mut self) -> candle_core::Result<&mut [f32]> {
        self.as_mut_slice().map_err(candle_core::Error::wrap)
    }
}

/// The memory of a model's gradients: their places in the buckets of a layout.
pub(super) fn places(params: &[Param], buckets: &[Bucket]) -> Result<FlatGradients<Buffer>> {
    let mut gradients = FlatGradients::default();
    for Bucket { plan, .. } in buckets {
        let places = plan.slots.iter().map(|slot| (&params[slot.param], slot.range.clone()));
        gradients.push(None, places)?;
    }
    Ok(gradients)
}

/// candle's backward pass. The gradients are added to those in the buckets, if they are `pending`;
/// a loss that is no number is made to show in all of them.
pub(super) fn backward(
    loss: &Tensor,
    layout: &mut Layout,
    params: &[Param],
    allow_unused: bool,
    pending: bool,
) -> Result<()> {
    let Layout { buckets, gradients, .. } = layout;
    let finite_loss = loss.to_dtype(DType::F32)?.to_scalar::<f32>()?.is_finite();
    if !pending {
        gradients.clear();
    }
    for (bucket, place) in buckets.iter_mut().zip(gradients.buffers_mut()) {
        *place = bucket.buffer.take();
    }
    let mut result = gradients.backward(loss).map_err(Error::from);
    if result.is_ok() && allow_unused {
        result = gradients.zero_rest().map_err(Error::from);
    }
    for (bucket, place) in buckets.iter_mut().zip(gradients.buffers_mut()) {
        bucket.buffer = place.take();
    }
    result?;
    if !allow_unused && gradients.holds().any(|holds| !holds) {
        let slots = buckets.iter().flat_map(|bucket| &bucket.plan.slots);
        let missing = slots.zip(gradients.holds()).filter(|(_, holds)| !holds);
        let mut missing: Vec<usize> = missing.map(|(slot, _)| slot.param).collect();
        missing.sort_unstable();
        return Err(Error::NoGradient { names: names(missing.iter().map(|&i| &params[i])) });
    }
    if !finite_loss {
        // It can have finite gradients; let it be seen in the average.
        for buffer in buckets.iter_mut().filter_map(|bucket| bucket.buffer.as_mut()) {
            buffer.as_mut_slice::<f32>()?.fill(f32::NAN);
        }
    }
    Ok(())
}

/// What of this rank's is not finite: the loss, or the first parameter's gradient.
pub(super) fn first_bad(
    params: &[Param],
    buckets: &[Bucket],
    loss: &Tensor,
) -> Result<Option<String>> {
    let mut first: Option<usize> = None;
    for Bucket { plan, buffer } in buckets {
        let values = buffer.as_ref().map_or(Ok(&[] as &[f32]), Buffer::as_slice)?;
        if all_finite(values) {
            continue;
        }
        let bad = |param: &usize| {
            let mut slots = plan.slots.iter().filter(|slot| slot.param == *param);
            slots.any(|slot| !all_finite(&values[slot.range.clone()]))
        };
        let found = plan.slots.iter().map(|slot| slot.param).filter(bad).min();
        first = first.into_iter().chain(found).min();
    }
    let Some(first) = first else { return Ok(None) };
    let finite_loss = loss.to_dtype(DType::F32)?.to_scalar::<f32>()?.is_finite();
    Ok(Some(match finite_loss {
        true => format!("the gradient of `{}`", params[first].name()),
        false => "the loss".to_owned(),
    }))
}

/// Copies the elements of an f32 tensor to `place`, which has as many.
pub(super) fn copy_values(tensor: &Tensor, place: &mut [f32]) -> Result<()> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let candle_core::Storage::Cpu(storage) = &*storage else {
        return Err(Error::Unsupported { what: "a gradient that is not on the CPU".to_owned() });
    };
    let values = storage.as_slice::<f32>()?;
    let start = layout.start_offset();
    let values = values.get(start..start + place.len()).ok_or_else(|| Error::Length {
        op: "gradient",
        expected: place.len(),
        got: values.len().saturating_sub(start),
    })?;
    place.copy_from_slice(values);
    Ok(())
}

/// The parameters' names in one line.
pub(super) fn names<'a>(params: impl IntoIterator<Item = &'a Param>) -> String {
    params.into_iter().map(Param::name).collect::<Vec<_>>().join(", ")
}

/// Zero times a number is zero unless the number is infinite or none: a sum that vectorises.
pub(super) fn all_finite(values: &[f32]) -> bool {
    let mut lanes = [0.0_f32; 16];
    let chunks = values.chunks_exact(lanes.len());
    let rest: f32 = chunks.remainder().iter().map(|x| x * 0.0).sum();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x * 0.0;
        }
    }
    rest + lanes.iter().sum::<f32>() == 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_number_anywhere_is_found() {
        for len in [0, 1, 15, 16, 17, 100] {
            let good = vec![f32::MAX; len];
            assert!(all_finite(&good));
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for i in 0..len {
                    let mut values = good.clone();
                    values[i] = bad;
                    assert!(!all_finite(&values), "{bad} at {i} of {len}");
                }
            }
        }
    }
}
