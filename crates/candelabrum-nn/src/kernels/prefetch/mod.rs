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

/// Calls `f` with each element of `xs` and the one of `ys` at the same place. `ys` may be longer.
#[inline(always)]
pub(crate) fn for_each_pair<A, B>(xs: &mut [A], ys: &[B], f: impl Fn(&mut A, &B)) {
    let (ys, y_rest) = ys[..xs.len()].as_chunks::<STEP>();
    let (xs, x_rest) = xs.as_chunks_mut::<STEP>();
    for (xs, ys) in xs.iter_mut().zip(ys) {
        request_behind(xs);
        request_behind(ys);
        xs.iter_mut().zip(ys).for_each(|(x, y)| f(x, y));
    }
    x_rest.iter_mut().zip(y_rest).for_each(|(x, y)| f(x, y));
}

/// Calls `f` with each element of `xs` and those of `ys` and `zs` at the same place. `ys` and `zs` may be longer.
#[inline(always)]
pub(crate) fn for_each_triple<A, B, C>(
    xs: &mut [A],
    ys: &[B],
    zs: &[C],
    f: impl Fn(&mut A, &B, &C),
) {
    let (ys, y_rest) = ys[..xs.len()].as_chunks::<STEP>();
    let (zs, z_rest) = zs[..xs.len()].as_chunks::<STEP>();
    let (xs, x_rest) = xs.as_chunks_mut::<STEP>();
    for ((xs, ys), zs) in xs.iter_mut().zip(ys).zip(zs) {
        request_behind(xs);
        request_behind(ys);
        request_behind(zs);
        xs.iter_mut().zip(ys).zip(zs).for_each(|((x, y), z)| f(x, y, z));
    }
    x_rest.iter_mut().zip(y_rest).zip(z_rest).for_each(|((x, y), z)| f(x, y, z));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_visited_once() {
        for len in [0, 1, STEP - 1, STEP, STEP + 1, 3 * STEP + 5] {
            let ys: Vec<usize> = (0..len + 7).collect();
            let mut xs = ys[..len].to_vec();
            for_each_pair(&mut xs, &ys, |x, &y| *x = 10 * *x + y);
            for_each_triple(&mut xs, &ys, &ys, |x, &y, &z| *x += 100 * y + 1000 * z);
            assert!(xs.iter().enumerate().all(|(index, &x)| x == 1111 * index), "{len}");
        }
    }
}
