//! The hidden state of a recurrent layer after the last step that it has taken of each sequence.

use candle_core::{Device, Result, Tensor};

use super::steps::SequenceSteps;
use crate::autograd::fused::{self, Backward, FusedOp};
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;
use crate::ops::last_step::last_step;
use crate::ops::sizes::sizes;

const NAME: &str = "final_state";

/// The hidden states after a recurrent layer's last step, from all its hidden states `ys`: those at the lengths,
/// or at the time 0 if the layer goes against the direction of time. A sequence of length 0 has its initial state
/// `h0`, zeros if omitted. For the default [`SequenceSteps`] it is [`last_step`](crate::ops::last_step()).
///
/// # Shapes
///
/// `ys` (N, T, H), `h0` (N, H) -> (N, H)
///
/// # Errors
///
/// If the lengths or shapes do not fit, there is no step, or the dtype is no float.
pub fn final_state(ys: &Tensor, h0: Option<&Tensor>, order: &SequenceSteps) -> Result<Tensor> {
    let [batch, steps, width] = sizes(NAME, "input", ys.shape(), "(N, T, H)")?;
    let lengths = order.lengths(NAME, [batch, steps])?;
    let is_short = |lengths: &[usize]| lengths.iter().any(|&length| length < steps);
    let lengths = lengths.filter(|lengths| is_short(lengths));
    if lengths.is_none() && !order.is_reversed() || steps * width == 0 {
        return last_step(ys);
    }
    if let Some(h0) = h0.filter(|h0| h0.dims() != [batch, width]) {
        candle_core::bail!("{NAME}: initial states of shape {:?} for {:?}", h0.shape(), ys.shape())
    }
    let time = |sequence: usize| {
        let last = lengths.map_or(steps, |lengths| lengths[sequence]).checked_sub(1)?;
        Some(if order.is_reversed() { 0 } else { last })
    };
    let op = FinalState { times: (0..batch).map(time).collect(), steps, width };
    fused::run(op, (batch, width), &[Some(ys), h0])
}

struct FinalState {
    /// The time of each sequence's last step, `None` for a sequence without steps.
    times: Vec<Option<usize>>,
    steps: usize,
    width: usize,
}

impl FusedOp for FinalState {
    const NAME: &'static str = NAME;

    fn forward<T: Float>(&self, inputs: &[&[T]], states: &mut [T]) -> Result<Pooled<T>> {
        let &[ys, h0] = inputs else { unreachable!("two inputs") };
        let states = states.chunks_exact_mut(self.width).zip(&self.times).enumerate();
        for (sequence, (state, time)) in states {
            match time {
                Some(time) => {
                    let from = (sequence * self.steps + time) * self.width;
                    state.copy_from_slice(&ys[from..][..self.width]);
                }
                None if h0.is_empty() => state.fill(T::zero()),
                None => state.copy_from_slice(&h0[sequence * self.width..][..self.width]),
            }
        }
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let rows = || pass.dys.chunks_exact(self.width).zip(&self.times).enumerate();
        if let Some(dys) = pass.grads.take(0) {
            dys.fill(T::zero());
            for (sequence, (d, time)) in rows() {
                let Some(time) = time else { continue };
                dys[(sequence * self.steps + time) * self.width..][..self.width].copy_from_slice(d);
            }
        }
        if let Some(dh0) = pass.grads.take(1) {
            dh0.fill(T::zero());
            for (sequence, (d, _)) in rows().filter(|(_, (_, time))| time.is_none()) {
                dh0[sequence * self.width..][..self.width].copy_from_slice(d);
            }
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(ys), h0] = inputs else { unreachable!("two inputs") };
        let row = |(sequence, time): (usize, &Option<usize>)| {
            (sequence * self.steps + time.unwrap_or(0)) as u32
        };
        let rows = Tensor::from_iter(self.times.iter().enumerate().map(row), ys.device())?;
        let states = ys.flatten_to(1)?.index_select(&rows, 0)?;
        let none = self.times.iter().map(|time| u8::from(time.is_none()));
        let none = Tensor::from_iter(none, &Device::Cpu)?.unsqueeze(1)?.to_device(ys.device())?;
        let h0 = h0.as_ref().map_or_else(|| states.zeros_like(), |h0| Ok(h0.clone()))?;
        none.broadcast_as(states.shape())?.where_cond(&h0, &states)
    }
}
