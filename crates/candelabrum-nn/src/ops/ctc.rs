//! Connectionist temporal classification (Graves, Fernández, Gomez and Schmidhuber, ICML 2006): minus the
//! logarithm of the probability of all paths that give the labels when repeated classes and then blanks are
//! removed.
//!
//! ```text
//! states     blank l_1 blank l_2 .. l_S blank
//! a_t(s)     = ln(e^a_(t-1)(s) + e^a_(t-1)(s-1) + e^a_(t-1)(s-2)) + x_t(class of s)       forward
//! b_(t-1)(s) = ln(sum of e^(b_t(s') + x_t(class of s')) over s' = s, s+1, s+2)            backward
//! loss       = -ln(e^a_T(last) + e^a_T(last - 1))
//! dx_t(c)    = -dloss sum of e^(a_t(s) + b_t(s) + loss) over the states s of class c
//! ```
//!
//! The step over a state is for labels that differ from the label before them. PyTorch's gradient of the
//! logarithms of the probabilities is this one plus their exponential, which vanishes behind a `log_softmax`.

use candle_core::{DType, Device, Result, Tensor, bail};
use rayon::prelude::*;

use super::element_losses::Reduction;
use super::lengths;
use super::sizes::sizes;
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp, widen};
use crate::kernels::float::Float;
use crate::kernels::parallel::{for_each, worth_threads};
use crate::kernels::scratch::Pooled;

const NAME: &str = "ctc_loss";

/// The composite's logarithm of 0: with minus infinity gradients would be NaN.
const LOW: f64 = -1e30;

/// The variants of the CTC loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtcConfig {
    /// The class of the blank.
    pub blank: usize,
    /// Makes infinite losses, and their gradients, 0. A loss is infinite if the input is too short for the labels.
    pub zero_infinity: bool,
    /// [`Mean`](Reduction::Mean) divides each loss by the number of its labels (at least 1), as PyTorch does. It
    /// weighs the number of sequences.
    pub reduction: Reduction,
}

/// The CTC loss of sequences whose labels are not aligned with their steps: PyTorch's `ctc_loss`.
///
/// A loss that is infinite has a gradient of NaN, unless `config` makes it 0.
///
/// # Shapes
///
/// `log_probs` (N, T, C), logarithms of probabilities ([`log_softmax`](super::log_softmax)), whereas PyTorch
/// expects (T, N, C); `labels` (N, S), `input_lengths` (N) and `label_lengths` (N) in u8, u32 or i64 -> a scalar,
/// in f32 for an input in f16 or bf16. Steps and labels behind the lengths are not read.
///
/// # Errors
///
/// If a label is the blank or no class, a length is too large, shapes or dtypes do not fit, or there is no
/// sequence.
pub fn ctc_loss(
    log_probs: &Tensor,
    labels: &Tensor,
    input_lengths: &Tensor,
    label_lengths: &Tensor,
    config: CtcConfig,
) -> Result<Tensor> {
    let [batch, steps, classes] = sizes(NAME, "input", log_probs.shape(), "(N, T, C)")?;
    let [rows, most] = sizes(NAME, "labels", labels.shape(), "(N, S)")?;
    if rows != batch || batch * steps == 0 || config.blank >= classes {
        bail!(
            "{NAME}: labels of shape {:?} and blank {} for an input of shape {:?}",
            labels.shape(),
            config.blank,
            log_probs.shape()
        );
    }
    let input_lengths = lengths::read(NAME, "input length", input_lengths, (batch, steps))?;
    let label_lengths = lengths::read(NAME, "label length", label_lengths, (batch, most))?;
    let labels = lengths::integers(NAME, "labels", labels)?;
    let sequence = |(number, (&steps, &length)): (usize, (&usize, &usize))| {
        let labels = &labels[number * most..][..length];
        let class = |&label: &i64| match usize::try_from(label) {
            Ok(class) if class < classes && class != config.blank => Ok(class),
            _ => bail!(
                "{NAME}: label {label} of sequence {number}, expected a class below {classes} but the blank {}",
                config.blank
            ),
        };
        let labels = labels.iter().map(class).collect::<Result<Vec<_>>>()?;
        Ok(Sequence { steps, classes, blank: config.blank, labels })
    };
    let sequences = input_lengths.iter().zip(&label_lengths).enumerate();
    let sequences = sequences.map(sequence).collect::<Result<Vec<_>>>()?;
    let states = sequences.iter().map(Sequence::states).max().unwrap_or(1);
    let op = Ctc { sequences, steps, classes, states, config };
    let loss = fused::run(op, (), &[Some(&widen(log_probs)?)])?;
    config.reduction.weight(batch).give_to(&loss);
    Ok(loss)
}

struct Ctc {
    sequences: Vec<Sequence>,
    steps: usize,
    classes: usize,
    /// The states of the sequence with the most labels.
    states: usize,
    config: CtcConfig,
}

/// The labels of a sequence.
struct Sequence {
    steps: usize,
    classes: usize,
    blank: usize,
    labels: Vec<usize>,
}

impl Sequence {
    fn states(&self) -> usize {
        2 * self.labels.len() + 1
    }

    fn class(&self, state: usize) -> usize {
        if state.is_multiple_of(2) { self.blank } else { self.labels[state / 2] }
    }

    /// Whether a path may come to `state` from the label before, without a blank between them.
    fn skips(&self, state: usize) -> bool {
        state % 2 == 1 && state > 1 && self.labels[state / 2] != self.labels[state / 2 - 1]
    }

    /// Whether a path may end in `state`.
    fn ends(&self, state: usize) -> bool {
        state + 2 >= self.states() && state < self.states()
    }

    /// Writes `a` of all steps and states, and returns the loss.
    fn forward<T: Float>(&self, xs: &[T], all: &mut [T]) -> T {
        let (states, none) = (self.states(), T::from_f64(f64::NEG_INFINITY));
        if self.steps == 0 {
            return if states == 1 { T::zero() } else { T::zero() - none };
        }
        for step in 0..self.steps {
            let (before, now) = all[..(step + 1) * states].split_at_mut(step * states);
            let before = &before[step.saturating_sub(1) * states..];
            let xs = &xs[step * self.classes..][..self.classes];
            for (state, now) in now.iter_mut().enumerate() {
                let at = |back: usize, is_path: bool| match state.checked_sub(back) {
                    Some(state) if is_path => before[state],
                    _ => none,
                };
                let paths = match step {
                    0 if state < 2 => T::zero(),
                    0 => none,
                    _ => log_sum([at(0, true), at(1, true), at(2, self.skips(state))]),
                };
                *now = paths + xs[self.class(state)];
            }
        }
        let ends = &all[(self.steps - 1) * states..self.steps * states];
        let before = states.checked_sub(2).map_or(none, |state| ends[state]);
        T::zero() - log_sum([ends[states - 1], before, none])
    }

    /// Writes the gradient of the loss times `scale`. `all` are the `a`.
    fn backward<T: Float>(&self, xs: &[T], all: &[T], loss: T, scale: T, dxs: &mut [T]) {
        let (states, none) = (self.states(), T::from_f64(f64::NEG_INFINITY));
        dxs.fill(T::zero());
        let end = |state| if self.ends(state) { T::zero() } else { none };
        // `b` of a step, then with the step's own `x`.
        let mut bs: Vec<T> = (0..states).map(end).collect();
        for step in (0..self.steps).rev() {
            let xs = &xs[step * self.classes..][..self.classes];
            let dxs = &mut dxs[step * self.classes..][..self.classes];
            for (state, b) in bs.iter_mut().enumerate() {
                let class = self.class(state);
                dxs[class] -= scale * (all[step * states + state] + *b + loss).exp();
                *b += xs[class];
            }
            for state in 0..states {
                let at = |on: usize, is_path: bool| match bs.get(state + on) {
                    Some(&b) if is_path => b,
                    _ => none,
                };
                let skips = state + 2 < states && self.skips(state + 2);
                bs[state] = log_sum([at(0, true), at(1, true), at(2, skips)]);
            }
        }
    }
}

/// The logarithm of the sum of the exponentials.
fn log_sum<T: Float>(xs: [T; 3]) -> T {
    let max = xs.into_iter().fold(xs[0], |max, x| if x > max { x } else { max });
    if max == T::from_f64(f64::NEG_INFINITY) {
        return max;
    }
    max + xs.into_iter().fold(T::zero(), |sum, x| sum + (x - max).exp()).ln()
}

impl Ctc {
    /// What the loss of a sequence is multiplied with.
    fn share(&self, sequence: &Sequence) -> f64 {
        match self.config.reduction {
            Reduction::Mean => 1.0 / (sequence.labels.len().max(1) * self.sequences.len()) as f64,
            Reduction::Sum => 1.0,
        }
    }

    /// Whether this loss of a sequence counts as 0.
    fn is_zeroed(&self, loss: f64) -> bool {
        self.config.zero_infinity && loss == f64::INFINITY
    }

    /// The numbers saved of a sequence: its loss, and `a` of its steps and states.
    fn saved(&self) -> usize {
        1 + self.steps * self.states
    }

    /// A tensor (N, states) of `f` of each state of each sequence.
    fn of_states(
        &self,
        device: &Device,
        dtype: DType,
        f: impl Fn(&Sequence, usize) -> f64,
    ) -> Result<Tensor> {
        let states =
            self.sequences.iter().flat_map(|s| (0..self.states).map(move |state| (s, state)));
        let values = states.map(|(sequence, state)| f(sequence, state)).collect();
        let shape = (self.sequences.len(), self.states);
        Tensor::from_vec::<_, f64>(values, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
    }
}

impl FusedOp for Ctc {
    const NAME: &'static str = NAME;
    const READS: BackwardReads = BackwardReads::inputs(&[0]);

    fn forward<T: Float>(&self, inputs: &[&[T]], loss: &mut [T]) -> Result<Pooled<T>> {
        let mut saved = Pooled::new(self.sequences.len() * self.saved());
        let threads = worth_threads(saved.len());
        let rows = saved.par_chunks_mut(self.saved());
        let rows = rows.zip(inputs[0].par_chunks(self.steps * self.classes)).zip(&self.sequences);
        for_each(threads, rows, |((saved, xs), sequence)| {
            saved[0] = sequence.forward(xs, &mut saved[1..]);
        });
        let losses = saved.chunks(self.saved()).map(|saved| saved[0].widen());
        let parts =
            losses.zip(&self.sequences).map(|(loss, sequence)| match self.is_zeroed(loss) {
                true => 0.0,
                false => loss * self.share(sequence),
            });
        loss[0] = T::narrow(parts.sum());
        Ok(saved)
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dxs) = pass.grads.take(0) else { return Ok(()) };
        let (size, factor) = (self.steps * self.classes, pass.dys[0].widen());
        let rows = dxs.par_chunks_mut(size).zip(pass.inputs[0].par_chunks(size));
        let rows = rows.zip(pass.saved.par_chunks(self.saved())).zip(&self.sequences);
        for_each(worth_threads(pass.saved.len()), rows, |(((dxs, xs), saved), sequence)| {
            let (loss, all) = saved.split_first().expect("the loss is there");
            if self.is_zeroed(loss.widen()) {
                return dxs.fill(T::zero());
            }
            let scale = T::narrow(factor * self.share(sequence));
            sequence.backward(xs, all, *loss, scale, dxs);
        });
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs)] = inputs else { unreachable!("one input") };
        let (device, dtype, states) = (xs.device(), xs.dtype(), self.states);
        let of_states = |f: &dyn Fn(&Sequence, usize) -> f64| self.of_states(device, dtype, f);
        let low_unless = |is_path: bool| if is_path { 0.0 } else { LOW };
        let exists = |s: &Sequence, state: usize| state < s.states();
        let class = |s: &Sequence, state| if exists(s, state) { s.class(state) } else { s.blank };
        let classes = self.of_states(device, DType::U32, |s, state| class(s, state) as f64)?;
        let shape = (self.sequences.len(), self.steps, states);
        let classes = classes.unsqueeze(1)?.broadcast_as(shape)?.contiguous()?;
        let emitted = xs.gather(&classes, 2)?; // (N, T, states)
        let skips = of_states(&|s, state| low_unless(exists(s, state) && s.skips(state)))?;
        let ends = of_states(&|s, state| low_unless(s.ends(state)))?;
        let begins = of_states(&|s, state| low_unless(state < if s.steps == 0 { 1 } else { 2 }))?;
        let later = |paths: &Tensor, by: usize| -> Result<Tensor> {
            let by = by.min(states);
            let none = of_states(&|_, _| LOW)?.narrow(1, 0, by)?;
            if by == states {
                return Ok(none);
            }
            Tensor::cat(&[&none, &paths.narrow(1, 0, states - by)?], 1)
        };
        let mut paths = begins;
        for step in 0..self.steps {
            let mut next = paths.clone();
            if step > 0 {
                let skipping = (later(&paths, 2)? + &skips)?;
                next = log_sum_of(&Tensor::stack(&[&paths, &later(&paths, 1)?, &skipping], 2)?)?;
            }
            let next = (next + emitted.narrow(1, step, 1)?.squeeze(1)?)?;
            let has_step =
                self.of_states(device, DType::U8, |s, _| f64::from(u8::from(step < s.steps)))?;
            paths = has_step.where_cond(&next, &paths)?;
        }
        let losses = log_sum_of(&(paths + ends)?)?.neg()?; // (N)
        let infinite = losses.ge(-LOW / 10.0)?;
        let instead = if self.config.zero_infinity { 0.0 } else { f64::INFINITY };
        let instead = Tensor::full(instead, losses.shape(), device)?.to_dtype(dtype)?;
        let losses = infinite.where_cond(&instead, &losses)?;
        let shares = self.sequences.iter().map(|sequence| self.share(sequence)).collect::<Vec<_>>();
        let shares = Tensor::new(shares, device)?.to_dtype(dtype)?;
        (losses * shares)?.sum_all()
    }
}

/// The logarithm of the sum of the exponentials in the last dimension.
fn log_sum_of(xs: &Tensor) -> Result<Tensor> {
    let last = xs.rank() - 1;
    let max = xs.detach().max_keepdim(last)?;
    xs.broadcast_sub(&max)?.exp()?.sum(last)?.log()? + max.squeeze(last)?
}
