//! The digits of a run, located once per host and the same on every rank.
//!
//! Each host has its own files. So on every host the first rank looks for the files, and downloads
//! missing ones, for all ranks of the host. Meanwhile the other ranks wait. Downloads may take much
//! less time than the time for which ranks wait for each other. Then all ranks learn the result of
//! every host: either all train on MNIST, or all on the same synthetic digits, or all fail with the
//! cause.

use std::time::Duration;

use candelabrum_datasets::{DataRequest, ImageDatasets, Located, Source, locate};
use candelabrum_dist::{Error as DistError, World};

use crate::Result;

/// The default for the time that all downloads together may take. The ranks that wait meanwhile
/// give up after 300 s.
pub const DOWNLOAD_TIME: Duration = Duration::from_secs(120);

/// The result of a host's first rank: a source with a note on it, or an error.
type SourceAnswer = std::result::Result<(String, Option<String>), String>;

/// The dataset of `request`, the same on every rank. All ranks must call this function together,
/// with the same request.
///
/// If it is not the preferred dataset, rank 0 reports this in a line on standard error, and
/// [`ImageDatasets::note`] has the reason on every rank. Downloads may take at most half of the time for
/// which ranks wait for each other ([`World::deadline`]).
///
/// # Errors
/// A directory without the files, damaged or wrong files, or no MNIST files anywhere. The ranks of
/// other hosts get [`candelabrum_dist::Error::PeerFailed`] with the cause.
pub fn load_data(request: &DataRequest, world: &World) -> Result<ImageDatasets> {
    let host = world.host_group()?;
    let longest = world.deadline()? / 2;
    let find = || {
        let download = request.download.map(|within| within.min(longest));
        locate(&DataRequest { download, ..request.clone() })
    };
    let found = (host.rank() == 0).then(find);
    let answer: Option<SourceAnswer> = found.as_ref().map(|found| match found {
        Ok(located) => Ok((located.source.to_string(), located.note.clone())),
        Err(error) => Err(error.to_string()),
    });
    // The answer contains only texts, which JSON can always represent.
    let answer = serde_json::to_string(&answer).unwrap_or_default();
    let agreed = agree(&world.comm().all_gather_text(&answer)?, host.ranks()[0]);
    // The rank itself names the cause. On other ranks this is the failure of another rank.
    found.transpose()?;
    let located = agreed?;
    if let Some(note) = located.note.as_ref().filter(|_| world.is_root()) {
        warn(note);
    }
    Ok(located.open()?)
}

/// The source for the host whose first rank is `first`, from the answers of all ranks.
fn agree(answers: &[String], first: usize) -> Result<Located> {
    let answers: Vec<Option<SourceAnswer>> =
        answers.iter().map(|text| serde_json::from_str(text).unwrap_or_default()).collect();
    let by_rank = || answers.iter().enumerate().filter_map(|(rank, a)| Some((rank, a.as_ref()?)));
    if let Some((peer, message)) = by_rank().find_map(|(rank, a)| Some((rank, a.as_ref().err()?))) {
        return Err(DistError::PeerFailed { peer, message: message.clone() }.into());
    }
    // If one host falls back, all hosts do: otherwise they would train on different data.
    let fallback = by_rank().find(|(_, answer)| matches!(answer, Ok((_, Some(_)))));
    let own = || by_rank().find(|(rank, _)| *rank == first);
    let Some((rank, Ok((source, note)))) = fallback.or_else(own) else {
        let message = "it has not said where the data is".to_owned();
        return Err(DistError::PeerFailed { peer: first, message }.into());
    };
    let hosts = by_rank().count();
    let note = note.as_ref().map(|note| match hosts {
        1 => note.clone(),
        _ => format!("{note} (on the host of rank {rank})"),
    });
    Ok(Located { source: source.parse::<Source>()?, note })
}

#[expect(clippy::print_stderr, reason = "a run on other data than was meant must be seen")]
fn warn(note: &str) {
    eprintln!("warning: {note}");
}
