//! Is a number among the gradients that is not finite, and where is the first one?

use crate::{Result, Span};

/// A search through the units of a step for the first number that is not finite.
///
/// Units are looked at in any order. On the host the answer is known at once. A device may answer
/// later: only [`Self::first`] waits for it, once per step.
#[derive(Clone, Copy, Debug, Default)]
pub struct FiniteCheck {
    first: Option<(usize, usize)>,
}

impl FiniteCheck {
    /// Looks at the numbers of `unit`.
    ///
    /// # Errors
    /// What a device says.
    pub fn look(&mut self, unit: usize, values: Span<'_>) -> Result<()> {
        let Span::Host(values) = values;
        if all_finite(values) {
            return Ok(());
        }
        let position = values.iter().position(|value| !value.is_finite()).unwrap_or(0);
        let found = (unit, position);
        self.first = Some(self.first.map_or(found, |first| first.min(found)));
        Ok(())
    }

    /// Whether a bad number is known so far. A device's answer may not be here yet.
    pub fn is_bad_so_far(&self) -> bool {
        self.first.is_some()
    }

    /// The lowest unit with a bad number, and the position of its first one; waits for devices.
    ///
    /// # Errors
    /// What a device says.
    pub fn first(&self) -> Result<Option<(usize, usize)>> {
        Ok(self.first)
    }
}

/// Zero times a number is zero unless the number is infinite or a NaN, so a sum of such products,
/// which vectorises, tells whether all numbers are finite.
fn all_finite(values: &[f32]) -> bool {
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
    fn one_bad_number_anywhere_is_found() -> Result<()> {
        for len in [0, 1, 15, 16, 17, 100] {
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
