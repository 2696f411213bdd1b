//! The runs of a report, each with a name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use candelabrum_runlog::{LogReader, RunHistory};

use crate::broken::broken;
use crate::state::RunActivity;

/// A run of a report.
pub(super) struct ReportRun {
    pub(super) name: String,
    pub(super) dir: PathBuf,
    pub(super) run: RunHistory,
    /// What is wrong with the log, in sentences.
    pub(super) broken: Vec<String>,
    pub(super) state: RunActivity,
}

/// Reads the logs in these directories.
pub(super) fn load(dirs: &[PathBuf], names: &[String], now: f64) -> Result<Vec<ReportRun>> {
    let names = if names.is_empty() { names_of(dirs) } else { names.to_vec() };
    let read = |(dir, name): (&PathBuf, String)| {
        let mut reader = LogReader::open(dir)?;
        reader.poll()?;
        let (run, broken) = (reader.run().clone(), broken(&reader));
        let state = RunActivity::new(&run, now);
        Ok(ReportRun { name, dir: dir.clone(), run, broken, state })
    };
    dirs.iter().zip(names).map(read).collect()
}

/// The names of the folders, or the paths where two folders have the same name.
fn names_of(dirs: &[PathBuf]) -> Vec<String> {
    let folder = |dir: &PathBuf| {
        // `.` has no name, but the folder that it stands for has one.
        let whole = dir.canonicalize();
        let name = whole.as_deref().unwrap_or(dir).file_name().map(Path::new);
        name.unwrap_or(dir).display().to_string()
    };
    let names: Vec<String> = dirs.iter().map(folder).collect();
    let differ = names.iter().collect::<BTreeSet<_>>().len() == names.len();
    if differ { names } else { dirs.iter().map(|dir| dir.display().to_string()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_same_name_are_told_apart() {
        let names = |dirs: &[&str]| names_of(&dirs.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(names(&["runs/a", "runs/b/"]), ["a", "b"]);
        assert_eq!(names(&["x/log", "y/log"]), ["x/log", "y/log"]);
        assert!(!names(&["."])[0].is_empty() && names(&["."])[0] != ".");
    }
}
