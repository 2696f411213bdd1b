//! The allowed dependencies between our packages: arrows point in one direction (ARCHITECTURE.md).
//!
//! Only normal dependencies count: a test may use any package. The test kit is the reverse case:
//! every package may have it as a dev-dependency, and none as a normal one.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Finding;
use crate::shell::cargo;

/// Each package, and our packages that it may use.
const ARROWS: &[(&str, &[&str])] = &[
    ("candelabrum-memory", &[]),
    ("candelabrum-nn", &["candelabrum-memory"]),
    ("candelabrum-optim", &["candelabrum-memory"]),
    ("candelabrum-dist", &["candelabrum-memory", "candelabrum-nn", "candelabrum-optim"]),
    ("candelabrum-models", &["candelabrum-nn"]),
    ("candelabrum-datasets", &[]),
    (
        "candelabrum-train",
        &["candelabrum-datasets", "candelabrum-dist", "candelabrum-nn", "candelabrum-optim"],
    ),
    (
        "candelabrum",
        &[
            "candelabrum-datasets",
            "candelabrum-dist",
            "candelabrum-memory",
            "candelabrum-models",
            "candelabrum-nn",
            "candelabrum-optim",
            "candelabrum-train",
        ],
    ),
    ("candelabrum-testkit", &[]),
    ("candelabrum-softgpu", &[]),
    ("candelabrum-bench-player", &["candelabrum"]),
    ("xtask", &["candelabrum-softgpu"]),
];

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    manifest_path: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    /// `None` for a normal dependency, otherwise `dev` or `build`.
    kind: Option<String>,
}

/// Reads the packages of the workspace from cargo and checks their dependencies.
pub(super) fn check_workspace(root: &Path) -> Result<Vec<Finding>> {
    let mut command = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let output = command.output().context("cannot start cargo metadata")?;
    let metadata: Metadata = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())
        .context("cannot read what `cargo metadata` printed")?;
    let mut findings = Vec::new();
    for (package, what, dependency) in broken_arrows(&metadata.packages) {
        let path = Path::new(&package.manifest_path);
        let manifest = fs::read_to_string(path)?;
        let line = manifest.lines().position(|line| line.starts_with(dependency)).unwrap_or(0) + 1;
        let file = path.strip_prefix(root).unwrap_or(path).to_string_lossy();
        findings.push(Finding::new(&file, line, what));
    }
    Ok(findings)
}

/// The packages with a forbidden arrow, the error, and the dependency.
fn broken_arrows(packages: &[Package]) -> Vec<(&Package, String, &str)> {
    let is_ours = |name: &str| packages.iter().any(|package| package.name == name);
    let mut broken = Vec::new();
    for package in packages {
        let name = &package.name;
        let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| known == name) else {
            let what = format!("{name} is not in the table of xtask/src/tidy/arrows.rs");
            broken.push((package, what, "name"));
            continue;
        };
        let normal = package.dependencies.iter().filter(|d| d.kind.as_deref() != Some("dev"));
        for dependency in normal.filter(|d| is_ours(&d.name)) {
            if !allowed.contains(&dependency.name.as_str()) {
                let what = format!("{name} must not depend on {}", dependency.name);
                broken.push((package, what, &dependency.name));
            }
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Package {
        let dependency = |&(name, kind): &(&str, Option<&str>)| Dependency {
            name: name.to_owned(),
            kind: kind.map(str::to_owned),
        };
        Package {
            name: name.into(),
            manifest_path: "Cargo.toml".into(),
            dependencies: dependencies.iter().map(dependency).collect(),
        }
    }

    #[test]
    fn arrows_against_the_grain_are_found() {
        let packages = [
            package("candelabrum-nn", &[("candelabrum-optim", None), ("candle-core", None)]),
            package("candelabrum-optim", &[("candelabrum-memory", None)]),
            package("candelabrum-memory", &[]),
        ];
        let broken = broken_arrows(&packages);
        assert_eq!(broken.len(), 1);
        assert_eq!(broken[0].1, "candelabrum-nn must not depend on candelabrum-optim");
    }

    #[test]
    fn the_test_kit_is_for_tests_only() {
        let kit = || package("candelabrum-testkit", &[]);
        let dev = [package("candelabrum-nn", &[("candelabrum-testkit", Some("dev"))]), kit()];
        assert!(broken_arrows(&dev).is_empty());
        let normal = [package("candelabrum-nn", &[("candelabrum-testkit", None)]), kit()];
        assert_eq!(broken_arrows(&normal).len(), 1);
    }

    #[test]
    fn a_package_outside_the_table_is_found() {
        let packages = [package("newcomer", &[])];
        assert!(broken_arrows(&packages)[0].1.contains("not in the table"));
    }
}
