//! SwiGLU (Shazeer, arXiv:2002.05202) of two tensors: the results of two linear layers, one of which gates the other.
//!
//! ```text
//! forward    y = silu(a) b
//! backward   da = dy b silu'(a)            db = dy silu(a)
//! ```

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use super::swiglu::{composite_of, gate_by, gate_by_backward};
use crate::autograd::fused::{self, Backward, BackwardReads, FusedOp};
use crate::kernels::float::Float;
use crate::kernels::parallel::{for_each, in_blocks, worth_threads};
use crate::kernels::scratch::Pooled;

const NAME: &str = "silu_mul";

/// The number of elements that a thread computes at a time.
const BLOCK: usize = 1 << 12;

/// `silu(gate) * xs`. [`swiglu`](super::swiglu()) takes both in one tensor.
///
/// # Shapes
///
/// `gate` (..), `xs` (..) -> (..)
///
/// # Errors
///
/// If the shapes or the dtypes differ, or the dtype is no float.
pub fn silu_mul(gate: &Tensor, xs: &Tensor) -> Result<Tensor> {
    if gate.shape() != xs.shape() {
        bail!("{NAME}: gates of shape {:?} for {:?}", gate.shape(), xs.shape());
    }
    fused::run(SiluMul, gate.shape(), &[Some(gate), Some(xs)])
}

struct SiluMul;

impl FusedOp for SiluMul {
    const NAME: &'static str = NAME;
    const READS: BackwardReads = BackwardReads::inputs(&[0, 1]);

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let &[a, b] = inputs else { unreachable!("two inputs") };
        in_blocks(ys, |start, y| gate_by((&a[start..], &b[start..]), y));
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { inputs, dys, mut grads, .. } = pass;
        let (&[a, b], dys) = (inputs, &*dys) else { unreachable!("two inputs") };
        // A gradient that nobody wants is computed, too: the passes over memory are what takes time.
        let (mut no_da, mut no_db) = (Pooled::none(), Pooled::none());
        let da = grads.take(0).unwrap_or_else(|| {
            no_da = Pooled::new(dys.len());
            &mut no_da
        });
        let db = grads.take(1).unwrap_or_else(|| {
            no_db = Pooled::new(dys.len());
            &mut no_db
        });
        let gradients = da.par_chunks_mut(BLOCK).zip(db.par_chunks_mut(BLOCK));
        let operands = a.par_chunks(BLOCK).zip(b.par_chunks(BLOCK)).zip(dys.par_chunks(BLOCK));
        for_each(worth_threads(dys.len()), gradients.zip(operands), |(gradients, (ab, dy))| {
            gate_by_backward(ab, dy, gradients);
        });
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(a), Some(b)] = inputs else { unreachable!("two inputs") };
        composite_of(&fused::widen(a)?, &fused::widen(b)?)?.to_dtype(a.dtype())
    }
}
