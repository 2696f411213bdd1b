//! Which programs a part of the tests has.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use cargo_metadata::{Package, Target};

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
            if workspace().packages.iter().any(|package| short(package) == name) {
                selection.packages.insert(name.clone());
            } else if tests().any(|(_, target)| target.name == *name) {
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
            let is_of = |folder: &Path| file.starts_with(folder);
            let target = tests().find(|(_, target)| {
                let source = target.src_path.as_std_path();
                let folder = source.parent().filter(|_| source.ends_with("main.rs"));
                file == source || folder.is_some_and(is_of)
            });
            let folder = |package: &&Package| {
                package.manifest_path.parent().map(|it| it.as_std_path().to_owned())
            };
            let packages = workspace().packages.iter();
            let packages = packages.filter(|package| folder(package).is_some_and(|it| is_of(&it)));
            match (target, packages.max_by_key(|package| package.manifest_path.as_str().len())) {
                (Some((_, target)), _) => drop(selection.targets.insert(target.name.clone())),
                (None, Some(package)) => drop(selection.packages.insert(short(package).to_owned())),
                (None, None) => {}
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
                let mut dependencies = package.dependencies.iter();
                let of_ours = |name: &str| {
                    let mut packages = workspace().packages.iter();
                    packages
                        .any(|other| *other.name == *name && self.packages.contains(short(other)))
                };
                if dependencies.any(|dependency| of_ours(&dependency.name)) {
                    self.packages.insert(short(package).to_owned());
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

/// The programs in folders `tests`, with their packages.
pub(super) fn tests() -> impl Iterator<Item = (&'static Package, &'static Target)> {
    let packages = workspace().packages.iter();
    let targets =
        packages.flat_map(|package| package.targets.iter().map(move |target| (package, target)));
    targets.filter(|(_, target)| target.is_test())
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

    fn touched(files: &[&str]) -> (Vec<String>, Vec<String>) {
        let root = repo_root();
        let selection = Selection::touched_by(files.iter().map(|file| root.join(file)));
        (selection.packages.into_iter().collect(), selection.targets.into_iter().collect())
    }

    #[test]
    fn a_changed_test_is_that_program() {
        let none: [&str; 0] = [];
        let (packages, targets) =
            touched(&["tests/hooks.rs", "crates/kvstore/tests/store/flow.rs"]);
        assert_eq!(
            (&packages[..], &targets[..]),
            (&none.map(str::to_owned)[..], &["hooks", "store"].map(str::to_owned)[..])
        );
    }

    #[test]
    fn a_changed_package_is_tested_with_those_that_depend_on_it() {
        let (packages, targets) = touched(&["crates/runlog/src/lib.rs"]);
        assert!(targets.is_empty() && !packages.contains(&"nn".to_owned()), "{packages:?}");
        for package in ["runlog", "train", "cli", "candelabrum"] {
            assert!(packages.contains(&package.to_owned()), "{package} of {packages:?}");
        }
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
