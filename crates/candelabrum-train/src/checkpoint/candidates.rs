//! Which checkpoint a run continues.

use std::fs;
use std::path::{Path, PathBuf};

use candelabrum_dist::Group;
use candelabrum_dist::launch::restarts;
use serde::{Deserialize, Serialize};

use super::config::Resume;
use super::directory::{Directory, is_checkpoint};
use super::manifest::{Manifest, Parent};
use crate::agreement::agree;
use crate::{Error, Result};

/// Checkpoints that may be continued.
#[derive(Serialize, Deserialize)]
pub(super) struct Candidates {
    /// The best choice first.
    pub(super) paths: Vec<PathBuf>,
    pub(super) branch: Branch,
}

/// The branch of the run that continues a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Branch {
    /// That of the checkpoint.
    Same,
    /// Another one, from a checkpoint of the run's own directory.
    FromHere,
    /// Another one, from a checkpoint of another directory.
    FromElsewhere,
}

impl Candidates {
    /// The candidates as rank 0 sees them, on all ranks. `None` if the training begins anew.
    pub(super) fn of_all(
        group: &Group,
        directory: &Directory,
        resume: &Resume,
    ) -> Result<Option<Self>> {
        let own = if group.rank() == 0 { Self::find(directory, resume) } else { Ok(None) };
        let own = serde_json::to_string(&agree(group, own)?).unwrap_or_default();
        let told = group.broadcast_text(&own, 0)?;
        Ok(serde_json::from_str(&told).unwrap_or_default())
    }

    fn find(directory: &Directory, resume: &Resume) -> Result<Option<Self>> {
        let from = match resume {
            Resume::Never => return Ok(None),
            Resume::Auto => {
                let (paths, branch) = (checkpoints_in(directory)?, Branch::Same);
                return Ok((!paths.is_empty()).then_some(Self { paths, branch }));
            }
            Resume::From(from) => from,
        };
        // A launcher that starts the run again gives it the same options.
        if restarts()? > 0 {
            let paths = since(directory, from)?;
            if !paths.is_empty() {
                return Ok(Some(Self { paths, branch: Branch::Same }));
            }
        }
        let is_own = |dir: &Path| is_same(dir, directory.path());
        let (paths, branch) = if is_checkpoint(from) {
            let branch = match from.parent().is_some_and(is_own) {
                true => Branch::FromHere,
                false => Branch::FromElsewhere,
            };
            (vec![from.clone()], branch)
        } else {
            let branch = if is_own(from) { Branch::Same } else { Branch::FromElsewhere };
            (checkpoints_in(&Directory::new(from, String::new()))?, branch)
        };
        match paths.is_empty() {
            true => Err(Error::checkpoint(from, "has no checkpoint")),
            false => Ok(Some(Self { paths, branch })),
        }
    }
}

/// The checkpoints of this directory that a run has made since it continued `from`, or one of the checkpoints in
/// this other directory, the newest first.
fn since(directory: &Directory, from: &Path) -> Result<Vec<PathBuf>> {
    let sources = if is_checkpoint(from) {
        vec![from.to_owned()]
    } else if is_same(from, directory.path()) {
        return Ok(Vec::new()); // its newest one is that of this branch
    } else {
        checkpoints_in(&Directory::new(from, String::new()))?
    };
    let sources = sources.iter().filter_map(|path| Manifest::read(path).ok());
    let sources: Vec<Parent> =
        sources.map(|it| Parent { run: it.run, step: it.position.step }).collect();
    let mut paths = checkpoints_in(directory)?;
    paths.retain(|path| {
        let parent = Manifest::read(path).ok().and_then(|manifest| manifest.parent);
        parent.is_some_and(|parent| sources.contains(&parent))
    });
    Ok(paths)
}

/// The checkpoints in a directory, the newest first.
fn checkpoints_in(directory: &Directory) -> Result<Vec<PathBuf>> {
    let unreadable =
        |error| Error::checkpoint(directory.path(), format!("cannot be read: {error}"));
    let steps = directory.newest_first().map_err(unreadable)?;
    Ok(steps.into_iter().map(|step| directory.of_step(step)).collect())
}

/// Whether two paths are one directory.
fn is_same(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| {
        fs::canonicalize(if path.as_os_str().is_empty() { Path::new(".") } else { path }).ok()
    };
    real(a).is_some_and(|a| Some(a) == real(b))
}
