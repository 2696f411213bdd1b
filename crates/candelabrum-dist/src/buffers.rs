//! The synchronisation of state that is not trained, such as running statistics, over all ranks.

use candelabrum_nn::{Buffer, Params};
use candle_core::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::comm::{Collective, Communicator, Payload, ReduceOp};
use crate::{Error, Result};

/// The treatment of buffers (state that is not trained) when the ranks' models become one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum BufferSync {
    /// Every rank receives the buffers of rank 0, bit for bit. This is PyTorch's
    /// `broadcast_buffers`.
    #[default]
    Broadcast,
    /// Every rank gets the mean over all ranks, which is added in f64 in rank order. For a running
    /// variance this is the mean of the variances within the ranks' batches.
    Average,
    /// Every rank keeps its own buffers.
    Local,
}

/// Makes the buffers of `params` the same on all ranks, in one message. All ranks must call it
/// together, with the same model.
///
/// # Errors
/// A failure of another rank or a passed deadline. [`Error::Disagreement`] if the ranks' buffers
/// have different numbers of elements.
pub fn synchronize_buffers(
    params: &Params,
    comm: &dyn Communicator,
    how: BufferSync,
) -> Result<()> {
    // The values of now are those of the model, whoever wrote them.
    params.keep_buffers();
    let op = match how {
        BufferSync::Broadcast => Collective::Broadcast { root: 0 },
        BufferSync::Average => Collective::AllReduce(ReduceOp::Mean),
        BufferSync::Local => return Ok(()),
    };
    let states = params.buffers();
    if comm.world_size() == 1 || states.is_empty() {
        return Ok(());
    }
    // f64 holds the values of every float exactly.
    let mut values = Vec::new();
    for state in &states {
        let value = state.value().to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
        values.extend(value.flatten_all()?.to_vec1::<f64>()?);
    }
    let message = Payload::from_slice(&values).labelled("the model's buffers");
    let result = comm.run(op, message)?;
    let mut rest = result.as_slice::<f64>()?;
    for state in &states {
        rest = set(state, rest)?;
    }
    Ok(())
}

/// Sets `state` to the values at the front of `values` and returns the remaining values.
fn set<'a>(state: &Buffer, values: &'a [f64]) -> Result<&'a [f64]> {
    let old = state.value();
    let count = old.elem_count();
    let Some((own, rest)) = values.split_at_checked(count) else {
        let got = values.len();
        return Err(Error::Length { op: "synchronize buffers", expected: count, got });
    };
    let value = Tensor::from_slice(own, old.shape(), &Device::Cpu)?;
    state.set(&value.to_dtype(old.dtype())?.to_device(old.device())?)?;
    Ok(rest)
}
