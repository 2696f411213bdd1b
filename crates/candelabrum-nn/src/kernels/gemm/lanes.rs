//! Numbers in the vectors of this processor.

use pulp::Simd;

/// An element type of which a vector register holds several.
pub(crate) trait VectorLanes: Copy + Sized {
    /// A vector of the instruction set `S`.
    type Vector<S: Simd>: Copy;
    const ZERO: Self;

    /// The number of elements in a vector.
    #[inline(always)]
    fn lanes<S: Simd>() -> usize {
        size_of::<Self::Vector<S>>() / size_of::<Self>()
    }

    /// A vector of equal elements.
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Vector<S>;
    #[inline(always)]
    fn zero_vector<S: Simd>(simd: S) -> Self::Vector<S> {
        Self::splat(simd, Self::ZERO)
    }

    /// The whole vectors of a slice, from its first element on. No alignment is needed.
    fn vectors<S: Simd>(values: &[Self]) -> &[Self::Vector<S>];
    /// As [`vectors`](Self::vectors), to write them.
    fn vectors_mut<S: Simd>(values: &mut [Self]) -> &mut [Self::Vector<S>];
    fn plus<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    fn minus<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// The sum of the elements.
    fn total<S: Simd>(simd: S, values: Self::Vector<S>) -> Self;
    /// `a b + c`, rounded once where the processor can.
    fn times_plus<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;
}

macro_rules! impl_lanes {
    ($float:ident, $vector:ident, $splat:ident, $vectors:ident, $vectors_mut:ident, $plus:ident,
     $minus:ident, $total:ident, $times_plus:ident) => {
        impl VectorLanes for $float {
            type Vector<S: Simd> = S::$vector;
            const ZERO: Self = 0.0;

            #[inline(always)]
            fn splat<S: Simd>(simd: S, value: Self) -> S::$vector {
                simd.$splat(value)
            }

            #[inline(always)]
            fn vectors<S: Simd>(values: &[Self]) -> &[S::$vector] {
                S::$vectors(values).0
            }

            #[inline(always)]
            fn vectors_mut<S: Simd>(values: &mut [Self]) -> &mut [S::$vector] {
                S::$vectors_mut(values).0
            }

            #[inline(always)]
            fn plus<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$plus(a, b)
            }

            #[inline(always)]
            fn minus<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
                simd.$minus(a, b)
            }

            #[inline(always)]
            fn total<S: Simd>(simd: S, values: S::$vector) -> Self {
                simd.$total(values)
            }

            #[inline(always)]
            fn times_plus<S: Simd>(
                simd: S,
                a: S::$vector,
                b: S::$vector,
                c: S::$vector,
            ) -> S::$vector {
                simd.$times_plus(a, b, c)
            }
        }
    };
}

impl_lanes!(
    f32,
    f32s,
    splat_f32s,
    as_simd_f32s,
    as_mut_simd_f32s,
    add_f32s,
    sub_f32s,
    reduce_sum_f32s,
    mul_add_e_f32s
);
impl_lanes!(
    f64,
    f64s,
    splat_f64s,
    as_simd_f64s,
    as_mut_simd_f64s,
    add_f64s,
    sub_f64s,
    reduce_sum_f64s,
    mul_add_e_f64s
);
