//! The selection of the elements that a sparse strategy sends: the K largest, or all from a
//! threshold on.
//!
//! Sparse strategies (deep gradient compression, Lin et al., ICLR 2018) keep 0.1 % to 1 % of a
//! gradient. A sort would cost more than the exchange that it saves. An estimated threshold would
//! send some other number of elements than K. Here the estimate only saves work: a bound from a
//! sample leaves little more than K candidates, which one pass finds at the speed of memory. The
//! exact K are then selected among the candidates. The sample changes neither the result nor the
//! linear time.

use std::ops::Range;

/// Elements whose comparisons fill one mask, one bit for each.
const BLOCK: usize = u32::BITS as usize;

/// Elements whose masks are made before the positions are read from them. The masks are then in the
/// first-level cache, and no branches stall the reads of the elements.
const CHUNK: usize = 64 * BLOCK;

/// Buckets of fewer elements are searched without a bound from a sample.
const SAMPLED_FROM: usize = 16 * CHUNK;

/// Elements in a sample of a large bucket.
const SAMPLE: usize = 8 * 1024;

/// The least number of candidates that are collected before the best are selected.
const ROOM: usize = 2 * CHUNK;

/// A bound below every key.
const NO_BOUND: i32 = -1;

/// Finds the elements of a bucket that a sparse strategy sends. Keeps its scratch memory between
/// calls.
///
/// Magnitudes are compared as the bits of the number without its sign. This is exact, also for
/// denormals, and 0 and -0 are equal. A NaN is above infinity, so [`top_k`](Self::top_k) sends it
/// first and every rank sees it.
///
/// ```
/// use candelabrum_dist::strategy::select::Selector;
///
/// let mut indices = Vec::new();
/// let mut selector = Selector::default();
/// selector.top_k(&[0.5, -3.0, 0.0, 2.0, -0.5], 3, &mut indices);
/// assert_eq!(indices, [0, 1, 3]);
/// selector.at_least(&[0.5, -3.0, 0.0, 2.0, -0.5], 2.0, &mut indices);
/// assert_eq!(indices, [1, 3]);
/// ```
#[derive(Debug, Default, Clone)]
pub struct Selector {
    /// The keys of the candidates, in the order of their indices.
    keys: Vec<i32>,
    /// A copy of the keys, which a selection reorders.
    scratch: Vec<i32>,
}

impl Selector {
    /// Writes to `indices`, ascending, the positions of the `k` elements of `values` that are
    /// largest in magnitude. Of equal magnitudes it takes the lowest positions. If `k` is larger
    /// than the number of elements, it takes all.
    ///
    /// # Panics
    ///
    /// If `values` has more than [`u32::MAX`] elements.
    pub fn top_k(&mut self, values: &[f32], k: usize, indices: &mut Vec<u32>) {
        let len = checked_len(values);
        indices.clear();
        if k == 0 {
            return;
        }
        if k >= values.len() {
            indices.extend(0..len);
            return;
        }
        let bound = self.likely_bound(values, k);
        self.gather(values, k, bound, indices);
        if indices.len() < k {
            self.gather(values, k, NO_BOUND, indices);
        }
    }

    /// Writes to `indices`, ascending, the positions of all elements with a magnitude of at least
    /// `threshold`. A NaN is never among them, and a threshold of NaN selects nothing.
    ///
    /// # Panics
    ///
    /// If `values` has more than [`u32::MAX`] elements.
    pub fn at_least(&mut self, values: &[f32], threshold: f32, indices: &mut Vec<u32>) {
        checked_len(values);
        indices.clear();
        if threshold.is_nan() {
            return;
        }
        let bound = if threshold > 0.0 { key(threshold) - 1 } else { NO_BOUND };
        let mut found = [0; CHUNK];
        for (chunk, start) in chunks(values) {
            let found = find(chunk, bound, key(f32::INFINITY), &mut found);
            indices.extend(found.iter().map(|&i| start + u32::from(i)));
        }
    }

    /// Collects the `k` best of all elements above `bound`, or all of these if there are fewer.
    ///
    /// Once 2`k` candidates (or `ROOM`, if that is more) are collected, all but the best `k` are
    /// dropped, and the least key of these is the new bound. Later candidates must be above it,
    /// because the first of equal keys wins. Each selection thus follows at least `k` new
    /// candidates, which pay for its linear time.
    fn gather(&mut self, values: &[f32], k: usize, mut bound: i32, indices: &mut Vec<u32>) {
        self.keys.clear();
        indices.clear();
        let room = k.saturating_mul(2).max(ROOM);
        let mut found = [0; CHUNK];
        for (chunk, start) in chunks(values) {
            let found = find(chunk, bound, i32::MAX, &mut found);
            indices.extend(found.iter().map(|&i| start + u32::from(i)));
            self.keys.extend(found.iter().map(|&i| key(chunk[usize::from(i)])));
            if self.keys.len() >= room {
                bound = self.keep_best(k, indices);
            }
        }
        if self.keys.len() > k {
            self.keep_best(k, indices);
        }
    }

    /// Keeps the best `k` of more than `k` candidates, in their order. Returns the least key among
    /// them.
    fn keep_best(&mut self, k: usize, indices: &mut Vec<u32>) -> i32 {
        self.scratch.clone_from(&self.keys);
        let least_place = self.scratch.len() - k;
        let (_, &mut least, greater) = self.scratch.select_nth_unstable(least_place);
        let equal_kept = k - greater.iter().filter(|&&key| key > least).count();
        let mut equal = self.keys.iter().enumerate().filter(|&(_, &key)| key == least);
        let first_left_out = equal.nth(equal_kept).map_or(self.keys.len(), |(i, _)| i);
        let mut kept = 0;
        let mut keep = |range: Range<usize>, bound: i32| {
            for i in range {
                // Every candidate is written, but only a kept one advances the count, so no branch
                // is mispredicted.
                let key = self.keys[i];
                self.keys[kept] = key;
                indices[kept] = indices[i];
                kept += usize::from(key > bound);
            }
        };
        keep(0..first_left_out, least - 1);
        keep(first_left_out..self.scratch.len(), least);
        self.keys.truncate(kept);
        indices.truncate(kept);
        least
    }

    /// A bound that, according to a sample, has somewhat more than `k` elements above it.
    fn likely_bound(&mut self, values: &[f32], k: usize) -> i32 {
        if values.len() < SAMPLED_FROM {
            return NO_BOUND;
        }
        let size = SAMPLE.min(values.len() / 16);
        let expected = size as f64 * (k as f64 / values.len() as f64);
        // Three standard deviations of the number of elements of a random sample above the K-th
        // key. A bound that is too high costs a second pass, one that is too low only some more
        // candidates.
        let rank = (expected + 3.0 * expected.sqrt() + 4.0) as usize;
        if rank >= size {
            return NO_BOUND;
        }
        self.scratch.clear();
        self.scratch.extend((0..size).map(|i| key(values[sample_place(i, size, values.len())])));
        *self.scratch.select_nth_unstable(size - rank).1 - 1
    }
}

/// The position of sample `i` of `size` in `len` elements. Each of `size` equal parts has one
/// sample. A multiplicative hash chooses its place there, because fixed distances could follow the
/// columns of a matrix.
fn sample_place(i: usize, size: usize, len: usize) -> usize {
    let i = i as u64;
    let fraction = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    // The product has at most 13 + 16 + 32 bits, and the result is below `len`.
    ((((i << 16) | fraction) * len as u64 / size as u64) >> 16) as usize
}

/// The chunks of `values` and the positions of their first elements.
fn chunks(values: &[f32]) -> impl Iterator<Item = (&[f32], u32)> {
    values.chunks(CHUNK).zip((0..).step_by(CHUNK))
}

/// The positions in `chunk` of all keys above `bound` and at most `most`, ascending.
#[inline]
fn find<'a>(chunk: &[f32], bound: i32, most: i32, found: &'a mut [u16; CHUNK]) -> &'a [u16] {
    // Masks with at least one bit set, each with its block's position. The next mask overwrites an
    // empty one.
    let mut masks = [(0_u32, 0_u16); CHUNK / BLOCK];
    let mut count = 0;
    let (blocks, rest) = chunk.as_chunks::<BLOCK>();
    let mut start = 0;
    for block in blocks {
        let mask = above(block, bound);
        masks[count] = (mask, start);
        count += usize::from(mask != 0);
        start += BLOCK as u16;
    }
    if !rest.is_empty() {
        let mut block = [0.0; BLOCK];
        block[..rest.len()].copy_from_slice(rest);
        let mask = above(&block, bound) & ((1 << rest.len()) - 1);
        masks[count] = (mask, start);
        count += usize::from(mask != 0);
    }
    let mut len = 0;
    for &(mut mask, start) in &masks[..count] {
        while mask != 0 {
            let i = start + mask.trailing_zeros() as u16;
            found[len] = i;
            len += usize::from(key(chunk[usize::from(i)]) <= most);
            mask &= mask - 1;
        }
    }
    &found[..len]
}

/// Bit `i` is set where the key of `block[i]` is greater than `bound`.
///
/// Nearly the whole time of a selection is spent here. The compiler vectorises four lanes side by
/// side with constant bits (instead of shifted ones) on any x86-64.
#[inline]
fn above(block: &[f32; BLOCK], bound: i32) -> u32 {
    let mut lanes = [0_u32; 4];
    for (i, four) in block.as_chunks::<4>().0.iter().enumerate() {
        for (j, (lane, &x)) in lanes.iter_mut().zip(four).enumerate() {
            *lane |= if key(x) > bound { 1 << (4 * i + j) } else { 0 };
        }
    }
    lanes[0] | lanes[1] | lanes[2] | lanes[3]
}

/// The magnitude of `x` as an integer with the same order: -0 equals 0, denormals keep their order,
/// a NaN is above infinity. It is never negative.
#[inline]
pub(super) fn key(x: f32) -> i32 {
    (x.to_bits() & 0x7fff_ffff) as i32
}

/// The number of `values`. Positions must fit into 32 bits.
fn checked_len(values: &[f32]) -> u32 {
    match u32::try_from(values.len()) {
        Ok(len) => len,
        Err(_) => panic!("{} elements in a bucket: positions are 32 bits wide", values.len()),
    }
}

/// K = ⌈`share` · `n`⌉, for a `share` in (0, 1]: at least 1 unless `n` is 0, never above `n`.
///
/// If the product differs from an integer by no more than the rounding of `share` to an f32, K is
/// that integer: 0.05 as an f32 is a little more than 5 %, but 5 % of 100 are 5. From K = 2²³ on,
/// where an f32 cannot resolve single elements, K is the nearest integer.
pub fn count_of_share(share: f32, n: usize) -> usize {
    let product = f64::from(share) * n as f64;
    let nearest = product.round();
    let rounding = product * f64::from(f32::EPSILON / 2.0);
    let count = if (product - nearest).abs() <= rounding { nearest } else { product.ceil() };
    (count as usize).max(1).min(n)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn top_k(values: &[f32], k: usize) -> Vec<u32> {
        let mut indices = vec![7; 3];
        Selector::default().top_k(values, k, &mut indices);
        indices
    }

    fn at_least(values: &[f32], threshold: f32) -> Vec<u32> {
        let mut indices = vec![7; 3];
        Selector::default().at_least(values, threshold, &mut indices);
        indices
    }

    /// The definition: a stable sort by magnitude, descending, and the first `k` of it.
    fn top_k_by_sort(values: &[f32], k: usize) -> Vec<u32> {
        let mut indices: Vec<u32> = (0..values.len() as u32).collect();
        indices.sort_by_key(|&i| std::cmp::Reverse(key(values[i as usize])));
        indices.truncate(k);
        indices.sort_unstable();
        indices
    }

    fn at_least_by_definition(values: &[f32], threshold: f32) -> Vec<u32> {
        let at_least = |i: &u32| values[*i as usize].abs() >= threshold;
        (0..values.len() as u32).filter(at_least).collect()
    }

    /// Sums of uniform numbers: many small, few large, both signs.
    fn gradient(len: usize, seed: u64) -> Vec<f32> {
        let mut state = seed | 1;
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..len).map(|_| (0..4).map(|_| uniform()).sum()).collect()
    }

    /// Numbers with all special values, each often and more than once.
    fn number() -> impl Strategy<Value = f32> {
        prop_oneof![
            4 => -1.0_f32..1.0,
            2 => (-2_i8..=2).prop_map(f32::from),
            1 => prop::sample::select(vec![
                0.0, -0.0, 1e-45, -1e-45, 1e-40, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY,
                f32::NEG_INFINITY, f32::NAN,
            ]),
            1 => any::<u32>().prop_map(f32::from_bits),
        ]
    }

    fn numbers() -> impl Strategy<Value = Vec<f32>> {
        let around = |len: usize| prop::collection::vec(number(), len - 2..len + 3);
        prop_oneof![
            prop::collection::vec(number(), 0..100),
            around(BLOCK),
            around(2 * BLOCK),
            around(CHUNK),
            prop::collection::vec((-2_i8..=2).prop_map(f32::from), 0..200),
            prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..200),
        ]
    }

    proptest! {
        #[test]
        fn top_k_is_what_a_sort_gives(values in numbers(), share in 0.0..1.1) {
            let k = (values.len() as f64 * share) as usize;
            prop_assert_eq!(top_k(&values, k), top_k_by_sort(&values, k));
        }

        #[test]
        fn at_least_is_what_a_comparison_of_each_gives(
            values in numbers(),
            threshold in number(),
            from_values in any::<Option<prop::sample::Index>>(),
        ) {
            let threshold = match from_values {
                Some(index) if !values.is_empty() => index.get(&values).abs(),
                _ => threshold,
            };
            prop_assert_eq!(at_least(&values, threshold), at_least_by_definition(&values, threshold));
        }

        #[test]
        fn a_mask_has_the_bits_of_its_definition(
            block in prop::collection::vec(number(), BLOCK),
            bound in prop_oneof![Just(NO_BOUND), Just(i32::MAX), number().prop_map(key)],
        ) {
            let block: [f32; BLOCK] = block.try_into().unwrap();
            let bits = block.iter().enumerate().map(|(i, &x)| u32::from(key(x) > bound) << i);
            prop_assert_eq!(above(&block, bound), bits.sum::<u32>());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn lengths_where_the_search_changes(
            base in prop::sample::select(vec![CHUNK, ROOM, SAMPLED_FROM, 2 * SAMPLED_FROM]),
            extra in 0..3_usize,
            share in prop::sample::select(vec![0.0, 0.001, 0.01, 0.3, 0.9, 1.0]),
            distinct in prop::option::of(1..4_u8),
            seed in any::<u64>(),
        ) {
            let mut values = gradient(base + extra - 1, seed);
            if let Some(distinct) = distinct {
                values.iter_mut().for_each(|x| *x = (*x * f32::from(distinct)).round());
            }
            let k = (values.len() as f64 * share) as usize;
            prop_assert_eq!(top_k(&values, k), top_k_by_sort(&values, k));
        }
    }

    #[test]
    fn keys_order_like_magnitudes() {
        let ascending =
            [0.0, 1e-45, 1e-40, f32::MIN_POSITIVE, 1.0, f32::MAX, f32::INFINITY, f32::NAN];
        assert!(ascending.is_sorted_by(|&a, &b| key(a) < key(b)));
        assert!(ascending.iter().all(|&x| key(x) == key(-x) && key(x) >= 0));
    }

    #[test]
    fn a_nan_is_sent_first_and_is_at_least_nothing() {
        let values = [f32::INFINITY, 1.0, -f32::NAN, f32::NEG_INFINITY];
        assert_eq!(top_k(&values, 1), [2]);
        assert_eq!(top_k(&values, 2), [0, 2]);
        assert_eq!(at_least(&values, f32::INFINITY), [0, 3]);
        assert_eq!(at_least(&values, -1.0), [0, 1, 3]);
        assert!(at_least(&values, f32::NAN).is_empty());
    }

    #[test]
    fn a_million_elements_as_a_sort_gives_them() {
        let values = gradient(1_000_003, 1);
        let mut order: Vec<u32> = (0..values.len() as u32).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(key(values[i as usize])));
        for k in [1, 10, 1_000, 10_000, 500_000, 1_000_002] {
            let mut expected = order[..k].to_vec();
            expected.sort_unstable();
            assert!(top_k(&values, k) == expected, "K = {k}");
        }
    }

    #[test]
    fn orders_and_plateaus_that_a_sample_says_little_about() {
        const LEN: usize = 2 * SAMPLED_FROM + 5;
        let ascending: Vec<f32> = (0..LEN).map(|i| i as f32).collect();
        let descending: Vec<f32> = ascending.iter().rev().copied().collect();
        let mut one_block = gradient(LEN, 3);
        one_block[40_000..40_700].iter_mut().for_each(|x| *x *= 1e6);
        let mut nearly_zero = vec![0.0; LEN];
        nearly_zero[LEN - 3..].fill(-1e-45);
        let cases = [ascending, descending, one_block, nearly_zero, vec![1.0; LEN], vec![0.0; LEN]];
        for (case, values) in cases.iter().enumerate() {
            for k in [1, 2, 655, 700, 4_000, 60_000] {
                assert!(top_k(values, k) == top_k_by_sort(values, k), "case {case}, K = {k}");
            }
        }
    }

    #[test]
    fn a_sample_that_misleads_changes_no_result() {
        const LEN: usize = 4 * SAMPLED_FROM;
        let size = SAMPLE.min(LEN / 16);
        let seen: HashSet<usize> = (0..size).map(|i| sample_place(i, size, LEN)).collect();
        let quiet = gradient(LEN, 5);
        let loud = |in_sample: bool| -> Vec<f32> {
            let scale = |i| if seen.contains(&i) == in_sample { 1e3 } else { 1.0 };
            quiet.iter().enumerate().map(|(i, &x)| x * scale(i)).collect()
        };

        // The sample sees only large elements, and there are fewer than K of them: the bound is too
        // high.
        let (values, k) = (loud(true), LEN / 4);
        let mut selector = Selector::default();
        let mut indices = Vec::new();
        let bound = selector.likely_bound(&values, k);
        selector.gather(&values, k, bound, &mut indices);
        assert!(indices.len() < k, "this sample does not mislead");
        assert!(top_k(&values, k) == top_k_by_sort(&values, k));

        // The sample sees only small elements: nearly all elements are candidates.
        let (values, k) = (loud(false), LEN / 100);
        let bound = selector.likely_bound(&values, k);
        assert!(values.iter().filter(|&&x| key(x) > bound).count() > LEN / 2);
        assert!(top_k(&values, k) == top_k_by_sort(&values, k));
    }

    #[test]
    fn candidates_stay_few_when_each_element_beats_all_before_it() {
        let values: Vec<f32> = (0..40 * CHUNK).map(|i| i as f32).collect();
        let k = 100;
        let (mut selector, mut indices) = (Selector::default(), Vec::new());
        selector.gather(&values, k, NO_BOUND, &mut indices);
        assert!(indices.iter().map(|&i| i as usize).eq(values.len() - k..values.len()));
        assert!(selector.keys.capacity() <= 2 * (ROOM + CHUNK), "{}", selector.keys.capacity());
    }

    #[test]
    fn scratch_memory_leaves_no_trace() {
        let (mut selector, mut indices) = (Selector::default(), Vec::new());
        for (len, k) in [(70_000, 900), (10, 3), (0, 1), (40_000, 39_999), (5, 0), (70_000, 7)] {
            let values = gradient(len, len as u64);
            selector.top_k(&values, k, &mut indices);
            assert!(indices == top_k_by_sort(&values, k), "{k} of {len}");
            selector.at_least(&values, 0.7, &mut indices);
            assert!(indices == at_least_by_definition(&values, 0.7), "{len}");
        }
    }

    #[test]
    fn samples_are_taken_everywhere_and_never_twice() {
        for (size, len) in [(8, 128), (4096, 65_537), (SAMPLE, 25_000_000), (SAMPLE, 4_294_967_295)]
        {
            let places: Vec<usize> = (0..size).map(|i| sample_place(i, size, len)).collect();
            assert!(places.is_sorted_by(|a, b| a < b));
            let part = |place: usize| (place as u128 * size as u128 / len as u128) as usize;
            assert!(places.iter().enumerate().all(|(i, &p)| part(p).abs_diff(i) <= 1 && p < len));
        }
    }

    #[test]
    fn a_share_means_what_was_typed() {
        assert_eq!(count_of_share(0.05, 100), 5);
        assert_eq!(count_of_share(0.07, 100), 7);
        assert_eq!(count_of_share(0.01, 431_080), 4_311);
        assert_eq!(count_of_share(0.001, 25_000_000), 25_000);
        assert_eq!(count_of_share(1e-30, 5), 1);
        assert_eq!(count_of_share(f32::MIN_POSITIVE / 2.0, 1), 1);
        for n in [0, 1, 2, 1_000_003, u32::MAX as usize] {
            assert_eq!(count_of_share(1.0, n), n);
            assert_eq!(count_of_share(2.0, n), n);
        }
        assert_eq!(count_of_share(0.5, 0), 0);
    }

    #[test]
    fn decimal_shares_are_counted_exactly() {
        for thousandths in 1..1_000 {
            let share: f32 = format!("0.{thousandths:03}").parse().unwrap();
            for n in 1..300 {
                assert_eq!(count_of_share(share, n), (thousandths * n).div_ceil(1_000));
                // A product that is an integer is kept, up to the precision of an f32.
                let whole = thousandths * n * 23;
                assert_eq!(count_of_share(share, 1_000 * n * 23), whole, "{share}");
            }
        }
    }
}
