//! Broadcasting, by NumPy's rules: a dimension of length 1, or a missing one on the left, is
//! repeated. The gradient of a repeated operand is the sum over the repetitions.

use candle_core::{Result, Shape};
use rayon::prelude::*;

use crate::kernels::column_sums::{column_sums, pairwise};
use crate::kernels::elementwise;
use crate::kernels::float::Float;
use crate::kernels::parallel::{for_each, in_blocks, worth_threads};
use crate::kernels::scratch::Pooled;
use candelabrum_memory::simd::simd;

/// How two operands make one result.
#[derive(Debug)]
pub(super) struct Broadcast {
    shape: Shape,
    /// The dimensions of the result, neighbours merged where the operands allow it.
    dims: Vec<BroadcastDim>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BroadcastDim {
    len: usize,
    /// Which operands have this dimension. The others are repeated along it.
    has: [bool; 2],
    /// How far a step moves in each operand.
    steps: [usize; 2],
}

impl Broadcast {
    /// # Errors
    /// Shapes that do not fit. The error names them and the operation.
    pub(super) fn new(left: &Shape, right: &Shape, op: &'static str) -> Result<Self> {
        let shape = left.broadcast_shape_binary_op(right, op)?;
        let mut dims: Vec<BroadcastDim> = Vec::new();
        for (number, &len) in shape.dims().iter().enumerate().filter(|(_, len)| **len != 1) {
            let from_the_end = shape.rank() - number;
            let has = [left, right].map(|operand| {
                let of = operand.rank().checked_sub(from_the_end).map(|dim| operand.dims()[dim]);
                of == Some(len)
            });
            match dims.last_mut() {
                Some(outer) if outer.has == has => outer.len *= len,
                _ => dims.push(BroadcastDim { len, has, steps: [0; 2] }),
            }
        }
        let mut steps = [1; 2];
        for dim in dims.iter_mut().rev() {
            for (operand, step) in steps.iter_mut().enumerate() {
                if dim.has[operand] {
                    dim.steps[operand] = *step;
                    *step *= dim.len;
                }
            }
        }
        Ok(Self { shape, dims })
    }

    /// The shape of the result.
    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Whether operand 0 or 1 is repeated.
    pub(super) fn repeats(&self, operand: usize) -> bool {
        self.dims.iter().any(|dim| !dim.has[operand])
    }

    /// `zs = f(left, right)`, then `finish` for each block of the result.
    pub(super) fn combine<T: Float, B: Copy + Sync>(
        &self,
        (left, right): (&[T], &[B]),
        zs: &mut [T],
        f: impl Fn(T, B) -> T + Copy + Sync,
        finish: impl Fn(&mut [T]) + Sync,
    ) {
        let Some((inner, outer)) = self.dims.split_last() else {
            if let ([z], [x, ..], [y, ..]) = (&mut *zs, left, right) {
                *z = f(*x, *y);
                finish(zs);
            }
            return;
        };
        in_blocks(zs, |start, block| {
            let (mut row, mut column) = (start / inner.len, start % inner.len);
            let mut rest = &mut *block;
            while !rest.is_empty() {
                let (zs, after) = rest.split_at_mut(rest.len().min(inner.len - column));
                let [x, y] = offsets(outer, row);
                let xs = &left[x + column * inner.steps[0]..];
                let ys = &right[y + column * inner.steps[1]..];
                match inner.has {
                    [true, true] => run(zs, &xs.iter().zip(ys), |(&x, &y)| f(x, y)),
                    [true, false] => {
                        let y = ys[0];
                        run(zs, &xs.iter(), |&x| f(x, y));
                    }
                    _ => {
                        let x = xs[0];
                        run(zs, &ys.iter(), |&y| f(x, y));
                    }
                }
                (rest, row, column) = (after, row + 1, 0);
            }
            finish(block);
        });
    }

    /// `zs = dzs * values`, where `values` are operand 0 or 1 and `dzs` has the shape of the result.
    pub(super) fn times<T: Float>(&self, dzs: &[T], operand: usize, values: &[T], zs: &mut [T]) {
        let with_result = |dim: &BroadcastDim| {
            let steps = [0, dim.steps[operand]];
            BroadcastDim { len: dim.len, has: [true, dim.has[operand]], steps }
        };
        let mut dims: Vec<BroadcastDim> = self.dims.iter().map(with_result).collect();
        let mut step = 1;
        for dim in dims.iter_mut().rev() {
            dim.steps[0] = step;
            step *= dim.len;
        }
        let whole = Self { shape: self.shape.clone(), dims };
        whole.combine((dzs, values), zs, |dz, value| dz * value, |_| {});
    }

    /// Writes the gradient of operand 0 or 1 from that of the result: the sum over the repetitions,
    /// in an order that depends only on the shapes.
    pub(super) fn sum_to<T: Float>(&self, operand: usize, dzs: &[T], gradient: &mut [T]) {
        let mut groups: Vec<(usize, bool)> = Vec::new();
        for dim in &self.dims {
            match groups.last_mut() {
                Some((len, has)) if *has == dim.has[operand] => *len *= dim.len,
                _ => groups.push((dim.len, dim.has[operand])),
            }
        }
        if dzs.is_empty() {
            return gradient.fill(T::zero());
        }
        sums(&groups, dzs, gradient);
    }
}

/// Where a row begins in both operands.
fn offsets(outer: &[BroadcastDim], mut row: usize) -> [usize; 2] {
    let mut offsets = [0; 2];
    for dim in outer.iter().rev() {
        let index = row % dim.len;
        row /= dim.len;
        offsets[0] += index * dim.steps[0];
        offsets[1] += index * dim.steps[1];
    }
    offsets
}

#[inline(always)]
fn run<T: Float, I: Iterator + Clone>(zs: &mut [T], operands: &I, f: impl Fn(I::Item) -> T) {
    simd(
        #[inline(always)]
        || {
            for (z, operand) in zs.iter_mut().zip(operands.clone()) {
                *z = f(operand);
            }
        },
    );
}

/// Sums over the groups of dimensions that are not kept. Kept and other groups take turns.
fn sums<T: Float>(groups: &[(usize, bool)], xs: &[T], sum: &mut [T]) {
    match *groups {
        [] => sum.copy_from_slice(xs),
        [(_, true)] => in_blocks(sum, |start, part| {
            part.copy_from_slice(&xs[start..][..part.len()]);
        }),
        [(_, false)] => sum[0] = total(xs),
        [(_, false), (_, true)] => column_sums(xs, sum),
        [(len, true), ref inner @ ..] => {
            let (x_len, sum_len) = (xs.len() / len, sum.len() / len);
            let one = |(xs, sum): (&[T], &mut [T])| sums(inner, xs, sum);
            let threads = worth_threads(xs.len());
            for_each(threads, xs.par_chunks(x_len).zip(sum.par_chunks_mut(sum_len)), one);
        }
        [(len, false), ref inner @ ..] => {
            let mut parts = Pooled::new(len * sum.len());
            let outer = (len, true);
            sums(&[&[outer], inner].concat(), xs, &mut parts);
            column_sums(&parts, sum);
        }
    }
}

/// The sum of all elements, pairwise over blocks.
fn total<T: Float>(xs: &[T]) -> T {
    const BLOCK: usize = 1 << 12;
    let mut sums = vec![T::zero(); xs.len().div_ceil(BLOCK)];
    let blocks = xs.par_chunks(BLOCK).zip(&mut sums);
    for_each(worth_threads(xs.len()), blocks, |(block, sum)| {
        *sum = simd(
            #[inline(always)]
            || elementwise::sum(block),
        );
    });
    pairwise(&mut sums, 1);
    sums.first().copied().unwrap_or_else(T::zero)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(left: &[usize], right: &[usize]) -> Vec<(usize, [bool; 2], [usize; 2])> {
        let broadcast = Broadcast::new(&left.into(), &right.into(), "test").expect("they fit");
        broadcast.dims.iter().map(|dim| (dim.len, dim.has, dim.steps)).collect()
    }

    #[test]
    fn neighbours_are_merged_where_both_operands_allow_it() {
        let both = [true, true];
        assert_eq!(dims(&[2, 3, 4], &[2, 3, 4]), [(24, both, [1, 1])]);
        assert_eq!(dims(&[2, 3, 4], &[3, 4]), [(2, [true, false], [12, 0]), (12, both, [1, 1])]);
        assert_eq!(
            dims(&[2, 1, 4], &[5, 1]),
            [(2, [true, false], [4, 0]), (5, [false, true], [0, 1]), (4, [true, false], [1, 0])]
        );
        assert_eq!(dims(&[1, 1], &[1]), []);
        assert_eq!(dims(&[6, 1, 7], &[1]), [(42, [true, false], [1, 0])]);
    }
}
