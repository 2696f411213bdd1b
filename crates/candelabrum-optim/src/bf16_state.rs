//! State vectors in bf16, rounded at random.
//!
//! An average in bf16 has 8 significant bits. Rounded to the nearest number, it would not move where a step
//! changes it by less than a part in 512: with beta2 = 0.999 a second moment would never fall. So it is
//! rounded up with the probability by which it is nearer to the upper number. Its mean over many steps is then
//! the exact average (Gupta et al., ICML 2015, arXiv 1502.02551). The formula itself is computed in f32.
//!
//! The noise is a function of the parameter's name, the step, the vector and the place of the element.
//! It depends neither on threads nor on ranks, so all replicas round alike, and so does a run that
//! continues from a checkpoint. Two numbers lie in one element of a state vector.

use candelabrum_memory::chunks::{Splittable, by_chunks};
use candelabrum_memory::hash::{self, GOLDEN, fnv1a};
use candelabrum_memory::simd::simd;

use crate::parts::{MAX_STATES, ParamParts};
use crate::rule::{StepSettings, UpdateRule};

/// The elements that are computed at a time: their states in f32 fit the first-level cache.
const BLOCK: usize = 512;

/// How the state of a parameter lies in its vectors.
#[derive(Debug)]
pub(crate) struct Packing {
    key: u64,
    /// The lengths of the vectors before they were packed.
    lens: [usize; MAX_STATES],
}

impl Packing {
    /// Of the parameter of this name.
    pub(crate) fn from_name(name: &str) -> Self {
        Self { key: fnv1a(name.bytes()), lens: [0; MAX_STATES] }
    }

    /// Takes the length of vector number `number` and its initial value. Returns the same of the packed vector.
    pub(crate) fn pack(&mut self, number: usize, len: usize, initial: f32) -> (usize, f32) {
        self.lens[number] = len;
        (len.div_ceil(2), twice(initial))
    }

    /// Updates the parameter, whose state is packed.
    pub(crate) fn update<R: UpdateRule>(&self, rule: &R, now: StepSettings, parts: ParamParts<'_>) {
        let ParamParts { value, grad, state } = parts;
        let mut lens = self.lens.into_iter();
        let state: [&mut [u16]; MAX_STATES] =
            state.map(|state| &mut bytemuck::cast_slice_mut(state)[..lens.next().unwrap_or(0)]);
        let noise: [RoundingNoise; MAX_STATES] =
            std::array::from_fn(|number| RoundingNoise::new(self.key, now.step, number as u64));
        let packed = PackedChunk { value, grad, state, first: 0 };
        if rule.is_elementwise() {
            by_chunks(packed, |packed| {
                packed.update_in_blocks(rule, now, noise);
                [0.0; 2]
            });
        } else {
            packed.update_whole(rule, now, noise);
        }
    }
}

/// An element that is twice this number, rounded to the nearest one in bf16.
fn twice(number: f32) -> f32 {
    let bits = number.to_bits();
    let high = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    f32::from_bits(high << 16 | high)
}

/// A parameter, or a chunk of it, with its packed state. `first` is the number of its first element.
struct PackedChunk<'a> {
    value: &'a mut [f32],
    grad: &'a [f32],
    state: [&'a mut [u16]; MAX_STATES],
    first: usize,
}

impl PackedChunk<'_> {
    /// For formulas that treat each element alone.
    fn update_in_blocks<R: UpdateRule>(
        self,
        rule: &R,
        now: StepSettings,
        noise: [RoundingNoise; MAX_STATES],
    ) {
        let Self { value, grad, mut state, first } = self;
        let mut wide = [[0.0; BLOCK]; MAX_STATES];
        for (block, (value, grad)) in value.chunks_mut(BLOCK).zip(grad.chunks(BLOCK)).enumerate() {
            let (start, len) = (block * BLOCK, value.len());
            let mut vectors: [&mut [f32]; MAX_STATES] = Default::default();
            for ((vector, wide), state) in vectors.iter_mut().zip(&mut wide).zip(&state) {
                if !state.is_empty() {
                    *vector = &mut wide[..len];
                    widen(&state[start..start + len], vector);
                }
            }
            rule.update(now, ParamParts { value, grad, state: vectors });
            let state = state.iter_mut().zip(&wide).zip(noise);
            for ((state, wide), noise) in state.filter(|((state, _), _)| !state.is_empty()) {
                noise.narrow(first + start, &wide[..len], &mut state[start..start + len]);
            }
        }
    }

    /// For formulas that need whole vectors, which are copied.
    fn update_whole<R: UpdateRule>(
        self,
        rule: &R,
        now: StepSettings,
        noise: [RoundingNoise; MAX_STATES],
    ) {
        let Self { value, grad, state, first } = self;
        let mut wide = [(); MAX_STATES].map(|()| Vec::new());
        for (wide, state) in wide.iter_mut().zip(&state) {
            wide.resize(state.len(), 0.0);
            widen(state, wide);
        }
        rule.update(
            now,
            ParamParts { value, grad, state: wide.each_mut().map(|wide| &mut wide[..]) },
        );
        for ((wide, state), noise) in wide.iter().zip(state).zip(noise) {
            noise.narrow(first, wide, state);
        }
    }
}

impl Splittable for PackedChunk<'_> {
    fn elements(&self) -> usize {
        self.value.len()
    }

    fn split(self, at: usize) -> (Self, Self) {
        let (value, value_rest) = self.value.split_at_mut(at);
        let (grad, grad_rest) = self.grad.split_at(at);
        let mut rest = [(); MAX_STATES].map(|()| &mut [] as &mut [u16]);
        let mut rests = rest.iter_mut();
        let state = self.state.map(|state| {
            let (head, tail) = state.split_at_mut(at.min(state.len()));
            if let Some(place) = rests.next() {
                *place = tail;
            }
            head
        });
        let first = self.first + at;
        let rest = Self { value: value_rest, grad: grad_rest, state: rest, first };
        (Self { value, grad, state, first: self.first }, rest)
    }
}

fn widen(from: &[u16], to: &mut [f32]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = f32::from_bits(u32::from(from) << 16);
    }
}

/// The noise of one vector in one step.
#[derive(Clone, Copy, Debug)]
struct RoundingNoise {
    key: u64,
}

impl RoundingNoise {
    fn new(parameter: u64, step: u64, vector: u64) -> Self {
        Self { key: mix(mix(mix(parameter) ^ step) ^ vector) }
    }

    /// Rounds numbers, of which the first one is element number `first`.
    fn narrow(self, first: usize, from: &[f32], to: &mut [u16]) {
        simd(
            #[inline(always)]
            || {
                for (place, (to, &from)) in to.iter_mut().zip(from).enumerate() {
                    *to = narrow(from, self.at((first + place) as u64));
                }
            },
        );
    }

    /// 16 bits for an element: counter-based, so that any part of a vector can be rounded alone.
    #[inline(always)]
    fn at(self, element: u64) -> u16 {
        let key = self.key.wrapping_add((element >> 32).wrapping_mul(GOLDEN));
        let once = mix32((element as u32).wrapping_mul(0x9E37_79B9) ^ key as u32);
        (mix32(once ^ (key >> 32) as u32) >> 16) as u16
    }
}

/// Adds the noise to the bits that are cut off.
#[inline(always)]
fn narrow(number: f32, noise: u16) -> u16 {
    let bits = number.to_bits();
    // A NaN may have all its bits in the lower half, and must not carry into the sign.
    let is_nan = bits & 0x7FFF_FFFF > 0x7F80_0000;
    let upper = if is_nan { bits | 0x40_0000 } else { bits.wrapping_add(u32::from(noise)) } >> 16;
    upper as u16
}

/// The next number of SplitMix64 behind the state `z`.
fn mix(z: u64) -> u64 {
    hash::mix(z.wrapping_add(GOLDEN))
}

/// A mixing of 32 bits, which vectors have instructions for.
#[inline(always)]
fn mix32(x: u32) -> u32 {
    let x = (x ^ x >> 16).wrapping_mul(0x7FEB_352D);
    let x = (x ^ x >> 15).wrapping_mul(0x846C_A68B);
    x ^ x >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[test]
    fn the_mean_of_a_number_is_the_number() {
        for (seed, exact) in [1.0 + 1.0 / 512.0, -3.3e-7, 0.1, 1e30, 2.0].into_iter().enumerate() {
            let from = vec![exact; 1 << 16];
            let mut to = vec![0; from.len()];
            RoundingNoise::new(fnv1a("w".bytes()), seed as u64, 0).narrow(0, &from, &mut to);
            let mean =
                to.iter().map(|&bits| f64::from(number(bits))).sum::<f64>() / to.len() as f64;
            let error = (mean / f64::from(exact) - 1.0).abs();
            // The standard deviation of the mean is below 2^-8 / 2 / 256.
            assert!(error < 4.0 / 131_072.0, "{exact}: {error}");
            let near = |bits: &u16| (number(*bits) / exact - 1.0).abs() <= 1.0 / 128.0;
            assert!(to.iter().all(near), "{exact}");
        }
    }

    #[test]
    fn what_bf16_has_stays_and_nan_stays_nan() {
        for noise in [0, 1, 0x8000, 0xFFFF] {
            for exact in [0.0, -0.0, 1.0, -2.5, f32::INFINITY, f32::NEG_INFINITY, 1e-40] {
                let exact = f32::from_bits(exact.to_bits() & 0xFFFF_0000);
                assert_eq!(number(narrow(exact, noise)).to_bits(), exact.to_bits());
            }
            for bits in [0x7F80_0001, 0x7FFF_FFFF, 0xFFFF_FFFF, 0xFF80_FFFF] {
                assert!(number(narrow(f32::from_bits(bits), noise)).is_nan());
            }
        }
        assert_eq!(twice(0.1).to_bits(), 0x3DCD_3DCD);
    }

    #[test]
    fn noise_differs_in_each_of_its_arguments() {
        let noise = |name: &str, step, vector, element| {
            RoundingNoise::new(fnv1a(name.bytes()), step, vector).at(element)
        };
        let all = [
            noise("a", 1, 0, 0),
            noise("b", 1, 0, 0),
            noise("a", 2, 0, 0),
            noise("a", 1, 1, 0),
            noise("a", 1, 0, 1),
            noise("a", 1, 0, 1 << 32),
        ];
        let different: std::collections::BTreeSet<_> = all.into_iter().collect();
        assert_eq!(different.len(), all.len(), "{all:?}");
    }
}
