//! A whole recurrent layer as one operation: the common code of the cells in `rnn.rs`, `gru.rs` and
//! `lstm.rs`.
//!
//! ```text
//! forward    a   = x W_ih^T + b_ih                 all steps at once
//!            b_t = h_(t-1) W_hh^T + b_hh           step by step
//!            h_t = cell(a_t, b_t, h_(t-1))
//! backward   da_t, db_t from dh_t, last step first (backpropagation through time)
//!            dh_(t-1) += db_t W_hh
//!            dx = da W_ih    dW_ih = da^T x    dW_hh = db^T h_prev    column sums for the biases
//! ```
//!
//! Inside, the layout is (T, N, ..), so a step is one piece of memory, and everything but `b_t` is
//! one matrix product over all steps. The biases of `a` are added with those of `b`, so that `a` is written
//! once. `db` differs from `da` in the last gate of a GRU alone, so only this gate of `db` is stored. The forward
//! pass saves the gates (T, N, G H) for the backward pass. A GRU and an LSTM also save one more number per hidden
//! unit (T, N, H), which the cell chooses.
//!
//! A step needs the step before it, but no sequence needs another one. So each thread takes some sequences
//! through all steps (`sequences.rs`). `steps.rs` says which steps these are.

mod cell;
mod final_state;
mod gpu;
mod sequences;
mod step_weight;
mod steps;

use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use candle_core::{Device, Result, Tensor, bail};

use candelabrum_memory::thread_pool;
use rayon::prelude::*;

pub(super) use self::cell::{CellStep, RecurrentCell, StepBackward};
pub use self::final_state::final_state;
use self::sequences::{Biases, GroupBackward, GroupForward, SavedSequences, by_group, parts_of};
use self::step_weight::RecurrentWeight;
use self::steps::LayerRows;
pub use self::steps::SequenceSteps;
use super::linear::affine;
use crate::autograd::fused::{
    self, Backward, BackwardReads, FusedOp, GpuKernels, GradientInbox, InputGradients,
};
use crate::kernels::column_sums::column_sums;
use crate::kernels::float::Float;
use crate::kernels::matmul::{Destination, StridedMatrix, matmul};
use crate::kernels::scratch::Pooled;

/// From this number of multiplications in all steps on, several threads share the sequences.
const WORTH_THREADS: usize = 1 << 18;

/// The parameters of a recurrent layer of `G` gates (RNN 1, GRU 3, LSTM 4), in PyTorch's layout.
#[derive(Debug, Clone, Copy)]
pub struct RecurrentWeights<'a> {
    /// For the input: (G H, I).
    pub weight_ih: &'a Tensor,
    /// For the hidden state: (G H, H).
    pub weight_hh: &'a Tensor,
    /// Added to the product with the input: (G H).
    pub bias_ih: Option<&'a Tensor>,
    /// Added to the product with the hidden state: (G H).
    pub bias_hh: Option<&'a Tensor>,
}

/// Runs a layer. `h0` and `c0` are the initial hidden and the initial cell state, zeros if omitted. Returns all hidden
/// states and, for a cell that has one, the final cell state.
pub(super) fn run<C: RecurrentCell>(
    xs: &Tensor,
    weights: RecurrentWeights<'_>,
    [h0, c0]: [Option<&Tensor>; 2],
    order: &SequenceSteps,
) -> Result<(Tensor, Option<Tensor>)> {
    let [batch, steps, inputs] = super::sizes::sizes(C::NAME, "input", xs.shape(), "(N, T, in)")?;
    let RecurrentWeights { weight_ih, weight_hh, bias_ih, bias_hh } = weights;
    let [rows, hidden] =
        super::sizes::sizes(C::NAME, "weight_hh", weight_hh.shape(), "(gates · hidden, hidden)")?;
    if steps == 0 || inputs == 0 || hidden == 0 {
        bail!("{}: nothing to do, input {:?}, {hidden} hidden units", C::NAME, xs.shape());
    }
    if rows != C::GATES * hidden {
        bail!("{}: weight_hh of shape {:?}, expected {} rows", C::NAME, weight_hh.shape(), {
            C::GATES * hidden
        });
    }
    let expect = |what: &str, tensor: Option<&Tensor>, dims: &[usize]| match tensor {
        Some(tensor) if tensor.dims() != dims => {
            bail!("{}: {what} of shape {:?}, expected {dims:?}", C::NAME, tensor.shape())
        }
        _ => Ok(()),
    };
    expect("weight_ih", Some(weight_ih), &[rows, inputs])?;
    expect("bias_ih", bias_ih, &[rows])?;
    expect("bias_hh", bias_hh, &[rows])?;
    expect("initial hidden state", h0, &[batch, hidden])?;
    expect("initial cell state", c0, &[batch, hidden])?;
    let final_cell = Arc::new(FinalCell::default());
    let op = Recurrent::<C> {
        batch,
        steps,
        inputs,
        hidden,
        rows: LayerRows::new(C::NAME, order, [batch, steps])?,
        final_cell: Arc::clone(&final_cell),
        cell: PhantomData,
    };
    let has_kernels = op.has_kernels();
    let tensors = [Some(xs), Some(weight_ih), Some(weight_hh), bias_ih, bias_hh, h0, c0];
    let ys = fused::run(op, (batch, steps, hidden), &tensors)?;
    let Some(c) = final_cell.state.get().cloned() else { return Ok((ys, None)) };
    // The kernel's cell state beside 16 bits is in f32.
    let wide = ys.to_dtype(c.dtype())?;
    let output = CellOutput { final_cell, has_kernels };
    let c = fused::run(output, (batch, hidden), &[Some(&wide), Some(&c)])?;
    let c = c.to_dtype(ys.dtype())?;
    Ok((ys, Some(c)))
}

pub(super) struct Recurrent<C> {
    pub(super) batch: usize,
    pub(super) steps: usize,
    pub(super) inputs: usize,
    pub(super) hidden: usize,
    pub(super) rows: LayerRows,
    pub(super) final_cell: Arc<FinalCell>,
    cell: PhantomData<C>,
}

impl<C: RecurrentCell> FusedOp for Recurrent<C> {
    const NAME: &'static str = C::NAME;
    const READS: BackwardReads = BackwardReads::inputs(&[0, 1, 2, 5]).and_output(true);

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, w_ih, w_hh, b_ih, b_hh, h0, c0] = inputs else { unreachable!("seven inputs") };
        let (units, width, gate_width) = self.sizes();
        let extra_width = if C::HAS_EXTRA { units } else { 0 };
        let mut saved = Pooled::new(self.steps * (gate_width + extra_width));
        let (gates, extra) = saved.split_at_mut(self.steps * gate_width);
        let by_step = self.rows.by_step(xs, self.inputs);
        let xs = StridedMatrix::new(&by_step, self.steps * self.batch, self.inputs);
        matmul(gates, Destination::Overwrite, xs, StridedMatrix::new(w_ih, width, self.inputs).t());
        drop(by_step);

        let w_hh = RecurrentWeight::transposed(w_hh, self.hidden, [self.batch, self.steps]);
        let mut h = self.rows.states(h0, [units, self.hidden]);
        let cells = if C::HAS_CELL_STATE { units } else { 0 };
        let mut c = self.rows.states(c0, [cells, self.hidden]);
        let group = self.group(&w_hh);
        let mut ys = self.rows.ordered(ys, self.steps * self.hidden).into_iter();
        let states = h.chunks_mut(group * self.hidden);
        let items = by_group(gates, gate_width, group * width)
            .into_iter()
            .zip(by_group(extra, units, group * self.hidden))
            .zip(states.zip(parts_of(&mut c, group * self.hidden)));
        let groups: Vec<_> = items
            .enumerate()
            .map(|(number, ((gates, extra), (h, c)))| {
                let ys = ys.by_ref().take(group).collect();
                GroupForward { first: number * group, gates, extra, h, c, ys }
            })
            .collect();
        let biases = Biases::new::<C>(b_ih, b_hh, self.hidden);
        thread_pool::for_each(groups.into_par_iter(), |group| {
            group.run::<C>((&self.rows, self.hidden), &w_hh, &biases);
        });
        if C::HAS_CELL_STATE {
            let mut of_sequences = vec![T::zero(); units];
            self.rows.of_sequences(&c, self.hidden, &mut of_sequences);
            let c = Tensor::from_vec(of_sequences, (self.batch, self.hidden), &Device::Cpu)?;
            self.final_cell.state.get_or_init(|| c);
        }
        Ok(saved)
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { inputs, ys, saved, dys, mut grads, .. } = pass;
        let &[xs, w_ih, w_hh, _, _, h0, _] = inputs else { unreachable!("seven inputs") };
        let (units, width, gate_width) = self.sizes();
        let rows = self.steps * self.batch;
        let (gates, extra) = saved.split_at(self.steps * gate_width);
        let h_prev = self.rows.previous(ys, h0, self.hidden);
        // The gates for which `da` and `db` are equal, and the others.
        let common = if C::SPLIT { width - self.hidden } else { width };
        let (w_hh, w_hh_of_last) = w_hh.split_at(common * self.hidden);
        let sizes = [self.batch, self.steps];
        let w_hh = RecurrentWeight::new(w_hh, common, sizes);
        let w_hh_of_last = C::SPLIT.then(|| RecurrentWeight::new(w_hh_of_last, self.hidden, sizes));
        let mut da = Pooled::new(gates.len());
        let mut db = Pooled::new(if C::SPLIT { ys.len() } else { 0 });
        let dc = self.final_cell.gradient.take().and_then(T::of_values);
        let cells = if C::HAS_CELL_STATE { units } else { 0 };
        let mut dc = self.rows.states(dc.as_deref().unwrap_or_default(), [cells, self.hidden]);
        let of_h0 = grads.take(5);
        let mut dh0 = Pooled::new(if of_h0.is_some() { units } else { 0 });
        let group = self.group(&w_hh);
        let items = by_group(&mut da, gate_width, group * width)
            .into_iter()
            .zip(by_group(&mut db, units, group * self.hidden))
            .zip(
                parts_of(&mut dc, group * self.hidden).zip(parts_of(&mut dh0, group * self.hidden)),
            );
        let groups: Vec<_> = items
            .enumerate()
            .map(|(number, ((da, db), (dc, dh0)))| GroupBackward {
                first: number * group,
                da,
                db,
                dc,
                dh0,
            })
            .collect();
        let (batch, hidden) = (self.batch, self.hidden);
        let read =
            SavedSequences { gates, extra, h_prev: &h_prev, dys, all: &self.rows, batch, hidden };
        thread_pool::for_each(groups.into_par_iter(), |group| {
            group.run::<C>(&read, &w_hh, w_hh_of_last.as_ref());
        });
        for (to, states) in [(of_h0, &dh0), (grads.take(6), &dc)] {
            if let Some(to) = to {
                self.rows.of_sequences(states, hidden, to);
            }
        }

        if let Some(dw_hh) = grads.take(2) {
            let da = StridedMatrix::new(&da, rows, width);
            let h_prev = StridedMatrix::new(&h_prev, rows, self.hidden);
            let (dw_hh, of_last) = dw_hh.split_at_mut(common * self.hidden);
            matmul(dw_hh, Destination::Overwrite, da.columns(0..common).t(), h_prev);
            if C::SPLIT {
                matmul(
                    of_last,
                    Destination::Overwrite,
                    StridedMatrix::new(&db, rows, self.hidden).t(),
                    h_prev,
                );
            }
        }
        drop(h_prev);
        self.input_gradients((xs, w_ih), &da, &mut grads);
        bias_gradients((&da, &db), width, common, &mut grads);
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        self.has_kernels().then_some(self as &dyn GpuKernels)
    }

    fn has_effects(&self) -> bool {
        C::HAS_CELL_STATE
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), Some(w_ih), Some(w_hh), b_ih, b_hh, h0, c0] = inputs else {
            unreachable!("seven inputs")
        };
        let state = |initial: &Option<Tensor>| match initial {
            Some(state) => Ok(state.clone()),
            None => Tensor::zeros((self.batch, self.hidden), xs.dtype(), xs.device()),
        };
        if self.batch == 0 {
            // candle's kernels on a GPU refuse to work on nothing.
            self.final_cell.state.set(state(c0)?).ok();
            return Tensor::zeros((0, self.steps, self.hidden), xs.dtype(), xs.device());
        }
        let xs = self.rows.turned(xs)?.reshape((self.batch * self.steps, self.inputs))?;
        let a = affine(&xs, w_ih, b_ih.as_ref())?;
        let a = a.reshape((self.batch, self.steps, C::GATES * self.hidden))?;
        let (mut h, mut c) = (state(h0)?, state(c0)?);
        let mut hs = Vec::with_capacity(self.steps);
        for (step, a) in time_steps(&a)?.iter().enumerate() {
            let b = affine(&h, w_hh, b_hh.as_ref())?;
            let next = C::composite(a, &b, &h, &c)?;
            (h, c) = match self.rows.having(step, xs.device())? {
                None => next,
                Some(having) => {
                    let having = having.broadcast_as(h.shape())?;
                    (having.where_cond(&next.0, &h)?, having.where_cond(&next.1, &c)?)
                }
            };
            hs.push(h.clone());
        }
        if C::HAS_CELL_STATE {
            self.final_cell.state.get_or_init(|| c);
        }
        self.rows.turned(&Tensor::stack(&hs, 1)?)
    }
}

impl<C: RecurrentCell> Recurrent<C> {
    /// Whether there are kernels for a GPU.
    fn has_kernels(&self) -> bool {
        // The cell state is converted beside 16 bits, and candle's kernels refuse to convert nothing.
        self.batch > 0 && C::GPU_KERNELS.is_some() && self.rows.is_plain()
    }

    /// The numbers of elements of a state, of a row of gates, and of a step's gates.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        let width = C::GATES * self.hidden;
        (self.batch * self.hidden, width, self.batch * width)
    }

    /// The sequences that one thread takes through all steps.
    fn group<T: Float>(&self, weight: &RecurrentWeight<'_, T>) -> usize {
        let (units, width, _) = self.sizes();
        let threads = match units * width * self.steps > WORTH_THREADS {
            true if weight.has_independent_rows() => thread_pool::threads(),
            _ => 1,
        };
        // The product of a step computes tiles of 8 rows.
        self.batch.div_ceil(threads).next_multiple_of(8).min(self.batch).max(1)
    }

    /// The gradients of `w_ih` and `xs`, from `da`, the gradients (steps · batch, gates) of the gates.
    fn input_gradients<T: Float>(
        &self,
        (xs, w_ih): (&[T], &[T]),
        da: &[T],
        grads: &mut InputGradients<'_, T>,
    ) {
        let (_, width, _) = self.sizes();
        let da = StridedMatrix::new(da, self.steps * self.batch, width);
        if let Some(dw_ih) = grads.take(1) {
            let by_step = self.rows.by_step(xs, self.inputs);
            let xs = StridedMatrix::new(&by_step, self.steps * self.batch, self.inputs);
            matmul(dw_ih, Destination::Overwrite, da.t(), xs);
        }
        if let Some(dxs) = grads.take(0) {
            let mut by_step = Pooled::new(dxs.len());
            let w_ih = StridedMatrix::new(w_ih, width, self.inputs);
            matmul(&mut by_step, Destination::Overwrite, da, w_ih);
            self.rows.by_time(&by_step, self.inputs, dxs);
        }
    }
}

/// The final cell state: the second result of an operation, in a graph whose operations have only
/// one.
#[derive(Debug, Default)]
pub(super) struct FinalCell {
    /// Set by the layer's forward.
    pub(super) state: OnceLock<Tensor>,
    /// For the layer's backward.
    pub(super) gradient: GradientInbox,
}

/// Makes the final cell state a result. The inputs are the hidden states and the values of the cell
/// state. Because of the hidden states, candle runs this backward before the layer's backward, and
/// this backward stores the gradient for it.
pub(super) struct CellOutput {
    pub(super) final_cell: Arc<FinalCell>,
    /// Whether the layer runs by kernels on a GPU. A composite reads no gradient from `final_cell`.
    has_kernels: bool,
}

impl FusedOp for CellOutput {
    const NAME: &'static str = "cell_state";

    fn forward<T: Float>(&self, inputs: &[&[T]], c: &mut [T]) -> Result<Pooled<T>> {
        c.copy_from_slice(inputs[1]);
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        self.final_cell.gradient.deliver(Pooled::copy_of(pass.dys));
        if let Some(dhs) = pass.grads.take(0) {
            dhs.fill(T::zero());
        }
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        self.has_kernels.then_some(self as &dyn GpuKernels)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        // The layer's composite has already added the cell state to candle's graph.
        let [_, Some(c)] = inputs else { unreachable!("two inputs") };
        Ok(c.clone())
    }
}

/// The gradients of both biases, which are sums over all steps of all sequences. They differ in the gates behind
/// the first `common` ones, if `db` is not empty.
fn bias_gradients<T: Float>(
    (da, db): (&[T], &[T]),
    width: usize,
    common: usize,
    grads: &mut InputGradients<'_, T>,
) {
    let (db_ih, db_hh) = (grads.take(3), grads.take(4));
    if db_ih.is_none() && db_hh.is_none() {
        return;
    }
    let mut sums = Pooled::new(width);
    column_sums(da, &mut sums);
    if let Some(db_ih) = db_ih {
        db_ih.copy_from_slice(&sums);
    }
    if let Some(db_hh) = db_hh {
        db_hh.copy_from_slice(&sums);
        if !db.is_empty() {
            column_sums(db, &mut db_hh[common..]);
        }
    }
}

/// Splits (N, T, width) into T tensors (N, width), by halves. The backward of candle's `narrow`
/// writes a tensor as large as its input, so cutting T parts from the whole would cost T^2.
fn time_steps(xs: &Tensor) -> Result<Vec<Tensor>> {
    let steps = xs.dim(1)?;
    if steps == 1 {
        return Ok(vec![xs.squeeze(1)?]);
    }
    let half = steps / 2;
    let mut all = time_steps(&xs.narrow(1, 0, half)?)?;
    all.append(&mut time_steps(&xs.narrow(1, half, steps - half)?)?);
    Ok(all)
}

/// `row` cut into `N` equal parts.
pub(super) fn parts<const N: usize, T>(row: &[T]) -> [&[T]; N] {
    let width = row.len() / N;
    std::array::from_fn(|part| &row[part * width..][..width])
}

/// `row` cut into `N` equal parts.
pub(super) fn parts_mut<const N: usize, T>(row: &mut [T]) -> [&mut [T]; N] {
    let mut parts = row.chunks_exact_mut(row.len() / N);
    std::array::from_fn(|_| parts.next().expect("as many parts as asked for"))
}
