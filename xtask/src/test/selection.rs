//! Which programs a part of the tests has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use cargo_metadata::Target;

use super::build::{TestProgram, short};
use crate::checkout::{repo_root, workspace};

/// Packages and programs with tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Selection {
    packages: BTreeSet<String>,
    /// Programs of folders `tests`, each with the modules whose tests it is to run, or none for all.
    targets: BTreeMap<String, BTreeSet<String>>,
    /// Parts of the names of tests, in all programs if there are any.
    filters: Vec<String>,
}

impl Selection {
    /// A name is a package's, a program's, a program's module's or else a part of a test's.
    pub(super) fn named(names: &[String]) -> Self {
        let (mut selection, mut whole) = (Self::default(), BTreeSet::new());
        for name in names {
            if workspace().packages.iter().any(|package| short(&package.name) == name) {
                selection.packages.insert(name.clone());
            } else if tests().any(|target| target.name == *name) {
                whole.insert(name.clone());
            } else if tests().any(|target| has_module(target, name)) {
                for target in tests().filter(|target| has_module(target, name)) {
                    let modules = selection.targets.entry(target.name.clone()).or_default();
                    modules.insert(format!("{name}::"));
                }
            } else {
                selection.filters.push(name.clone());
            }
        }
        selection.targets.extend(whole.into_iter().map(|name| (name, BTreeSet::new())));
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
                selection.targets.insert(target.name.clone(), BTreeSet::new());
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
    pub(super) fn to_build(&self) -> Option<BTreeSet<String>> {
        let all = !self.packages.is_empty() || !self.filters.is_empty();
        (!all).then(|| self.targets.keys().cloned().collect())
    }

    /// The parts of names that the tests of a program must have, none for all its tests. `None` if the program is not
    /// to be run.
    pub(super) fn of(&self, program: &TestProgram) -> Option<Vec<&str>> {
        let modules = self.targets.get(&program.target);
        if self.packages.contains(&program.package) || modules.is_some_and(BTreeSet::is_empty) {
            return Some(self.filters.iter().map(String::as_str).collect());
        }
        let names = modules.into_iter().flatten().chain(&self.filters);
        let names: Vec<&str> = names.map(String::as_str).collect();
        (!names.is_empty()).then_some(names)
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The programs in folders `tests`.
fn tests() -> impl Iterator<Item = &'static Target> {
    workspace().packages.iter().flat_map(|package| &package.targets).filter(|it| it.is_test())
}

/// Whether the folder of a program has such a module.
fn has_module(program: &Target, name: &str) -> bool {
    let source = program.src_path.as_std_path();
    let folder = source.parent().filter(|_| source.ends_with("main.rs"));
    let files = [format!("{name}.rs"), format!("{name}/mod.rs")];
    name != "main" && folder.is_some_and(|it| files.iter().any(|file| it.join(file).is_file()))
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

    fn targets(all: &[(&str, &[&str])]) -> BTreeMap<String, BTreeSet<String>> {
        all.iter().map(|(target, modules)| ((*target).to_owned(), set(modules))).collect()
    }

    #[test]
    fn a_changed_test_is_that_program() {
        let selection =
            touched(&["tests/it/hooks.rs", "crates/candelabrum-kvstore/tests/store/flow.rs"]);
        assert_eq!(selection.packages, set(&[]));
        assert_eq!(selection.targets, targets(&[("it", &[]), ("store", &[])]));
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
    fn names_are_packages_then_programs_then_modules_then_tests() {
        let named = |names: &[&str]| {
            Selection::named(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
        };
        let selection = named(&["nn", "it", "timeline", "softmax"]);
        assert_eq!(selection.packages, set(&["nn"]));
        assert_eq!(selection.targets, targets(&[("it", &[]), ("jobs", &["timeline::"])]));
        assert_eq!(selection.filters, ["softmax"]);
        assert_eq!(selection.to_build(), None);
        let selection = named(&["tensor_parallel", "strategies"]);
        assert_eq!(selection.targets, targets(&[("it", &["strategies::", "tensor_parallel::"])]));
        assert_eq!(selection.to_build(), Some(set(&["it"])));
    }
}
