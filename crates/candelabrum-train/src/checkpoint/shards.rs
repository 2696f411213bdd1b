//! The vectors of an optimizer or of a hook, or the parameters, that are divided among ranks: each rank has written a part of them, and each rank reads
//! what it needs. The numbers of ranks may differ, and one of the two runs may have had the whole state on every rank.
//!
//! Files are read one at a time, so a rank needs the memory of one shard beside its own.

use std::collections::BTreeMap;
use std::ops::Range;

use candelabrum_dist::{DistOptState, OptimizerVector};
use candelabrum_memory::Span;

use super::model::{OPTIMIZER, device};
use super::restored::{Restored, VectorFile};
use super::shard::{OwnPart, VectorShard};
use crate::Result;

/// Returns an error if the files of a part do not have all of these vectors, or have others.
pub(super) fn check(
    restored: &Restored,
    part: &str,
    state: &DistOptState,
    vectors: &[OptimizerVector<'_>],
) -> Result<()> {
    let wanted = vectors.iter().map(VectorSlice::from_vector).collect();
    each_piece(restored, part, OPTIMIZER, state.sharded, wanted, |_, _, _| Ok(()))
}

/// Fills `vectors` from the files of a part.
pub(super) fn load(
    restored: &Restored,
    part: &str,
    state: &DistOptState,
    mut vectors: Vec<OptimizerVector<'_>>,
) -> Result<()> {
    let wanted = vectors.iter().map(VectorSlice::from_vector).collect();
    each_piece(restored, part, OPTIMIZER, state.sharded, wanted, |number, place, values| {
        let mut place = vectors[number].values.reborrow().range(place);
        place.copy_from(Span::Host(values)).map_err(device)
    })
}

/// A vector that this rank needs, or its part of one.
pub(super) struct VectorSlice {
    name: String,
    range: Range<usize>,
    /// The dimensions of the whole tensor, if the file says them.
    dims: Option<Vec<usize>>,
    /// How many values have been found.
    found: usize,
}

impl VectorSlice {
    pub(super) fn new(name: String, range: Range<usize>, dims: Option<&[usize]>) -> Self {
        Self { name, range, dims: dims.map(<[usize]>::to_vec), found: 0 }
    }

    fn from_vector(vector: &OptimizerVector<'_>) -> Self {
        let OptimizerVector { name, start, values } = vector;
        Self::new(name.clone(), *start..*start + values.len(), None)
    }

    /// Calls `take` with a range of what is wanted, and the values there, if `shard`, which `file` has by `key`, has any.
    fn take_from(
        &mut self,
        restored: &Restored,
        file: &VectorFile,
        key: &str,
        shard: &VectorShard<'_>,
        take: impl FnOnce(Range<usize>, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let VectorShard { vector, start, dims } = shard;
        if let Some(expected) = self.dims.as_ref().filter(|expected| *expected != dims) {
            let what = format!("has `{vector}` of {dims:?}, in this model it is {expected:?}");
            return Err(restored.refuse(what));
        }
        let begin = self.range.start.max(*start);
        let end = self.range.end.min(start + file.elements(key));
        if begin < end {
            let values = &file.values(key)?[begin - start..end - start];
            take(begin - self.range.start..end - self.range.start, values)?;
            self.found += end - begin;
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.found == self.range.len()
    }

    /// # Errors
    /// Elements that no file has.
    fn check(&self, restored: &Restored) -> Result<()> {
        if self.is_complete() {
            return Ok(());
        }
        let Self { name, range, found, .. } = self;
        Err(restored.refuse(format!(
            "has {found} of the elements {range:?} of `{name}`, which this rank needs"
        )))
    }
}

/// Calls `take` with the number of a wanted vector, a range of it, and the values there, until all are found.
pub(super) fn each_piece(
    restored: &Restored,
    part: &str,
    file: &str,
    is_shared: bool,
    mut wanted: Vec<VectorSlice>,
    mut take: impl FnMut(usize, Range<usize>, &[f32]) -> Result<()>,
) -> Result<()> {
    let files = if is_shared { restored.shards().map(Some).collect() } else { vec![None] };
    for rank in files {
        if wanted.iter().all(VectorSlice::is_complete) {
            break;
        }
        let shard;
        let file = match rank {
            Some(rank) => {
                shard = restored.shard(part, file, rank)?;
                let Some(file) = &shard else { continue };
                file
            }
            None => restored.shared(part, file)?,
        };
        for name in file.names() {
            let shard = VectorShard::from_key(name);
            let Some(number) = wanted.iter().position(|wanted| wanted.name == shard.vector) else {
                let what = format!("has `{}`, which this model does not have", shard.vector);
                return Err(restored.refuse(what));
            };
            wanted[number].take_from(restored, file, name, &shard, |place, values| {
                take(number, place, values)
            })?;
        }
    }
    wanted.iter().try_for_each(|wanted| wanted.check(restored))
}

/// The vectors of a hook in the file of this name, or the parts that are needed of those in `parts`.
pub(crate) fn hook_vectors(
    restored: &Restored,
    name: &str,
    parts: &BTreeMap<String, OwnPart>,
) -> Result<BTreeMap<String, Vec<f32>>> {
    let mut vectors: BTreeMap<String, (VectorSlice, Vec<f32>)> = BTreeMap::new();
    let mut take = |file: &VectorFile, has_shards: bool| -> Result<()> {
        for key in file.names() {
            let whole = || VectorShard { vector: key, start: 0, dims: file.dims(key) };
            let shard = if has_shards { VectorShard::from_key(key) } else { whole() };
            let all =
                || OwnPart { dims: shard.dims.clone(), elements: 0..shard.dims.iter().product() };
            let (wanted, to) = vectors.entry(shard.vector.to_owned()).or_insert_with(|| {
                let OwnPart { dims, elements } =
                    parts.get(shard.vector).cloned().unwrap_or_else(all);
                let to = vec![0.0; elements.len()];
                (VectorSlice::new(shard.vector.to_owned(), elements, Some(&dims)), to)
            });
            wanted.take_from(restored, file, key, &shard, |place, values| {
                to[place].copy_from_slice(values);
                Ok(())
            })?;
        }
        Ok(())
    };
    restored.whole(name).map_or(Ok(()), |file| take(file, false))?;
    for rank in restored.shards() {
        restored.shard("", name, rank)?.map_or(Ok(()), |file| take(&file, true))?;
    }
    let complete = |(wanted, values): (VectorSlice, Vec<f32>)| {
        wanted.check(restored)?;
        Ok((wanted.name, values))
    };
    vectors.into_values().map(complete).collect()
}
