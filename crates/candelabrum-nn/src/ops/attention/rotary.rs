//! Rotary position embedding (Su et al., "RoFormer", arXiv:2104.09864), in LLaMA's order: element `i`
//! of the first half of a head and element `i` of the second half are the two coordinates that turn by
//! `position * base^(-2i / D)`.

use std::sync::OnceLock;

use candle_core::{Device, Result, Tensor, bail};

use super::geometry::AttentionGeometry;
use crate::kernels::float::Float;
use crate::kernels::mat_mut::MatMut;

/// Rotary position embedding of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary {
    /// The base of the wavelengths, 10,000 in the paper.
    pub base: f64,
    /// The position of the first key.
    pub offset: usize,
}

impl Default for Rotary {
    /// The paper's base, from position 0.
    fn default() -> Self {
        Self { base: 10_000.0, offset: 0 }
    }
}

/// The cosine and the sine of each position's angles.
#[derive(Debug)]
pub(crate) struct Table {
    rotary: Rotary,
    positions: usize,
    half: usize,
    /// How far the first query is behind the first key.
    shift: usize,
    /// For each position the cosines, and then the sines. The kernels of a GPU do not use them.
    values: OnceLock<Vec<f64>>,
}

impl Table {
    pub(super) fn new(rotary: Rotary, geometry: &AttentionGeometry, name: &str) -> Result<Self> {
        let (base, dim) = (rotary.base, geometry.dim);
        if !dim.is_multiple_of(2) {
            bail!("{name}: heads of odd size {dim} have no halves to rotate");
        }
        if !(base.is_finite() && base > 0.0) {
            bail!("{name}: base {base} of the rotary embedding is not a positive number");
        }
        let shift = if geometry.causal { geometry.keys - geometry.queries } else { 0 };
        let positions = geometry.keys.max(geometry.queries);
        Ok(Self { rotary, positions, half: dim / 2, shift, values: OnceLock::new() })
    }

    fn values(&self) -> &[f64] {
        self.values.get_or_init(|| {
            let Rotary { base, offset } = self.rotary;
            let dim = 2 * self.half;
            let speeds = (0..self.half).map(|i| base.powf(-2.0 * i as f64 / dim as f64));
            let speeds: Vec<f64> = speeds.collect();
            let mut values = Vec::with_capacity(dim * self.positions);
            for position in 0..self.positions {
                let angles = speeds.iter().map(|speed| (offset + position) as f64 * speed);
                values.extend(angles.clone().map(f64::cos));
                values.extend(angles.map(f64::sin));
            }
            values
        })
    }

    pub(crate) fn rotary(&self) -> Rotary {
        self.rotary
    }

    /// The number of positions.
    pub(crate) fn positions(&self) -> usize {
        self.positions
    }

    /// The cosines and sines of a key, or of a query with [`Self::shift`] added to its number.
    #[inline(always)]
    fn at(&self, position: usize) -> (&[f64], &[f64]) {
        self.values()[2 * self.half * position..][..2 * self.half].split_at(self.half)
    }

    /// The position of the first query among those of the keys.
    pub(super) fn shift(&self) -> usize {
        self.shift
    }

    /// `out = R x` for the row at `position`.
    #[inline(always)]
    pub(super) fn rotate<T: Float>(&self, position: usize, x: &[T], out: &mut [T]) {
        let (cosines, sines) = self.at(position);
        let ((x1, x2), (y1, y2)) = (x.split_at(self.half), out.split_at_mut(self.half));
        let angles = cosines.iter().zip(sines);
        for (((y1, y2), (&x1, &x2)), (&c, &s)) in
            y1.iter_mut().zip(y2).zip(x1.iter().zip(x2)).zip(angles)
        {
            let (c, s) = (T::narrow(c), T::narrow(s));
            (*y1, *y2) = (x1 * c - x2 * s, x2 * c + x1 * s);
        }
    }

    /// Turns the rows of `gradients` back. The first one has this position.
    #[inline(always)]
    pub(super) fn turn_back<T: Float>(&self, first: usize, mut gradients: MatMut<'_, T>) {
        for row in 0..gradients.rows() {
            let (cosines, sines) = self.at(first + row);
            let (g1, g2) = gradients.row(row).split_at_mut(self.half);
            for ((g1, g2), (&c, &s)) in g1.iter_mut().zip(g2).zip(cosines.iter().zip(sines)) {
                let (c, s) = (T::narrow(c), T::narrow(s));
                (*g1, *g2) = (*g1 * c + *g2 * s, *g2 * c - *g1 * s);
            }
        }
    }

    /// `xs` (N, heads, rows, D) with its rows rotated, by candle's operations. The first row has the
    /// position `first`.
    pub(super) fn composite(&self, xs: &Tensor, first: usize) -> Result<Tensor> {
        let rows = xs.dim(2)?;
        let angles = &self.values()[2 * self.half * first..][..2 * self.half * rows];
        let angles = Tensor::from_slice(angles, (rows, 2, self.half), &Device::Cpu)?;
        let angles = angles.to_dtype(xs.dtype())?.to_device(xs.device())?;
        let (c, s) = (angles.narrow(1, 0, 1)?.squeeze(1)?, angles.narrow(1, 1, 1)?.squeeze(1)?);
        let (x1, x2) = (xs.narrow(3, 0, self.half)?, xs.narrow(3, self.half, self.half)?);
        let y1 = (x1.broadcast_mul(&c)? - x2.broadcast_mul(&s)?)?;
        let y2 = (x2.broadcast_mul(&c)? + x1.broadcast_mul(&s)?)?;
        Tensor::cat(&[y1, y2], 3)
    }
}
