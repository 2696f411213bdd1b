//! candle's gradients on their way into buckets, and what is wrong with them.

use candelabrum_nn::Param;
use candle_core::Tensor;
use candle_core::backprop::GradStore;

use crate::bucket::BucketPlan;
use crate::{Error, Result};

/// Copies the gradients of a bucket's parameters into it.
pub(super) fn fill(
    params: &[Param],
    plan: &BucketPlan,
    grads: &GradStore,
    allow_unused: bool,
    bucket: &mut [f32],
) -> Result<()> {
    for slot in &plan.slots {
        let place = &mut bucket[slot.range.clone()];
        match grads.get(params[slot.param].tensor()) {
            Some(grad) => copy_values(grad, place)?,
            None if allow_unused => place.fill(0.0),
            None => return Err(no_gradient(params, grads)),
        }
    }
    Ok(())
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

/// What of this rank's is not finite: the loss, or the first parameter's gradient.
pub(super) fn first_bad(params: &[Param], grads: &GradStore, finite_loss: bool) -> Option<String> {
    if !finite_loss {
        return Some("the loss".to_owned());
    }
    let is_finite = |grad: &Tensor| {
        let mut values = vec![0.0; grad.elem_count()];
        copy_values(grad, &mut values).is_ok() && all_finite(&values)
    };
    let bad = |param: &&Param| grads.get(param.tensor()).is_some_and(|grad| !is_finite(grad));
    params.iter().find(bad).map(|param| format!("the gradient of `{}`", param.name()))
}

/// Names every parameter that the loss does not depend on.
fn no_gradient(params: &[Param], grads: &GradStore) -> Error {
    let missing = params.iter().filter(|param| grads.get(param.tensor()).is_none());
    Error::NoGradient { names: names(missing) }
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
