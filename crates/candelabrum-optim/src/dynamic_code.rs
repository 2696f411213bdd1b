//! The dynamic 8-bit code of numbers from -1 to 1, or from 0 to 1.
//!
//! The code has seven decades, from 1e-6 to 1. A decade has twice as many numbers as the one below it,
//! at equal distances: 64 in the highest one, 128 if the code has no negative numbers. So the error is
//! relative over most of the range, and is smallest where the numbers are largest. In addition there are 0 and 1.
//!
//! Dettmers, "8-bit approximations for parallelism in deep learning", ICLR 2016 (arXiv 1511.04561);
//! as a table in Dettmers et al., "8-bit optimizers via block-wise quantization", ICLR 2022 (arXiv
//! 2110.02861). The numbers are those of bitsandbytes' `create_dynamic_map`.

use std::sync::LazyLock;

/// The decades.
const DECADES: u32 = 7;

/// A code with negative numbers, from -0.9930 to 1.
pub(crate) static SIGNED: LazyLock<DynamicCode> = LazyLock::new(|| DynamicCode::new(true));

/// A code of numbers from 0 to 1.
pub(crate) static UNSIGNED: LazyLock<DynamicCode> = LazyLock::new(|| DynamicCode::new(false));

/// The numbers whose upper 16 bits are equal lie closer together than two numbers of a code. So at most one middle is
/// between them, and the code of the lowest of them is the code of all, or the one before it.
const CUT: u32 = 16;

/// The runs of such numbers from 0 to 1.
const RUNS: usize = (0x3F80_0000 >> CUT) + 1;

/// The numbers of a code.
#[derive(Debug)]
pub(crate) struct DynamicCode {
    /// In ascending order.
    numbers: [f32; 256],
    /// Between two numbers that follow each other, and behind the last one.
    middles: [f32; 256],
    /// By run, the code of its lowest number: of runs of positive numbers, then of negative ones.
    lowest: [Box<[u8; RUNS]>; 2],
}

impl DynamicCode {
    fn new(is_signed: bool) -> Self {
        let mut all = vec![0.0, 1.0];
        for decade in 0..DECADES {
            let count = if is_signed { 1 << decade } else { 2 << decade };
            let top = 10_f64.powi(decade as i32 + 1 - DECADES as i32);
            for number in 0..count {
                let share = (f64::from(number) + 0.5) / f64::from(count);
                let number = (top * (0.1 + 0.9 * share)) as f32;
                all.push(number);
                if is_signed {
                    all.push(-number);
                }
            }
        }
        all.sort_unstable_by(f32::total_cmp);
        let numbers: [f32; 256] = std::array::from_fn(|code| all[code]);
        let middles = std::array::from_fn(|code| match numbers.get(code + 1) {
            Some(next) => 0.5 * (numbers[code] + next),
            None => f32::INFINITY,
        });
        let nearest = |number: f32| middles.partition_point(|middle| *middle < number) as u8;
        let lowest = [0_u32, 1].map(|sign| {
            // The lowest negative number of a run is the one with all lower bits.
            let rest = if sign == 0 { 0 } else { (1 << CUT) - 1 };
            let lowest = |run: usize| f32::from_bits(sign << 31 | (run as u32) << CUT | rest);
            Box::new(std::array::from_fn(|run| nearest(lowest(run))))
        });
        Self { numbers, middles, lowest }
    }

    #[inline(always)]
    pub(crate) fn number(&self, code: u8) -> f32 {
        self.numbers[usize::from(code)]
    }

    /// The code of the nearest number, of the lower one in the middle between two. NaN may get any code.
    #[inline(always)]
    pub(crate) fn nearest(&self, number: f32) -> u8 {
        let bits = number.to_bits();
        let run = ((bits & 0x7FFF_FFFF) >> CUT) as usize;
        let code = self.lowest[(bits >> 31) as usize][run.min(RUNS - 1)];
        code + u8::from(self.middles[usize::from(code)] < number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_256_different_numbers_in_order() {
        for code in [&*SIGNED, &*UNSIGNED] {
            assert!(code.numbers.is_sorted_by(|a, b| a < b));
        }
        let [low, high] = [SIGNED.numbers[0], UNSIGNED.numbers[254]];
        assert!((low + 0.992_968_75).abs() < 1e-7, "{low}");
        assert!((high - 0.996_484_4).abs() < 1e-7, "{high}");
        assert_eq!((SIGNED.number(127), SIGNED.number(255)), (0.0, 1.0));
        assert_eq!((UNSIGNED.number(0), UNSIGNED.number(255)), (0.0, 1.0));
    }

    #[test]
    fn every_number_is_nearest_to_itself() {
        for code in [&*SIGNED, &*UNSIGNED] {
            for number in 0..=255 {
                assert_eq!(code.nearest(code.number(number)), number);
            }
        }
    }

    #[test]
    fn the_nearest_number_is_found() {
        let check = |code: &DynamicCode, x: f32| {
            let distance = |number: u8| (f64::from(code.number(number)) - f64::from(x)).abs();
            let least = (0..=255).map(distance).fold(f64::INFINITY, f64::min);
            // The middle between two numbers is rounded, too.
            assert!(distance(code.nearest(x)) <= least + 1e-7, "{x}");
        };
        for i in 0..=10_000 {
            let x = i as f32 / 10_000.0;
            for x in [x, x * x * x] {
                check(&UNSIGNED, x);
                check(&SIGNED, x);
                check(&SIGNED, -x);
            }
        }
        assert_eq!([-7.0, 7.0].map(|x| SIGNED.nearest(x)), [0, 255]);
    }

    #[test]
    fn no_two_middles_lie_in_a_run() {
        for code in [&*SIGNED, &*UNSIGNED] {
            let run = |middle: &f32| middle.to_bits() >> CUT;
            let runs: std::collections::BTreeSet<_> = code.middles.iter().map(run).collect();
            assert_eq!(runs.len(), code.middles.len());
        }
    }
}
