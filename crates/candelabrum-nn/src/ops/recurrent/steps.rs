//! The steps that a recurrent layer takes of its sequences, and the rows of its memory.
//!
//! Inside the layer, the row of a sequence is chosen so that the longest sequences come first. The sequences that
//! have a step are then the first rows of any group of rows, and only these take part in the step. A step counts
//! in the layer's direction: against the direction of time, step 0 is the last one of a sequence.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;

use super::super::lengths;
use super::super::masked_fill;
use crate::kernels::float::Float;
use crate::kernels::parallel::{for_each, worth_threads};
use crate::kernels::scratch::Pooled;

/// Which steps of its sequences a recurrent layer takes, and in which direction. The default is all of them, in
/// the direction of time.
///
/// A sequence with a length ends there, as in PyTorch's packed sequences, but in the order of the batch: results
/// behind the length are 0, and the final state is that at the length. Against the direction of time the layer
/// begins at the length. What is behind the length is not read. A sequence of length 0 keeps its initial state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceSteps {
    lengths: Option<Arc<[usize]>>,
    reverse: bool,
}

impl SequenceSteps {
    /// The first steps of each sequence, up to its length.
    ///
    /// # Shapes
    ///
    /// `lengths` (N) in u8, u32 or i64
    ///
    /// # Errors
    ///
    /// If `lengths` has another shape or dtype, or a length is negative.
    pub fn of_lengths(lengths: &Tensor) -> Result<Self> {
        let size = (lengths.elem_count(), usize::MAX);
        let lengths = lengths::read("a recurrent layer", "length", lengths, size)?;
        Ok(Self { lengths: Some(lengths.into()), reverse: false })
    }

    /// The same steps against the direction of time.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self { lengths: self.lengths.clone(), reverse: true }
    }

    /// Whether the layer goes against the direction of time.
    pub fn is_reversed(&self) -> bool {
        self.reverse
    }

    /// The lengths of `batch` sequences of `steps` steps, if they are not all `steps`.
    pub(super) fn lengths(
        &self,
        name: &str,
        [batch, steps]: [usize; 2],
    ) -> Result<Option<&[usize]>> {
        let Some(lengths) = &self.lengths else { return Ok(None) };
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if lengths.len() != batch || longest > steps {
            candle_core::bail!(
                "{name}: {} lengths up to {longest} for {batch} sequences of {steps} steps",
                lengths.len()
            )
        }
        Ok(Some(lengths))
    }
}

/// The rows of a layer's memory.
#[derive(Debug)]
pub(in crate::ops) struct LayerRows {
    /// The sequence of each row.
    sequences: Vec<usize>,
    /// The row of each sequence.
    rows: Vec<usize>,
    /// The number of steps of each row. No row has more than the row before.
    lengths: Vec<usize>,
    steps: usize,
    reverse: bool,
    is_padded: bool,
}

impl LayerRows {
    pub(super) fn new(name: &str, order: &SequenceSteps, size: [usize; 2]) -> Result<Self> {
        let ([batch, steps], lengths) = (size, order.lengths(name, size)?);
        let length = |&sequence: &usize| lengths.map_or(steps, |lengths| lengths[sequence]);
        let mut sequences: Vec<usize> = (0..batch).collect();
        sequences.sort_by_key(|sequence| steps - length(sequence));
        let mut rows = vec![0; batch];
        sequences.iter().enumerate().for_each(|(row, &sequence)| rows[sequence] = row);
        let lengths: Vec<usize> = sequences.iter().map(length).collect();
        let is_padded = lengths.last().is_some_and(|&shortest| shortest < steps);
        Ok(Self { sequences, rows, lengths, steps, reverse: order.reverse, is_padded })
    }

    /// Whether the layer takes all steps in the direction of time.
    pub(in crate::ops) fn is_plain(&self) -> bool {
        !self.reverse && !self.is_padded
    }

    /// How many of the rows have this step. They are the first ones.
    pub(super) fn active(&self, rows: Range<usize>, step: usize) -> usize {
        self.lengths[rows].partition_point(|&length| length > step)
    }

    pub(super) fn sequence(&self, row: usize) -> usize {
        self.sequences[row]
    }

    /// The time of a row's step, which is also the step of this time. Steps that the row does not have are at
    /// their own times.
    pub(super) fn time(&self, row: usize, step: usize) -> usize {
        match self.lengths[row].checked_sub(step + 1) {
            Some(time) if self.reverse => time,
            _ => step,
        }
    }

    /// The sequences (N, ..) in the order of the rows.
    pub(super) fn ordered<'a, T>(&self, values: &'a mut [T], width: usize) -> Vec<&'a mut [T]> {
        let mut sequences: Vec<Option<&mut [T]>> = values.chunks_mut(width).map(Some).collect();
        let in_order = self.sequences.iter().map(|&sequence| sequences[sequence].take());
        in_order.map(|values| values.expect("each sequence has one row")).collect()
    }

    /// States (N, H) of sequences as those of rows, zeros if there are none.
    pub(super) fn states<T: Float>(
        &self,
        of_sequences: &[T],
        [len, hidden]: [usize; 2],
    ) -> Pooled<T> {
        if of_sequences.is_empty() {
            return Pooled::zeros(len);
        }
        let mut states = Pooled::new(len);
        for (state, &sequence) in states.chunks_exact_mut(hidden).zip(&self.sequences) {
            state.copy_from_slice(&of_sequences[sequence * hidden..][..hidden]);
        }
        states
    }

    /// States (N, H) of rows as those of sequences.
    pub(super) fn of_sequences<T: Float>(&self, states: &[T], hidden: usize, to: &mut [T]) {
        for (to, &row) in to.chunks_exact_mut(hidden).zip(&self.rows) {
            to.copy_from_slice(&states[row * hidden..][..hidden]);
        }
    }

    /// (N, T, width) of sequences and times -> (T, N, width) of steps and rows, 0 where a row has no step.
    pub(super) fn by_step<T: Float>(&self, values: &[T], width: usize) -> Pooled<T> {
        let mut by_step = Pooled::new(values.len());
        let blocks = by_step.par_chunks_mut((self.sequences.len() * width).max(1)).enumerate();
        for_each(worth_threads(values.len()), blocks, |(step, to)| {
            for (row, to) in to.chunks_exact_mut(width).enumerate() {
                if step >= self.lengths[row] {
                    to.fill(T::zero());
                    continue;
                }
                let from = self.sequence(row) * self.steps + self.time(row, step);
                to.copy_from_slice(&values[from * width..][..width]);
            }
        });
        by_step
    }

    /// The inverse of [`by_step`](Self::by_step).
    pub(super) fn by_time<T: Float>(&self, by_step: &[T], width: usize, to: &mut [T]) {
        let (steps, batch) = (self.steps, self.sequences.len());
        let blocks = to.par_chunks_mut((steps * width).max(1)).enumerate();
        for_each(worth_threads(by_step.len()), blocks, |(sequence, to)| {
            let row = self.rows[sequence];
            for (time, to) in to.chunks_exact_mut(width).enumerate() {
                if time >= self.lengths[row] {
                    to.fill(T::zero());
                    continue;
                }
                let from = self.time(row, time) * batch + row;
                to.copy_from_slice(&by_step[from * width..][..width]);
            }
        });
    }

    /// The state before each step, (T, N, H), from the results `ys` (N, T, H) and the initial states.
    pub(super) fn previous<T: Float>(&self, ys: &[T], h0: &[T], hidden: usize) -> Pooled<T> {
        let mut previous = Pooled::new(ys.len());
        let (first, rest) = previous.split_at_mut(self.sequences.len() * hidden);
        first.copy_from_slice(&self.states(h0, [first.len(), hidden]));
        let steps = rest.par_chunks_mut((self.sequences.len() * hidden).max(1)).enumerate();
        for_each(worth_threads(ys.len()), steps, |(step, to)| {
            for (row, h) in to.chunks_exact_mut(hidden).enumerate() {
                let from = self.sequence(row) * self.steps + self.time(row, step);
                h.copy_from_slice(&ys[from * hidden..][..hidden]);
            }
        });
        previous
    }

    /// For composites: (N, T, ..) of times as those of steps or the reverse, 0 behind the lengths.
    pub(super) fn turned(&self, values: &Tensor) -> Result<Tensor> {
        let mut turned = values.clone();
        if self.is_padded {
            let padding = |sequence: usize, time| time >= self.lengths[self.rows[sequence]];
            let padding = self.of_times(|sequence, time| u8::from(padding(sequence, time)))?;
            turned = masked_fill(&turned, &padding.unsqueeze(2)?, 0.0)?;
        }
        if self.reverse {
            let from = |sequence: usize, time| {
                sequence * self.steps + self.time(self.rows[sequence], time)
            };
            let from = self.of_times(|sequence, time| from(sequence, time) as u32)?;
            let from = from.flatten_all()?.to_device(values.device())?;
            turned = turned.flatten_to(1)?.index_select(&from, 0)?.reshape(values.shape())?;
        }
        Ok(turned)
    }

    /// For composites: 1 (N, 1) for the sequences that have a step, `None` if all have it.
    pub(super) fn having(&self, step: usize, device: &Device) -> Result<Option<Tensor>> {
        if self.active(0..self.rows.len(), step) == self.rows.len() {
            return Ok(None);
        }
        let has = |&row: &usize| u8::from(self.lengths[row] > step);
        let having: Vec<u8> = self.rows.iter().map(has).collect();
        Tensor::new(having, device)?.unsqueeze(1).map(Some)
    }

    /// (N, T) of `f` of each sequence and time.
    fn of_times<T: candle_core::WithDType>(&self, f: impl Fn(usize, usize) -> T) -> Result<Tensor> {
        let (batch, steps) = (self.rows.len(), self.steps);
        let places = (0..batch).flat_map(|sequence| (0..steps).map(move |time| (sequence, time)));
        let values = places.map(|(sequence, time)| f(sequence, time)).collect();
        Tensor::from_vec::<_, T>(values, (batch, steps), &Device::Cpu)
    }
}
