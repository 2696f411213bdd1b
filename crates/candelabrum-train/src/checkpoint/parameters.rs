//! The parameters of a model in a checkpoint: those of which each rank has all values, and shards of the others.

use std::ops::Range;

use candelabrum_nn::{Param, Params};

use super::model::{PARAMETERS, buffers, device, load_buffers, save_buffers};
use super::restored::Restored;
use super::shards::{self, VectorSlice};
use super::vector_set::VectorSet;
use crate::Result;

/// Copies all parameters of which this rank has all values, and all buffers.
pub(super) fn save_parameters(params: &Params, to: &mut VectorSet) -> Result<()> {
    for param in saved(params).filter(|param| !param.is_sharded()) {
        param.with_values(|values| to.put(param.name(), param.dims(), values))?;
    }
    save_buffers(params, to)
}

/// Copies this rank's shards of parameters. `file` is asked for only if there are any.
pub(super) fn save_shards<'f>(
    params: &Params,
    file: impl FnOnce() -> &'f mut VectorSet,
) -> Result<()> {
    let shared: Vec<Param> = saved(params).filter(Param::is_sharded).collect();
    if shared.is_empty() {
        return Ok(());
    }
    let to = file();
    for param in shared {
        param.with_own_values(|start, values| {
            to.put_shard(param.name(), start, param.dims(), values)
        })?;
    }
    Ok(())
}

/// The parameters that a checkpoint contains. The others have the values of the files that the model was loaded from.
fn saved(params: &Params) -> impl Iterator<Item = Param> {
    params.list().into_iter().filter(|param| !param.is_constant())
}

/// Returns an error if the files of a part are not of the parameters and buffers of this model.
pub(super) fn check_parameters(params: &Params, restored: &Restored, part: &str) -> Result<()> {
    let mut list: Vec<(String, Vec<usize>)> =
        saved(params).map(|p| (p.name().to_owned(), p.dims().to_vec())).collect();
    let has_shards = restored.has_shards(part, PARAMETERS);
    let whole = restored.shared(part, PARAMETERS);
    if has_shards {
        let is_whole = |name: &str| whole.as_ref().is_ok_and(|file| file.has(name));
        let mut shared: Vec<VectorSlice> = Vec::new();
        for param in saved(params).filter(|param| !is_whole(param.name())) {
            let name = param.name().to_owned();
            shared.push(VectorSlice::new(name, own_range(&param)?, Some(param.dims())));
        }
        shards::each_piece(restored, part, PARAMETERS, true, shared, |_, _, _| Ok(()))?;
        list.retain(|(name, _)| is_whole(name));
    }
    list.extend(buffers(params));
    match whole {
        // A model of blocks alone may have nothing that is not shared.
        Err(_) if has_shards && list.is_empty() => Ok(()),
        whole => whole?.check(&list),
    }
}

/// The elements of a parameter that this rank keeps.
fn own_range(param: &Param) -> Result<Range<usize>> {
    Ok(param.with_own_values(|start, values| Ok(start..start + values.len()))?)
}

/// Sets all parameters and buffers, or this rank's shards of them. All ranks call it together.
pub(super) fn load_parameters(params: &Params, restored: &Restored, part: &str) -> Result<()> {
    let whole = restored.shared(part, PARAMETERS);
    let has_shards = restored.has_shards(part, PARAMETERS);
    let (in_whole, in_shards): (Vec<Param>, Vec<Param>) = saved(params)
        .partition(|param| !has_shards || whole.as_ref().is_ok_and(|file| file.has(param.name())));
    let mut values = Vec::new();
    let mut wanted = Vec::new();
    for param in &in_shards {
        let (name, own) = (param.name().to_owned(), own_range(param)?);
        values.push(vec![0.0; own.len()]);
        wanted.push(VectorSlice::new(name, own, Some(param.dims())));
    }
    shards::each_piece(restored, part, PARAMETERS, true, wanted, |number, place, from| {
        values[number][place].copy_from_slice(from);
        Ok(())
    })?;
    for (param, values) in in_shards.iter().zip(values) {
        param.update_own(|mut place| place.copy_from((&values).into()))?.map_err(device)?;
    }
    let whole = match whole {
        Err(_) if has_shards && in_whole.is_empty() => return Ok(()),
        whole => whole?,
    };
    for param in in_whole {
        if param.is_sharded() {
            let (own, values) = (own_range(&param)?, whole.values(param.name())?);
            let own = &values[own];
            param.update_own(|mut place| place.copy_from(own.into()))?.map_err(device)?;
        } else {
            param.update_in_place(|place| whole.copy_to(param.name(), place))??;
        }
    }
    load_buffers(params, whole)
}
