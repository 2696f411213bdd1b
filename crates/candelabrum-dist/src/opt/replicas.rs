//! Parameters and optimizer states that become the same on all ranks.

use candelabrum_memory::SpanMut;
use candelabrum_nn::Param;
use candelabrum_optim::Optimizer;

use crate::comm::{Collective, Communicator, Payload, ReduceOp};
use crate::{Error, Result};

/// Sets the parameters to those of rank 0.
pub(super) fn broadcast_parameters(comm: &dyn Communicator, params: &[Param]) -> Result<()> {
    exchange_parameters(comm, Collective::Broadcast { root: 0 }, params)
}

/// Averages the parameters over all ranks.
pub(super) fn average_parameters(comm: &dyn Communicator, params: &[Param]) -> Result<()> {
    exchange_parameters(comm, Collective::AllReduce(ReduceOp::Mean), params)
}

/// Averages the parameters and the whole state of the optimizer over all ranks.
pub(super) fn average_replicas(
    comm: &dyn Communicator,
    params: &[Param],
    optimizer: &mut dyn Optimizer,
) -> Result<()> {
    average_parameters(comm, params)?;
    let mean = Collective::AllReduce(ReduceOp::Mean);
    optimizer.state_mut()?.into_iter().try_for_each(|state| exchange(comm, mean, state))
}

fn exchange_parameters(comm: &dyn Communicator, op: Collective, params: &[Param]) -> Result<()> {
    let mut each = params.iter();
    let exchanged =
        each.try_for_each(|param| param.update_in_place(|values| exchange(comm, op, values))?);
    exchanged.inspect_err(|error| lose(params, error))
}

/// Lets every access to these parameters fail that can, after an exchange that some of them have had and some have not.
pub(super) fn lose<'p>(params: impl IntoIterator<Item = &'p Param>, error: &Error) {
    params.into_iter().for_each(|param| param.lose(error.clone()));
}

/// Replaces `values` by the result of a collective on them, which has the same length.
fn exchange(comm: &dyn Communicator, op: Collective, values: SpanMut<'_>) -> Result<()> {
    let mut values = match values {
        SpanMut::Host(values) => return comm.run_in_place(op, values.into()),
        on_device => on_device,
    };
    let result = comm.run(op, Payload::from(values.as_span().to_flat()?))?;
    Ok(values.copy_from(result.span()?)?)
}
