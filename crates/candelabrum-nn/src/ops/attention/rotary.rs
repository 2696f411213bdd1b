//! Rotary position embedding (Su et al., "RoFormer", arXiv:2104.09864), in LLaMA's order: element `i`
//! of the first half of a head and element `i` of the second half are the two coordinates that turn by
//! `position * base^(-2i / D)`.

use std::f64::consts::TAU;
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
    /// The change of the wavelengths for longer sequences than those of the first training.
    pub scaling: RotaryScaling,
}

impl Rotary {
    /// With another base than the paper's, from position 0.
    pub fn new(base: f64) -> Self {
        Self { base, offset: 0, scaling: RotaryScaling::None }
    }
}

impl Default for Rotary {
    /// The paper's base, from position 0.
    fn default() -> Self {
        Self::new(10_000.0)
    }
}

/// How a model was made fit for longer sequences: some elements of a head turn more slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum RotaryScaling {
    /// All elements turn as in the paper.
    #[default]
    None,
    /// All elements turn `factor` times as slowly (Chen et al., arXiv:2306.15595).
    Linear {
        /// How many times as long the sequences may be.
        factor: f64,
    },
    /// Llama 3's: elements whose wavelength is above `original / low` turn `factor` times as slowly, those below
    /// `original / high` as before, and between both the change is gradual.
    Llama3 {
        /// How many times as slowly the slow elements turn.
        factor: f64,
        /// Hugging Face's `low_freq_factor`.
        low: f64,
        /// Hugging Face's `high_freq_factor`.
        high: f64,
        /// The length of the sequences, in tokens, of the first training.
        original: f64,
    },
    /// YaRN (Peng et al., arXiv:2309.00071): elements that turn less than `slow` times in `original` tokens turn
    /// `factor` times as slowly, those that turn more than `fast` times as before. YaRN also multiplies the scores:
    /// see [`yarn_temperature`](Self::yarn_temperature).
    Yarn {
        /// How many times as slowly the slow elements turn.
        factor: f64,
        /// Hugging Face's `beta_fast`, 32 in the paper.
        fast: f64,
        /// Hugging Face's `beta_slow`, 1 in the paper.
        slow: f64,
        /// The length of the sequences, in tokens, of the first training.
        original: f64,
    },
}

impl RotaryScaling {
    /// YaRN's factor of queries and of keys for sequences that are `factor` times as long: the scores are
    /// multiplied by its square.
    pub fn yarn_temperature(factor: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 }
    }

    /// What makes the scaling meaningless.
    fn fault(self) -> Option<String> {
        let positive = |what: &str, number: f64| {
            let is_one = number.is_finite() && number > 0.0;
            (!is_one).then(|| format!("{what} {number}, which is not a positive number"))
        };
        match self {
            Self::None => None,
            Self::Linear { factor } => positive("the factor", factor),
            Self::Llama3 { factor, low, high, original } => positive("the factor", factor)
                .or_else(|| positive("the original length", original))
                .or_else(|| positive("the low factor", low))
                .or_else(|| {
                    (high <= low).then(|| {
                        format!(
                            "factors {low} and {high}, the second of which is not above the first"
                        )
                    })
                }),
            Self::Yarn { factor, fast, slow, original } => positive("the factor", factor)
                .or_else(|| positive("the original length", original))
                .or_else(|| positive("the fast limit", fast))
                .or_else(|| positive("the slow limit", slow)),
        }
    }

    fn slowing(self, base: f64, dim: usize) -> Slowing {
        match self {
            Self::None => Slowing { factor: 1.0, constant: 1.0, by_speed: 0.0, by_pair: 0.0 },
            Self::Linear { factor } => {
                Slowing { factor, constant: 0.0, by_speed: 0.0, by_pair: 0.0 }
            }
            Self::Llama3 { factor, low, high, original } => {
                let by_speed = original / (TAU * (high - low));
                Slowing { factor, constant: -low / (high - low), by_speed, by_pair: 0.0 }
            }
            Self::Yarn { factor, fast, slow, original } => {
                let pair =
                    |turns: f64| dim as f64 * (original / (turns * TAU)).ln() / (2.0 * base.ln());
                let first = pair(fast).floor().max(0.0);
                let last = pair(slow).ceil().min(dim as f64 - 1.0);
                let width = if first == last { 0.001 } else { last - first };
                let (constant, by_pair) = (1.0 + first / width, -1.0 / width);
                Slowing { factor, constant, by_speed: 0.0, by_pair }
            }
        }
    }
}

/// A [`RotaryScaling`] as numbers: pair `i` of elements, of speed `v`, keeps the share
/// `constant + by_speed v + by_pair i`, within 0 and 1, of its speed, and the rest is divided by the factor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slowing {
    pub(crate) factor: f64,
    pub(crate) constant: f64,
    pub(crate) by_speed: f64,
    pub(crate) by_pair: f64,
}

impl Slowing {
    fn apply(self, pair: usize, speed: f64) -> f64 {
        let kept = self.constant + self.by_speed * speed + self.by_pair * pair as f64;
        let kept = kept.clamp(0.0, 1.0);
        speed * (kept + (1.0 - kept) / self.factor)
    }
}

/// The cosine and the sine of each position's angles.
#[derive(Debug)]
pub(crate) struct RotaryTable {
    rotary: Rotary,
    positions: usize,
    half: usize,
    /// How far the first query is behind the first key.
    shift: usize,
    /// For each position the cosines, and then the sines. The kernels of a GPU do not use them.
    values: OnceLock<Vec<f64>>,
}

impl RotaryTable {
    pub(super) fn new(rotary: Rotary, geometry: &AttentionGeometry, name: &str) -> Result<Self> {
        let (base, dim) = (rotary.base, geometry.dim);
        if !dim.is_multiple_of(2) {
            bail!("{name}: heads of odd size {dim} have no halves to rotate");
        }
        if !(base.is_finite() && base > 0.0) {
            bail!("{name}: base {base} of the rotary embedding is not a positive number");
        }
        let shift = if geometry.causal { geometry.keys - geometry.queries } else { 0 };
        if let Some(what) = rotary.scaling.fault() {
            bail!("{name}: the scaling of the rotary embedding has {what}");
        }
        let positions = geometry.keys.max(geometry.queries);
        Ok(Self { rotary, positions, half: dim / 2, shift, values: OnceLock::new() })
    }

    fn values(&self) -> &[f64] {
        self.values.get_or_init(|| {
            let Rotary { base, offset, .. } = self.rotary;
            let (dim, slowing) = (2 * self.half, self.slowing());
            let speeds =
                (0..self.half).map(|i| slowing.apply(i, base.powf(-2.0 * i as f64 / dim as f64)));
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

    pub(crate) fn slowing(&self) -> Slowing {
        self.rotary.scaling.slowing(self.rotary.base, 2 * self.half)
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
