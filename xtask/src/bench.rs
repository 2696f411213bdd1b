//! The common parts of the benchmarks: building a measured program, the progress bar, the folder of
//! results.

use std::env;
use std::env::consts::EXE_SUFFIX;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::checkout::repo_root;
use crate::host;
use crate::shell::{cargo, run};

/// Builds a package with the release profile and returns the path of its program.
pub(crate) fn build(package: &str, program: &str, options: &[&str]) -> Result<PathBuf> {
    run(cargo(&["build", "--release", "--package", package]).args(options))?;
    Ok(host::target_dir()?.join("release").join(format!("{program}{EXE_SUFFIX}")))
}

/// Compiles a C program against MPI and returns its path.
pub(crate) fn compile_mpi(source: &str, program: &str) -> Result<PathBuf> {
    let folder = host::target_dir()?.join("release");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let program = folder.join(program);
    let compiler = env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
    let mut command = Command::new(compiler);
    command.args(["-O2", "-Wall", "-Wextra", source, "-o"]).arg(&program);
    run(command.current_dir(repo_root()))?;
    Ok(program)
}

/// The requested items, each once, in the order of their first occurrence.
pub(crate) fn once<T: Copy + PartialEq>(asked: &[T]) -> Vec<T> {
    let mut list = Vec::new();
    for &item in asked {
        if !list.contains(&item) {
            list.push(item);
        }
    }
    list
}

/// A bar on standard error that counts samples.
pub(crate) fn progress_bar(samples: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {eta} left")
        .expect("the template is correct");
    ProgressBar::new(samples as u64).with_style(style)
}

/// The folder of the results.
#[derive(Debug)]
pub(crate) struct Output(PathBuf);

impl Output {
    /// Makes the folder: `asked`, or a folder of this name in `target`.
    pub(crate) fn new(asked: Option<&Path>, name: &str) -> Result<Self> {
        let folder = asked.map_or_else(|| repo_root().join("target").join(name), Path::to_path_buf);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self(folder))
    }

    /// The folder's absolute path.
    pub(crate) fn folder(&self) -> Result<PathBuf> {
        fs::canonicalize(&self.0).with_context(|| format!("cannot find {}", self.0.display()))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file and returns its path. If this program is stopped while it writes, the previous
    /// file is still there.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let (path, new) = (self.path(name), self.path(&format!("{name}.new")));
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// [`Self::write`] for a value as JSON.
    pub(crate) fn json(&self, name: &str, value: &impl Serialize) -> Result<PathBuf> {
        self.write(name, &(serde_json::to_string_pretty(value)? + "\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let output = Output::new(Some(&folder.path().join("made")), "unused").unwrap();
        for text in ["one", "two"] {
            let path = output.write("file.csv", text).unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(folder.path().join("made")).unwrap().count(), 1);
    }
}
