//! The vectors of an optimizer or the parameters that the ranks share: each rank has written a part of them, and each rank reads
//! what it needs. The numbers of ranks may differ, and one of the two runs may have had the whole state on every rank.
//!
//! Files are read one at a time, so a rank needs the memory of one share beside its own.

use std::ops::Range;

use candelabrum_dist::{DistOptState, OptimizerVector};
use candelabrum_memory::Span;

use super::model::{OPTIMIZER, device};
use super::restored::Restored;
use super::share::Share;
use crate::Result;

/// Returns an error if the files of a part do not have all of these vectors, or have others.
pub(super) fn check(
    restored: &Restored,
    part: &str,
    state: &DistOptState,
    vectors: &[OptimizerVector<'_>],
) -> Result<()> {
    let wanted = vectors.iter().map(Wanted::of).collect();
    each_piece(restored, part, OPTIMIZER, state.sharded, wanted, |_, _, _| Ok(()))
}

/// Fills `vectors` from the files of a part.
pub(super) fn load(
    restored: &Restored,
    part: &str,
    state: &DistOptState,
    mut vectors: Vec<OptimizerVector<'_>>,
) -> Result<()> {
    let wanted = vectors.iter().map(Wanted::of).collect();
    each_piece(restored, part, OPTIMIZER, state.sharded, wanted, |number, place, values| {
        let mut place = vectors[number].values.reborrow().range(place);
        place.copy_from(Span::Host(values)).map_err(device)
    })
}

/// A vector that this rank needs, or its part of one.
pub(super) struct Wanted {
    name: String,
    range: Range<usize>,
    /// The dimensions of the whole tensor, if the file says them.
    dims: Option<Vec<usize>>,
    /// How many values have been found.
    found: usize,
}

impl Wanted {
    pub(super) fn new(name: String, range: Range<usize>, dims: Option<&[usize]>) -> Self {
        Self { name, range, dims: dims.map(<[usize]>::to_vec), found: 0 }
    }

    fn of(vector: &OptimizerVector<'_>) -> Self {
        let OptimizerVector { name, start, values } = vector;
        Self::new(name.clone(), *start..*start + values.len(), None)
    }
}

/// Calls `take` with the number of a wanted vector, a range of it, and the values there, until all are found.
pub(super) fn each_piece(
    restored: &Restored,
    part: &str,
    file: &str,
    is_shared: bool,
    mut wanted: Vec<Wanted>,
    mut take: impl FnMut(usize, Range<usize>, &[f32]) -> Result<()>,
) -> Result<()> {
    let files = if is_shared { restored.shards().map(Some).collect() } else { vec![None] };
    for rank in files {
        if wanted.iter().all(|wanted| wanted.found == wanted.range.len()) {
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
            let Share { vector, start, dims } = Share::of(name);
            let Some(number) = wanted.iter().position(|wanted| wanted.name == vector) else {
                let what = format!("has `{vector}`, which this model does not have");
                return Err(restored.refuse(what));
            };
            let (wanted, len) = (&mut wanted[number], file.elements(name));
            if let Some(expected) = wanted.dims.as_ref().filter(|expected| **expected != dims) {
                let what = format!("has `{vector}` of {dims:?}, in this model it is {expected:?}");
                return Err(restored.refuse(what));
            }
            let begin = wanted.range.start.max(start);
            let end = wanted.range.end.min(start + len);
            if begin < end {
                let values = &file.values(name)?[begin - start..end - start];
                take(number, begin - wanted.range.start..end - wanted.range.start, values)?;
                wanted.found += end - begin;
            }
        }
    }
    match wanted.iter().find(|wanted| wanted.found != wanted.range.len()) {
        None => Ok(()),
        Some(Wanted { name, range, found, .. }) => Err(restored.refuse(format!(
            "has {found} of the elements {range:?} of `{name}`, which this rank needs"
        ))),
    }
}
