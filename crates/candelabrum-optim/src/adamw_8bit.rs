//! AdamW whose averages have 8 bits for each element. The formula is that of [`AdamW`](crate::AdamW), in
//! f32. Between two steps the averages are kept in blocks of 256 elements:
//!
//! ```text
//! scale = the largest |m| of the block       in f32
//! code = the nearest number to m / scale     in 8 bits, of the table in `dynamic_code.rs`
//! ```
//!
//! and v likewise by a code without negative numbers. The state has 2 + 8/256 bytes for each element
//! instead of 8. A parameter of fewer than 4096 elements has averages in f32: there is little to save, and
//! biases and the scales of norms need precision most.
//!
//! A v that is less than about 1.6e-7 of the scale becomes 0. It is that of an element whose gradients are 2,500 times
//! smaller than the largest ones of its block, and the m of this element does not become 0, so its steps are far too long.
//! Rows of an embedding differ so much. They keep f32 by a group
//! ([`ParamGroup::state_8bit`](crate::ParamGroup::state_8bit)), as bitsandbytes recommends.
//!
//! Dettmers et al., "8-bit optimizers via block-wise quantization", ICLR 2022 (arXiv 2110.02861), with the
//! block, the codes and the threshold of bitsandbytes 0.45. As in PyTorch's AdamW and other than there,
//! the weight decay comes before the step. A negative m that is nearest to 0 becomes 0, as a positive one does;
//! in bitsandbytes it becomes the highest negative number.

use candelabrum_memory::chunks::{Splittable, by_chunks};
use serde::{Deserialize, Serialize};

use crate::adam::{AdamFactors, AdamRule, AdamW};
use crate::dynamic_code::{DynamicCode, SIGNED, UNSIGNED};
use crate::param_traits::ParamTraits;
use crate::parts::ParamParts;
use crate::{Result, RuleOptimizer, Schedule, StepSettings, UpdateRule};

/// The elements that share a scale.
const BLOCK: usize = 256;

/// The elements whose codes fit into one number of a state vector.
const CODES: usize = size_of::<f32>();

/// AdamW with averages of 8 bits.
///
/// Its state vectors are bit patterns, so ranks cannot average them, as `partialUpdate` may do.
///
/// Elements whose gradients are thousands of times smaller than those of their neighbours, as rows of rare words in an
/// embedding, make steps that are too long. Leave embeddings in f32 by
/// [`ParamGroup::state_8bit`](crate::ParamGroup::state_8bit).
///
/// It has [the methods][methods] `new`, `betas`, `eps` and `min_8bit_size`, and
/// [`weight_decay`](RuleOptimizer::weight_decay) and [`group`](RuleOptimizer::group), as every
/// [`RuleOptimizer`].
///
/// ```
/// use candelabrum_optim::{AdamW8bit, ParamGroup};
///
/// let optimizer = AdamW8bit::new(3e-4)
///     .betas(0.9, 0.95)
///     .weight_decay(0.1)
///     .group(ParamGroup::matching("*embedding*").state_8bit(false));
/// ```
///
/// [methods]: RuleOptimizer#impl-RuleOptimizer%3CAdamW8bitRule%3E
pub type AdamW8bit = RuleOptimizer<AdamW8bitRule>;

/// The formula of [`AdamW8bit`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamW8bitRule {
    adamw: AdamRule<true>,
    min_8bit_size: usize,
}

impl AdamW8bit {
    /// The settings of [`AdamW`], and 8 bits from 4096 elements on.
    pub fn new(lr: impl Into<Schedule>) -> Self {
        let rule = AdamW8bitRule { adamw: AdamW::new(0.0).rule, min_8bit_size: 4096 };
        Self::with_rule(rule, lr, 0.01)
    }

    builder! { optimizer:
        /// The shares of the averages of the gradient and of its square that each step keeps.
        betas(beta1: f64, beta2: f64) => optimizer.rule.adamw.set_betas(beta1, beta2);
        /// The number added to the square root, outside of it.
        eps(eps: f64) => optimizer.rule.adamw.set_eps(eps);
        /// The elements from which on the averages of a parameter have 8 bits.
        min_8bit_size(elements: usize) => optimizer.rule.min_8bit_size = elements;
    }
}

impl AdamW8bitRule {
    fn has_codes(&self, param: &ParamTraits) -> bool {
        param.state_8bit && param.elements >= self.min_8bit_size
    }
}

impl UpdateRule for AdamW8bitRule {
    const NAME: &'static str = "AdamW8bit";

    fn check(&self) -> Result<()> {
        self.adamw.check()
    }

    fn describe(&self) -> String {
        format!("{} min_8bit_size={}", self.adamw.describe(), self.min_8bit_size)
    }

    fn states(&self) -> usize {
        3
    }

    /// The codes of m, the codes of v, and for each block its scales of m and v.
    fn state_len(&self, state: usize, param: &ParamTraits) -> usize {
        match (self.has_codes(param), state) {
            (true, 2) => 2 * param.elements.div_ceil(BLOCK),
            (true, _) => param.elements.div_ceil(CODES),
            (false, 2) => 0,
            (false, _) => param.elements,
        }
    }

    fn has_numeric_state(&self) -> bool {
        false
    }

    fn update(&self, now: StepSettings, parts: ParamParts<'_>) {
        if !self.has_codes(&now.param) {
            return self.adamw.update(now, parts);
        }
        let factors = AdamFactors::new(self.adamw.factors(now));
        let (signed, unsigned) = (&*SIGNED, &*UNSIGNED);
        let ParamParts { value, grad, state: [m, v, scales] } = parts;
        let len = value.len();
        let (m, v) = (bytemuck::cast_slice_mut(m), bytemuck::cast_slice_mut(v));
        let (m, v, scales) = (&mut m[..len], &mut v[..len], scales.as_chunks_mut().0);
        by_chunks(
            QuantizedBlocks { value, grad, m, v, scales },
            #[inline(always)]
            |QuantizedBlocks { value, grad, m, v, scales }| {
                let blocks = value.chunks_mut(BLOCK).zip(grad.chunks(BLOCK));
                let kept = m.chunks_mut(BLOCK).zip(v.chunks_mut(BLOCK)).zip(scales);
                for ((value, grad), ((m, v), [of_m, of_v])) in blocks.zip(kept) {
                    let mut first = decoded(signed, m, *of_m);
                    let mut second = decoded(unsigned, v, *of_v);
                    let averages = first.iter_mut().zip(&mut second);
                    for ((p, &g), (m, v)) in value.iter_mut().zip(grad).zip(averages) {
                        factors.average(p, g, m, v);
                        factors.descend(p, *m, *v);
                    }
                    *of_m = encode(signed, &first, m);
                    *of_v = encode(unsigned, &second, v);
                }
                [0.0; 2]
            },
        );
    }
}

/// The numbers of a block, 0 behind its end.
#[inline(always)]
fn decoded(code: &DynamicCode, codes: &[u8], scale: f32) -> [f32; BLOCK] {
    let mut numbers = [0.0; BLOCK];
    for (number, &at) in numbers.iter_mut().zip(codes) {
        *number = scale * code.number(at);
    }
    numbers
}

/// Writes the codes of a block and returns its scale. It is NaN if a number is, so that a NaN is not lost.
#[inline(always)]
fn encode(code: &DynamicCode, numbers: &[f32; BLOCK], codes: &mut [u8]) -> f32 {
    let mut scale = 0.0;
    for number in &numbers[..codes.len()] {
        let size = number.abs();
        scale = if size > scale || size.is_nan() { size } else { scale };
    }
    for (at, number) in codes.iter_mut().zip(numbers) {
        *at = code.nearest(if scale == 0.0 { 0.0 } else { number / scale });
    }
    scale
}

/// A parameter, or blocks of it, with its gradient and state.
struct QuantizedBlocks<'a> {
    value: &'a mut [f32],
    grad: &'a [f32],
    m: &'a mut [u8],
    v: &'a mut [u8],
    scales: &'a mut [[f32; 2]],
}

impl Splittable for QuantizedBlocks<'_> {
    fn elements(&self) -> usize {
        self.value.len()
    }

    /// A chunk consists of whole blocks.
    fn split(self, at: usize) -> (Self, Self) {
        let (value, value_rest) = self.value.split_at_mut(at);
        let (grad, grad_rest) = self.grad.split_at(at);
        let (m, m_rest) = self.m.split_at_mut(at);
        let (v, v_rest) = self.v.split_at_mut(at);
        let (scales, scales_rest) = self.scales.split_at_mut(at / BLOCK);
        let rest =
            Self { value: value_rest, grad: grad_rest, m: m_rest, v: v_rest, scales: scales_rest };
        (Self { value, grad, m, v, scales }, rest)
    }
}

const _: () = assert!(candelabrum_memory::chunks::CHUNK.is_multiple_of(BLOCK));
