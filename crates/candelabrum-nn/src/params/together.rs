//! The values of several parameters on a GPU at once, so that one launch of a kernel can change them
//! all.

use candelabrum_memory::{SpanMut, cuda};
use candle_core::{Result, Storage, Var, bail};

use super::master::{self, Master};

/// Calls `update` with the values of these variables, in their order, or with the master of a variable
/// that has one. Sets such a variable to its master afterwards.
///
/// # Errors
/// A variable that is not on a GPU, or of a type that has no f32 values.
pub(crate) fn update_together<R>(
    params: &[(&Var, &Master)],
    update: impl FnOnce(Vec<SpanMut<'_>>) -> R,
) -> Result<R> {
    let mut locks: Vec<_> = params
        .iter()
        .map(|(var, master)| master::is_half(var.dtype()).then(|| master.lock()))
        .collect();
    let masters = locks
        .iter_mut()
        .zip(params)
        .map(|(lock, (var, _))| lock.as_mut().map(|master| master::made(master, var)).transpose());
    let mut masters = masters.collect::<Result<Vec<_>>>()?;
    // Held for reading, since `cuda::span_mut` needs no more. Locks for writing, many at a time, could
    // wait in a circle with another thread that reads two of these variables.
    let storages: Vec<_> = params.iter().map(|(var, _)| var.storage_and_layout()).collect();
    let values = masters.iter_mut().zip(&storages).map(|(master, (storage, layout))| {
        Ok(match (master, &**storage) {
            (Some(master), Storage::Cuda(_)) => master.span_mut()?,
            (None, Storage::Cuda(storage)) => SpanMut::Cuda(cuda::span_mut(storage, layout)?),
            _ => bail!("parameters on the CPU are updated one by one"),
        })
    });
    let result = update(values.collect::<Result<_>>()?);
    let mut rounded = Vec::new();
    for (master, (storage, layout)) in masters.iter().zip(&storages) {
        if let (Some(master), Storage::Cuda(storage)) = (master, &**storage) {
            rounded.push((master.span()?.cuda()?, storage, *layout));
        }
    }
    cuda::round_all(&rounded)?;
    Ok(result)
}
