//! Conversion between half precision and f32, a slice at a time.
//!
//! For fp16 there are instructions, which the `half` crate detects at run time. bf16 is the upper
//! half of an f32. The loops for it are written so that the compiler vectorises them.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::Element;

/// A 16-bit float.
pub trait Half: Element {
    /// Exact. The slices have the same length.
    fn widen(from: &[Self], to: &mut [f32]);

    /// Rounds to nearest, ties to even. Numbers that are too large become infinite, NaN stays NaN.
    fn narrow(from: &[f32], to: &mut [Self]);
}

impl Half for f16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

impl Half for bf16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        for (to, from) in to.iter_mut().zip(from) {
            let bits = from.to_bits();
            let upper = bits >> 16;
            // Adds one half, or a little less if the upper half is even, so that exactly the
            // numbers that must be rounded up carry.
            let rounded = bits.wrapping_add(0x7fff + (upper & 1)) >> 16;
            // A NaN may have all its bits in the lower half: keep it a NaN.
            let nan = upper | 0x40;
            let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
            *to = bf16::from_bits(if is_nan { nan } else { rounded } as u16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_what_the_half_crate_makes_one_at_a_time() {
        // Every upper half, with the lower halves around a tie and at the ends.
        for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let from: Vec<f32> =
                (0..=0xffff_u32).map(|upper| f32::from_bits(upper << 16 | lower)).collect();
            let mut narrow = vec![bf16::ZERO; from.len()];
            Half::narrow(&from, &mut narrow);
            let mut wide = vec![0.0; from.len()];
            Half::widen(&narrow, &mut wide);
            for ((from, narrow), wide) in from.iter().zip(&narrow).zip(&wide) {
                let expected = bf16::from_f32(*from);
                assert_eq!(narrow.to_bits(), expected.to_bits(), "{from:e}");
                assert_eq!(wide.to_bits(), expected.to_f32().to_bits(), "{from:e}");
            }
        }
    }
}
