//! `cargo xtask interface`: the public interface of every published library, as a listing in the tree.
//!
//! A user's program depends on each public item, each public field included. The listing makes a change of one visible
//! in the change itself: CI compares the listing with the code, and the command writes the listing again. Who writes
//! the listing again decides that programs may break, and says so in CHANGELOG.md.
//!
//! rustdoc describes a library as JSON, and the crate `public-api` makes lines of it. Each version of rustdoc has its
//! own form of JSON, so a newer Rust needs the version of `public-api` that fits.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use cargo_metadata::Package;
use fs_err as fs;

use crate::checkout::{repo_root, workspace};
use crate::shell::run as run_command;
use crate::test::build::TestBuild;

/// The folder of the listings, a file for each library.
const FOLDER: &str = "docs/interface";

/// Writes the listings.
pub(crate) fn write() -> Result<()> {
    let build = TestBuild::of_this_machine()?;
    ensure!(build.is_complete(), "{INCOMPLETE}");
    document(&build)?;
    fs::create_dir_all(repo_root().join(FOLDER))?;
    for package in libraries() {
        fs::write(file(package), listing(&build, package)?)?;
    }
    Ok(())
}

/// Builds the documentation without warnings, and compares the listings with the code.
pub(crate) fn check(build: &TestBuild) -> Result<()> {
    document(build)?;
    if !build.is_complete() {
        println!("{INCOMPLETE}");
        return Ok(());
    }
    let mut count = 0;
    for package in libraries() {
        let (now, path) = (listing(build, package)?, file(package));
        let before = fs::read_to_string(&path).unwrap_or_default();
        let [before, now] = [&before, &now].map(|text| text.lines().collect::<BTreeSet<_>>());
        let gone = before.difference(&now).map(|line| format!("-{line}"));
        let added = now.difference(&before).map(|line| format!("+{line}"));
        let changes: Vec<_> = gone.chain(added).collect();
        if !changes.is_empty() {
            println!("{}:\n{}", path.display(), changes.join("\n"));
        }
        count += changes.len();
    }
    ensure!(
        count == 0,
        "{count} changes of the public interface: if they are meant, call `cargo xtask interface` and say in \
         CHANGELOG.md what a user's program has to change"
    );
    Ok(())
}

const INCOMPLETE: &str = "the listing of the public interface needs MPI and the software GPU (`cargo xtask setup`): not \
                          compared";

/// Lets rustdoc describe all packages.
fn document(build: &TestBuild) -> Result<()> {
    let mut doc = build.cargo(&["doc", "--no-deps"]);
    doc.env("RUSTDOC", repo_root().join("xtask/rustdoc.sh"));
    doc.env("RUSTDOCFLAGS", "-D warnings -Z unstable-options --output-format json");
    run_command(&mut doc)
}

/// The published packages that have a library.
fn libraries() -> impl Iterator<Item = &'static Package> {
    let packages = workspace().packages.iter();
    packages.filter(|package| {
        package.publish.is_none() && package.targets.iter().any(|target| target.is_lib())
    })
}

fn file(package: &Package) -> PathBuf {
    repo_root().join(FOLDER).join(format!("{}.txt", package.name))
}

/// The public items of a library, a line for each. What a `derive` writes is not among them.
fn listing(build: &TestBuild, package: &Package) -> Result<String> {
    let json = format!("doc/{}.json", package.name.replace('-', "_"));
    let json = build.target_folder().join(json);
    let items = public_api::Builder::from_rustdoc_json(&json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build();
    let items = items.with_context(|| format!("cannot read {}", json.display()))?;
    Ok(items.items().map(|item| format!("{item}\n")).collect())
}
