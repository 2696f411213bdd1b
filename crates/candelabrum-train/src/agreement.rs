//! How ranks learn that one of them has failed.

use candelabrum_dist::{Error as DistError, Group};

use crate::{Error, Result};

/// The result of this rank, unless another rank has failed. All ranks call it together.
pub(crate) fn agree<T>(group: &Group, own: Result<T>) -> Result<T> {
    let first = match first_failure(group, own.as_ref().err()) {
        // What has failed here is the reason, and nobody else says it.
        Err(_) if own.is_err() => return own,
        first => first?,
    };
    match (own, first) {
        (own, None) | (own @ Err(_), _) => own,
        (Ok(_), Some((peer, message))) => {
            Err(DistError::PeerFailed { peer: group.ranks()[peer], message }.into())
        }
    }
}

/// The first error of any rank, with its rank if there are several.
pub(crate) fn first_error(group: &Group, own: Option<&Error>) -> Result<Option<String>> {
    let first = first_failure(group, own)?;
    let many = group.world_size() > 1;
    Ok(first.map(|(rank, why)| if many { format!("rank {rank}: {why}") } else { why }))
}

fn first_failure(group: &Group, own: Option<&Error>) -> Result<Option<(usize, String)>> {
    let own = own.map(ToString::to_string).unwrap_or_default();
    let texts = if group.world_size() == 1 { vec![own] } else { group.all_gather_text(&own)? };
    Ok(texts.into_iter().enumerate().find(|(_, text)| !text.is_empty()))
}
