//! Two parts of which one takes the result: its rank has the other only to read it.

use half::{bf16, f16};

use crate::comm::reduce::{OPS, Reducible, cast_mut, ended, in_place, simd};
use crate::comm::{ElementType, ReduceOp};

/// Writes the reduction of two parts into `own`, which is the first or the second of them. The
/// other's numbers are lost.
pub(super) fn reduce_pair(
    element: ElementType,
    op: ReduceOp,
    own: &mut [u8],
    other: &mut [u8],
    own_is_first: bool,
) {
    match element {
        ElementType::F32 => pair::<f32>(op, own, other, own_is_first),
        ElementType::F16 => pair::<f16>(op, own, other, own_is_first),
        ElementType::Bf16 => pair::<bf16>(op, own, other, own_is_first),
        ElementType::I32 => pair::<i32>(op, own, other, own_is_first),
        ElementType::U8 => pair::<u8>(op, own, other, own_is_first),
        ElementType::F64 => pair::<f64>(op, own, other, own_is_first),
        ElementType::I64 => pair::<i64>(op, own, other, own_is_first),
    }
}

fn pair<T: Reducible>(op: ReduceOp, own: &mut [u8], other: &mut [u8], own_is_first: bool) {
    if !T::PLAIN {
        let mut both = if own_is_first { [own, other] } else { [other, own] };
        return in_place::<T>(op, &mut both);
    }
    let (own, other): (&mut [T], &[T]) = (cast_mut(own), cast_mut(other));
    match (op, own_is_first) {
        (ReduceOp::Sum, true) => pair_by::<T, 0, true>(own, other),
        (ReduceOp::Sum, false) => pair_by::<T, 0, false>(own, other),
        (ReduceOp::Mean, true) => pair_by::<T, 1, true>(own, other),
        (ReduceOp::Mean, false) => pair_by::<T, 1, false>(own, other),
        (ReduceOp::Min, true) => pair_by::<T, 2, true>(own, other),
        (ReduceOp::Min, false) => pair_by::<T, 2, false>(own, other),
        (ReduceOp::Max, true) => pair_by::<T, 3, true>(own, other),
        (ReduceOp::Max, false) => pair_by::<T, 3, false>(own, other),
        (ReduceOp::Product, true) => pair_by::<T, 4, true>(own, other),
        (ReduceOp::Product, false) => pair_by::<T, 4, false>(own, other),
    }
}

fn pair_by<T: Reducible, const OP: usize, const OWN_IS_FIRST: bool>(own: &mut [T], other: &[T]) {
    simd(
        #[inline(always)]
        || {
            for (own, other) in own.iter_mut().zip(other) {
                let (a, b) = if OWN_IS_FIRST {
                    (own.keep(), other.keep())
                } else {
                    (other.keep(), own.keep())
                };
                let x = T::combine(OPS[OP], a, b);
                *own = T::give(ended::<T, OP>(x, 2));
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Element;
    use crate::comm::reduce::reduce_into_all;

    #[test]
    fn either_of_two_parts_can_take_the_result_alone() {
        fn check<T: Element>(value: impl Fn(usize) -> T) {
            let part = |salt: usize| (0..1031).map(|i| value(i * 7 + salt)).collect::<Vec<_>>();
            for op in ReduceOp::ALL {
                let parts = [part(3), part(50)];
                let mut all = parts.clone();
                let mut views = all.each_mut().map(|part| bytemuck::cast_slice_mut(part));
                reduce_into_all(T::TYPE, op, &mut views);
                let [expected, _] = all;
                for own_is_first in [true, false] {
                    let [mut own, mut other] = parts.clone();
                    if !own_is_first {
                        std::mem::swap(&mut own, &mut other);
                    }
                    let (a, b) =
                        (bytemuck::cast_slice_mut(&mut own), bytemuck::cast_slice_mut(&mut other));
                    reduce_pair(T::TYPE, op, a, b, own_is_first);
                    assert_eq!(own, expected, "{op:?}, {own_is_first}");
                }
            }
        }
        check(|x| x as f32 * 0.3);
        check(|x| bf16::from_f32(x as f32 * 0.3));
        check(|x| x as i64);
        check(|x| x as u8);
    }
}
