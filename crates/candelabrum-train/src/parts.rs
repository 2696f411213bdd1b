//! A dataset of which each rank has a part of its own: MXNet's `num_parts` and `part_index`.
//!
//! Usually every rank has the whole dataset, and a sampler divides each global batch. A rank that has only a part
//! takes all batches from the part. What the ranks have is compared by a message, because no rank can see the others'
//! parts.

use candelabrum_datasets::Dataset;
use candelabrum_dist::{Error as DistError, Group};

use crate::checkpoint::sha256;
use crate::{Error, Result};

/// The number of samples in each rank's part, or `None` if every rank has the whole dataset. All ranks call it
/// together, with data that are divided in the same way.
pub(crate) fn lens(group: &Group, data: &(impl Dataset + ?Sized)) -> Result<Option<Vec<usize>>> {
    let (shared_by, ranks) = (data.shared_by(), group.world_size());
    if shared_by == 1 {
        return Ok(None);
    }
    if shared_by != ranks {
        return Err(Error::AlreadyPartitioned { shared_by, ranks });
    }
    let texts = group.all_gather_text(&data.len().to_string())?;
    let len = |(peer, text): (usize, &String)| {
        text.parse().map_err(|_| {
            let message = format!("it has said {text:?} where the length of its part was expected");
            Error::from(DistError::PeerFailed { peer, message })
        })
    };
    texts.iter().enumerate().map(len).collect::<Result<_>>().map(Some)
}

/// What the data of this rank are to the other ranks: the whole data themselves, or one of so many parts.
pub(crate) fn described(data: &(impl Dataset + ?Sized)) -> Result<String> {
    match data.shared_by() {
        1 => Ok(data.fingerprint()?),
        parts => Ok(format!("one of {parts} parts")),
    }
}

/// The fingerprint of all parts together, in the order of the ranks. No two ranks may have the same part.
pub(crate) fn fingerprint(group: &Group, data: &(impl Dataset + ?Sized)) -> Result<String> {
    let parts = group.all_gather_text(&data.fingerprint()?)?;
    for (rank, part) in parts.iter().enumerate() {
        if let Some(first) = parts[..rank].iter().position(|other| other == part) {
            return Err(Error::SamePart { first, second: rank });
        }
    }
    Ok(format!("{} parts {}", parts.len(), sha256(parts.join("\n").as_bytes())))
}
