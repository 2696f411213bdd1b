//! The vectors of an optimizer whose state the ranks share: each rank has written a part of them, and each rank reads
//! what it needs. The numbers of ranks may differ, and one of the two runs may have had the whole state on every rank.
//!
//! Files are read one at a time, so a rank needs the memory of one share beside its own.

use std::ops::Range;

use candelabrum_dist::{DistOptState, OptimizerVector};
use candelabrum_memory::Span;

use super::model::{OPTIMIZER, device};
use super::restored::Restored;
use crate::Result;

/// The name of a part of a vector in a file: its vector, and the place of its first value there.
pub(super) fn key(vector: &str, start: usize) -> String {
    format!("{vector}@{start}")
}

/// What [`key`] has joined. A vector of a run without shares is whole.
fn vector_and_start(key: &str) -> (&str, usize) {
    let parts = key.rsplit_once('@');
    let part = parts.and_then(|(vector, start)| Some((vector, start.parse().ok()?)));
    part.unwrap_or((key, 0))
}

/// Returns an error if the files of a part do not have all of these vectors, or have others.
pub(super) fn check(
    restored: &Restored,
    part: &str,
    state: &DistOptState,
    vectors: &[OptimizerVector<'_>],
) -> Result<()> {
    let wanted = vectors.iter().map(Wanted::of).collect();
    each_piece(restored, part, state, wanted, |_, _, _| Ok(()))
}

/// Fills `vectors` from the files of a part.
pub(super) fn load(
    restored: &Restored,
    part: &str,
    state: &DistOptState,
    mut vectors: Vec<OptimizerVector<'_>>,
) -> Result<()> {
    let wanted = vectors.iter().map(Wanted::of).collect();
    each_piece(restored, part, state, wanted, |number, place, values| {
        let mut place = vectors[number].values.reborrow().range(place);
        place.copy_from(Span::Host(values)).map_err(device)
    })
}

/// A vector that this rank needs, or its part of one.
struct Wanted {
    name: String,
    range: Range<usize>,
    /// How many values have been found.
    found: usize,
}

impl Wanted {
    fn of(vector: &OptimizerVector<'_>) -> Self {
        let OptimizerVector { name, start, values } = vector;
        Self { name: name.clone(), range: *start..*start + values.len(), found: 0 }
    }
}

/// Calls `take` with the number of a wanted vector, a range of it, and the values there, until all are found.
fn each_piece(
    restored: &Restored,
    part: &str,
    state: &DistOptState,
    mut wanted: Vec<Wanted>,
    mut take: impl FnMut(usize, Range<usize>, &[f32]) -> Result<()>,
) -> Result<()> {
    let files = if state.sharded { restored.shards().map(Some).collect() } else { vec![None] };
    for rank in files {
        if wanted.iter().all(|wanted| wanted.found == wanted.range.len()) {
            break;
        }
        let shard;
        let file = match rank {
            Some(rank) => {
                shard = restored.shard(part, OPTIMIZER, rank)?;
                let Some(file) = &shard else { continue };
                file
            }
            None => restored.shared(part, OPTIMIZER)?,
        };
        for name in file.names() {
            let (vector, start) = vector_and_start(name);
            let Some(number) = wanted.iter().position(|wanted| wanted.name == vector) else {
                let what = format!("has `{vector}`, which this model does not have");
                return Err(restored.refuse(what));
            };
            let (wanted, len) = (&mut wanted[number], file.elements(name));
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
        Some(Wanted { name, range, found }) => Err(restored.refuse(format!(
            "has {found} of the elements {range:?} of `{name}`, which this rank needs"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_an_at_sign_survives() {
        assert_eq!(vector_and_start(&key("a@b.weight.0", 70)), ("a@b.weight.0", 70));
        assert_eq!(vector_and_start("a@b.weight.0"), ("a@b.weight.0", 0));
    }
}
