//! The digits of a run: located once per host, the same on every rank.
//!
//! Each host has files of its own, so on every host the first of its ranks looks for them (and
//! downloads what is missing) for all ranks of its host. Meanwhile the others wait; the time that
//! downloads may take is well below the time that they wait for each other. Then all ranks hear what
//! every host has found: either all train on MNIST, or all on the same synthetic digits, or all fail
//! with the cause.

use std::time::Duration;

use candelabrum_datasets::{Loaded, Located, Request, Source, locate};
use candelabrum_dist::{Error as DistError, World};

use crate::Result;

/// How long downloads may take, all together, where nobody says anything else. The ranks that wait
/// meanwhile give up after 300 s.
pub const DOWNLOAD_TIME: Duration = Duration::from_secs(120);

/// What a host's first rank has found: a source and a note on it, or what went wrong.
type Answer = std::result::Result<(String, Option<String>), String>;

/// The dataset that `request` asks for, the same on every rank. All ranks must call it together,
/// with the same request.
///
/// Where it is not the data that was hoped for, rank 0 says so in a line on standard error, and
/// [`Loaded::note`] says it on every rank. Downloads end before half of the time has passed for which
/// ranks wait for each other ([`World::deadline`]).
///
/// # Errors
/// A directory without the files, files that are not what they should be, MNIST that is nowhere. The
/// ranks of other hosts get [`candelabrum_dist::Error::PeerFailed`] with the cause.
pub fn load_data(request: &Request, world: &World) -> Result<Loaded> {
    let host = world.host_group()?;
    let longest = world.deadline()? / 2;
    let find = || {
        let download = request.download.map(|within| within.min(longest));
        locate(&Request { download, ..request.clone() })
    };
    let found = (host.rank() == 0).then(find);
    let answer: Option<Answer> = found.as_ref().map(|found| match found {
        Ok(located) => Ok((located.source.to_string(), located.note.clone())),
        Err(error) => Err(error.to_string()),
    });
    // Texts alone: there is nothing that JSON has not.
    let answer = serde_json::to_string(&answer).unwrap_or_default();
    let agreed = agree(&world.comm().all_gather_text(&answer)?, host.ranks()[0]);
    // The rank itself names the cause; for the others it is the failure of another rank.
    found.transpose()?;
    let located = agreed?;
    if let Some(note) = located.note.as_ref().filter(|_| world.is_root()) {
        warn(note);
    }
    Ok(located.open()?)
}

/// What the ranks of the host whose first rank is `first` use, by every rank's answer.
fn agree(answers: &[String], first: usize) -> Result<Located> {
    let answers: Vec<Option<Answer>> =
        answers.iter().map(|text| serde_json::from_str(text).unwrap_or_default()).collect();
    let by_rank = || answers.iter().enumerate().filter_map(|(rank, a)| Some((rank, a.as_ref()?)));
    if let Some((peer, message)) = by_rank().find_map(|(rank, a)| Some((rank, a.as_ref().err()?))) {
        return Err(DistError::PeerFailed { peer, message: message.clone() }.into());
    }
    // One host that falls back makes all fall back: they would train on different data otherwise.
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
