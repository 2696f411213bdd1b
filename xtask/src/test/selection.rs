//! Which programs a part of the tests has.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use cargo_metadata::Target;

use super::build::{Program, short};
use crate::checkout::{repo_root, workspace};

/// Packages and programs with tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Selection {
    packages: BTreeSet<String>,
    /// Programs of folders `tests`.
    targets: BTreeSet<String>,
    /// Parts of the names of tests, in all programs if there are any.
    pub(super) filters: Vec<String>,
}

impl Selection {
    /// A name is a package's, a program's or else a part of a test's.
    pub(super) fn named(names: &[String]) -> Self {
        let mut selection = Self::default();
        for name in names {
            if workspace().packages.iter().any(|package| short(&package.name) == name) {
                selection.packages.insert(name.clone());
            } else if tests().any(|target| target.name == *name) {
                selection.targets.insert(name.clone());
            } else {
                selection.filters.push(name.clone());
            }
        }
        selection
    }

    /// What the changes since `commit` touch: the packages with changed files, those that depend on them, and programs
    /// of which only the tests changed.
    pub(super) fn changed_since(commit: &str) -> Result<Self> {
        let mut files = lines(&["diff", "--name-only", commit])?;
        files.extend(lines(&["ls-files", "--others", "--exclude-standard"])?);
        let root = repo_root();
        Ok(Self::touched_by(files.iter().map(|file| root.join(file))))
    }

    fn touched_by(files: impl Iterator<Item = PathBuf>) -> Self {
        let mut selection = Self::default();
        for file in files {
            let is_in = |folder: Option<&Path>| folder.is_some_and(|it| file.starts_with(it));
            let target = tests().find(|target| {
                let source = target.src_path.as_std_path();
                file == source || is_in(source.parent().filter(|_| source.ends_with("main.rs")))
            });
            let packages = workspace().packages.iter();
            let package = packages
                .filter(|package| is_in(package.manifest_path.as_std_path().parent()))
                .max_by_key(|package| package.manifest_path.as_str().len());
            if let Some(target) = target {
                selection.targets.insert(target.name.clone());
            } else if let Some(package) = package {
                selection.packages.insert(short(&package.name).to_owned());
            }
        }
        selection.add_dependants();
        selection
    }

    /// Adds the packages that depend on one of these.
    fn add_dependants(&mut self) {
        loop {
            let count = self.packages.len();
            for package in &workspace().packages {
                let mut ours = package.dependencies.iter().filter(|other| other.path.is_some());
                if ours.any(|other| self.packages.contains(short(&other.name))) {
                    self.packages.insert(short(&package.name).to_owned());
                }
            }
            if self.packages.len() == count {
                return;
            }
        }
    }

    /// The programs to build, by their names; all programs if `None`.
    pub(super) fn to_build(&self) -> Option<&BTreeSet<String>> {
        (self.packages.is_empty() && self.filters.is_empty()).then_some(&self.targets)
    }

    pub(super) fn has(&self, program: &Program) -> bool {
        !self.filters.is_empty()
            || self.packages.contains(&program.package)
            || self.targets.contains(&program.target)
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The programs in folders `tests`.
fn tests() -> impl Iterator<Item = &'static Target> {
    workspace().packages.iter().flat_map(|package| &package.targets).filter(|it| it.is_test())
}

/// The lines that git prints.
fn lines(args: &[&str]) -> Result<Vec<String>> {
    let output = Command::new("git").args(args).current_dir(repo_root()).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {}", args.join(" "), error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touched(files: &[&str]) -> Selection {
        let root = repo_root();
        Selection::touched_by(files.iter().map(|file| root.join(file)))
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_changed_test_is_that_program() {
        let selection =
            touched(&["tests/hooks.rs", "crates/candelabrum-kvstore/tests/store/flow.rs"]);
        assert_eq!((selection.packages, selection.targets), (set(&[]), set(&["hooks", "store"])));
    }

    #[test]
    fn a_changed_package_is_tested_with_those_that_depend_on_it() {
        let Selection { packages, targets, .. } =
            touched(&["crates/candelabrum-runlog/src/lib.rs"]);
        assert!(targets.is_empty() && !packages.contains("nn"), "{packages:?}");
        let some = set(&["runlog", "train", "cli", "candelabrum"]);
        assert!(packages.is_superset(&some), "{packages:?}");
    }

    #[test]
    fn names_are_packages_then_programs_then_tests() {
        let selection = Selection::named(&["nn", "hooks", "softmax"].map(str::to_owned));
        assert!(selection.packages.contains("nn") && selection.targets.contains("hooks"));
        assert_eq!(selection.filters, ["softmax"]);
        assert_eq!(selection.to_build(), None);
        assert!(Selection::named(&["hooks".to_owned()]).to_build().is_some());
    }
}
