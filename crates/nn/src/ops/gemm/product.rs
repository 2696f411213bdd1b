//! A matrix product as a function of its own: its code is long.

use pulp::{Simd, WithSimd};

use super::lanes::Lanes;
use super::tile::{Left, Right, Rows, Size, product};

/// `out = left right`, or `out += left right` if `add`: see [`product`].
pub(in crate::ops) struct Product<'a, T, R> {
    pub(in crate::ops) size: Size,
    pub(in crate::ops) left: Left<'a, T>,
    pub(in crate::ops) right: R,
    pub(in crate::ops) out: Rows<&'a mut [T]>,
    pub(in crate::ops) add: bool,
}

impl<T: Lanes, R: Right<T>> WithSimd for Product<'_, T, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { size, left, right, mut out, add } = self;
        product(simd, size, left, right, &mut out, add);
    }
}
