//! A backward pass whose gradients are born in their buckets, and what is wrong with them.

use candelabrum_nn::{GradientBuffer, Observer, Param};
use candle_core::{DType, Tensor};

use super::units::Layout;
use crate::comm::Buffer;
use crate::{Error, Result};

impl GradientBuffer for Buffer {
    fn values_mut(&mut self) -> candle_core::Result<&mut [f32]> {
        self.as_mut_slice().map_err(candle_core::Error::wrap)
    }
}

/// How gradients come into being.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backward<'a> {
    pub(super) params: &'a [Param],
    /// Whether a parameter may have none.
    pub(super) allow_unused: bool,
    /// Whether the buckets hold gradients that those of this pass are added to.
    pub(super) pending: bool,
}

impl Backward<'_> {
    /// candle's backward pass into the buckets of `layout`, of which `observer` may take those that
    /// are complete.
    pub(super) fn run<O: Observer<Buffer>>(
        self,
        loss: &Tensor,
        layout: &mut Layout,
        observer: O,
    ) -> (O, Result<()>) {
        if !self.pending {
            layout.gradients.clear();
        }
        let (observer, result) = layout.gradients.backward_with(loss, observer);
        let result = result.map_err(Error::from).and_then(|()| self.check_complete(layout));
        (observer, result)
    }

    /// Every parameter has a gradient, or gets zeros where it may.
    fn check_complete(self, layout: &mut Layout) -> Result<()> {
        if self.allow_unused {
            return Ok(layout.gradients.zero_rest()?);
        }
        let missing = layout.slots().zip(layout.gradients.holds()).filter(|(_, holds)| !holds);
        let mut missing: Vec<usize> = missing.map(|(param, _)| param).collect();
        if missing.is_empty() {
            return Ok(());
        }
        missing.sort_unstable();
        Err(Error::NoGradient { names: names(missing.iter().map(|&i| &self.params[i])) })
    }
}

/// Whether a loss is a number.
pub(super) fn is_finite(loss: &Tensor) -> Result<bool> {
    Ok(loss.to_dtype(DType::F32)?.to_scalar::<f32>()?.is_finite())
}

/// Makes every gradient one number.
pub(super) fn fill(layout: &mut Layout, value: f32, rank: usize) -> Result<()> {
    (0..layout.plans.len()).try_for_each(|number| {
        layout.values(number, rank)?.fill(value);
        Ok(())
    })
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
