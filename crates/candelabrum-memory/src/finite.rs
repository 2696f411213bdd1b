//! The search for the first number in the gradients that is not finite.

use crate::chunks::by_chunks;
use crate::cuda::CudaSearch;
use crate::simd::simd;
use crate::{Result, Span};

/// A search through the buckets of a step for the first number that is not finite. On the host the threads of a
/// pool search.
///
/// Units may be checked in any order. On the host the result is known at once. A device may report
/// later: only [`Self::first`] waits for it, once per step.
#[derive(Debug, Default)]
pub struct FiniteCheck {
    first: Option<(usize, usize)>,
    on_device: Option<CudaSearch>,
}

impl FiniteCheck {
    /// Checks the numbers of `bucket`.
    ///
    /// # Errors
    /// A device's error.
    pub fn look(&mut self, bucket: usize, values: Span<'_>) -> Result<()> {
        let values = match values {
            Span::Host(values) => values,
            Span::Cuda(values) => {
                let search = match &mut self.on_device {
                    Some(search) => search,
                    none => none.insert(CudaSearch::new(values)?),
                };
                return search.look(bucket, values);
            }
        };
        let Some(position) = first_bad_in_parallel(values) else { return Ok(()) };
        let found = (bucket, position);
        self.first = Some(self.first.map_or(found, |first| first.min(found)));
        Ok(())
    }

    /// Whether a bad number has been found so far. A device's result may not have arrived yet.
    pub fn is_bad_so_far(&self) -> bool {
        self.first.is_some()
    }

    /// The lowest bucket with a bad number, and the position of its first bad number. Waits for
    /// devices.
    ///
    /// # Errors
    /// A device's error.
    pub fn first(&self) -> Result<Option<(usize, usize)>> {
        let on_device = self.on_device.as_ref().map_or(Ok(None), CudaSearch::first)?;
        Ok([self.first, on_device].into_iter().flatten().min())
    }
}

/// The position of the first number that is not finite.
pub fn first_bad(values: &[f32]) -> Option<usize> {
    let all_finite = simd(
        #[inline(always)]
        || all_finite(values),
    );
    if all_finite { None } else { values.iter().position(|value| !value.is_finite()) }
}

/// As [`first_bad`], on the threads of the pool. A thread that communicates must not call it, because the
/// pool works for the backward pass meanwhile.
fn first_bad_in_parallel(values: &[f32]) -> Option<usize> {
    let [chunks_with_one, _] = by_chunks(
        values,
        #[inline(always)]
        |chunk| [f64::from(!all_finite(chunk)), 0.0],
    );
    if chunks_with_one == 0.0 { None } else { first_bad(values) }
}

/// The bits of infinity. Without the sign, the bits of NaN are a larger number, and those of every finite
/// number a smaller one.
const INFINITY: u32 = f32::INFINITY.to_bits();

const SIGN: u32 = 1 << 31;

/// The largest bits in each of several lanes, because a maximum has to wait for the one before it.
#[inline(always)]
fn all_finite(values: &[f32]) -> bool {
    let (whole, rest) = values.as_chunks::<64>();
    let mut lanes = [0_u32; 64];
    for chunk in whole {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = (*lane).max(x.to_bits() & !SIGN);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = (*lane).max(x.to_bits() & !SIGN);
    }
    lanes.iter().all(|&bits| bits < INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::CHUNK;

    #[test]
    fn one_bad_number_anywhere_is_found() -> Result<()> {
        for len in [0, 1, 63, 64, 65, 200] {
            let good = vec![f32::MAX; len];
            let mut check = FiniteCheck::default();
            check.look(0, Span::from(&good))?;
            assert_eq!((check.is_bad_so_far(), check.first()?), (false, None));
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in 0..len {
                    let mut values = good.clone();
                    values[at] = bad;
                    let mut check = FiniteCheck::default();
                    check.look(3, Span::from(&values))?;
                    assert_eq!(check.first()?, Some((3, at)), "{bad} at {at} of {len}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn the_first_bad_number_of_several_chunks_is_found() -> Result<()> {
        for first in [CHUNK - 1, CHUNK, 2 * CHUNK + 7] {
            let mut values = vec![f32::MIN; 2 * CHUNK + 8];
            values[first..].fill(f32::NAN);
            let mut check = FiniteCheck::default();
            check.look(0, Span::from(&values))?;
            assert_eq!((check.first()?, first_bad(&values)), (Some((0, first)), Some(first)));
        }
        Ok(())
    }

    #[test]
    fn the_lowest_unit_is_named_whatever_the_order() -> Result<()> {
        let mut check = FiniteCheck::default();
        check.look(2, Span::from(&[f32::NAN]))?;
        check.look(1, Span::from(&[0.0, f32::NAN, f32::NAN]))?;
        check.look(4, Span::from(&[f32::NAN]))?;
        assert!(check.is_bad_so_far());
        assert_eq!(check.first()?, Some((1, 1)));
        Ok(())
    }
}
