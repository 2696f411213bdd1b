//! Loops with much arithmetic over memory that is not in a cache.
//!
//! A processor reads ahead as far as its window of instructions reaches. Dozens of instructions for each cache line leave
//! room for few lines, so the time of the arithmetic and the time of memory add up. Here each line is requested long before
//! the loop needs it (docs/log/2026-11-29-amx.md).

#[cfg(not(target_arch = "x86_64"))]
#[path = "plain.rs"]
mod request;
#[cfg(target_arch = "x86_64")]
#[path = "x86.rs"]
mod request;

use self::request::request_behind;

/// The elements between two requests for each slice.
const STEP: usize = 64;

/// Calls `f` with each element of `xs` and those of `others` at the same place. The others may be longer.
#[inline(always)]
pub(crate) fn for_each_with<T: Copy, const N: usize>(
    xs: &mut [T],
    others: [&[T]; N],
    f: impl Fn(&mut T, [T; N]),
) {
    let others = others.map(|ys| ys[..xs.len()].as_chunks::<STEP>());
    let (xs, x_rest) = xs.as_chunks_mut::<STEP>();
    for (number, xs) in xs.iter_mut().enumerate() {
        let others = others.map(|(ys, _)| &ys[number]);
        request_behind(xs);
        others.iter().for_each(|ys| request_behind(*ys));
        for (place, x) in xs.iter_mut().enumerate() {
            f(x, others.map(|ys| ys[place]));
        }
    }
    for (place, x) in x_rest.iter_mut().enumerate() {
        f(x, others.map(|(_, ys)| ys[place]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_visited_once() {
        for len in [0, 1, STEP - 1, STEP, STEP + 1, 3 * STEP + 5] {
            let ys: Vec<usize> = (0..len + 7).collect();
            let mut xs = ys[..len].to_vec();
            for_each_with(&mut xs, [&ys], |x, [y]| *x = 10 * *x + y);
            for_each_with(&mut xs, [&ys, &ys], |x, [y, z]| *x += 100 * y + 1000 * z);
            assert!(xs.iter().enumerate().all(|(index, &x)| x == 1111 * index), "{len}");
        }
    }
}
