//! The transformed weights, and their products with the transformed tiles of images.

use super::planes::Planes;
use super::tiles::{POINTS, Problem};
use super::weights;
use crate::ops::float::Float;
use crate::ops::gemm::bf16::{Finish, Instructions, Lines, Operand, Packed, Starts, product};
use crate::ops::gemm::{Left, Rows, Size};
use crate::ops::mat_mut::MatMut;
use crate::ops::product_precision;
use candelabrum_memory::simd::simd;

/// The points of a kernel that is turned by 180°, as numbers of the kernel's own points.
const TURNED: [usize; POINTS] = {
    const LINE: [usize; 4] = [3, 1, 2, 0];
    let mut points = [0; POINTS];
    let mut i = 0;
    while i < POINTS {
        points[i] = 4 * LINE[i / 4] + LINE[i % 4];
        i += 1;
    }
    points
};

/// The transformed weights: (O × C) for each point, or for kernels turned by 180°, (C × O).
pub(super) struct Kernels<T: Float> {
    planes: Planes<T>,
    turned: bool,
    /// The same in bf16, if products are computed so.
    packed: Option<(Instructions, Vec<Packed>)>,
}

impl<T: Float> Kernels<T> {
    pub(super) fn new(weight: &[T], problem: &Problem, turned: bool) -> Self {
        let (outputs, inputs) = (problem.out_channels, problem.in_channels);
        let mut planes = Planes::new(outputs, inputs);
        simd(
            #[inline(always)]
            || weights::transform(weight, inputs, &mut planes),
        );
        let mut kernels = Self { planes, turned, packed: None };
        let (rows, depth) = if turned { (inputs, outputs) } else { (outputs, inputs) };
        kernels.packed = product_precision::bf16().and_then(|instructions| {
            let pack = |point| {
                let mut packed = Packed::new(rows, depth);
                let from = kernels.operand(point).as_f32s()?;
                packed.pack(instructions, from, 0..rows, 0..depth);
                Some(packed)
            };
            Some((instructions, (0..POINTS).map(pack).collect::<Option<_>>()?))
        });
        kernels
    }

    fn rows(&self, point: usize) -> Rows<&[T]> {
        self.planes.of(if self.turned { TURNED[point] } else { point })
    }

    /// The left factor of the product of a point.
    pub(super) fn left(&self, point: usize) -> Left<'_, T> {
        let Rows { data, step } = self.rows(point);
        if self.turned { Left::Columns { data, step } } else { Left::Rows { data, step } }
    }

    fn operand(&self, point: usize) -> Operand<'_, T> {
        let Rows { data, step } = self.rows(point);
        let lines = Lines { data, starts: Starts::Every(step) };
        if self.turned { Operand::Across(lines) } else { Operand::Along(lines) }
    }

    /// What multiplies in bf16, up to so many tiles at a time.
    pub(super) fn products(&self, tiles: usize) -> Products<'_> {
        let packed = self.packed.as_ref().map(|(instructions, kernels)| {
            let depth = kernels[0].depth();
            (*instructions, &kernels[..], Packed::new(tiles, depth))
        });
        Products(packed)
    }
}

/// Products in bf16 of the transformed weights by tiles: the instructions, the weights of each point, and
/// space for tiles. `None` if products are not computed so.
pub(super) struct Products<'a>(Option<(Instructions, &'a [Packed], Packed)>);

impl Products<'_> {
    /// Multiplies the weights of a point by its tiles, (C × tiles), unless products are not computed in bf16.
    #[inline(always)]
    pub(super) fn multiply<T: Float>(
        &mut self,
        point: usize,
        Size { rows, depth, columns }: Size,
        tiles: Rows<&[T]>,
        out: &mut [T],
        step: usize,
    ) -> bool {
        let Some((instructions, kernels, packed)) = &mut self.0 else { return false };
        let mut out = MatMut::strided(out, rows, columns, step);
        let (Some(data), Some(out)) = (T::f32s(tiles.data), out.as_f32s()) else { return false };
        let tiles = Operand::Across(Lines { data, starts: Starts::Every(tiles.step) });
        packed.pack(*instructions, tiles, 0..columns, 0..depth);
        let finish = Finish { scale: 1.0, add: false };
        product(*instructions, &kernels[point], packed, out, finish);
        true
    }
}
