//! The allowed dependencies between our packages: arrows point in one direction (ARCHITECTURE.md).
//!
//! Only normal dependencies count: a test may use any package. The test kit is the reverse case:
//! every package may have it as a dev-dependency, and none as a normal one.

use serde_json::Value;

/// Each package, and our packages that it may use, without the prefix `candelabrum-`.
const ARROWS: &str = "
    memory:
    nn: memory
    optim: memory
    dist: memory nn optim
    models: nn
    datasets:
    train: datasets dist nn optim
    candelabrum: datasets dist memory models nn optim train
    testkit:
    softgpu:
    bench-player: candelabrum
    xtask: softgpu
";

/// The packages that a package may use; `None` if it is not in the table.
fn allowed(package: &str) -> Option<Vec<&'static str>> {
    let rows = ARROWS.lines().filter_map(|row| row.trim().split_once(':'));
    let row = rows.into_iter().find(|(name, _)| *name == short(package));
    row.map(|(_, others)| others.split_whitespace().collect())
}

fn short(package: &str) -> &str {
    package.strip_prefix("candelabrum-").unwrap_or(package)
}

/// The forbidden dependencies of a package, as cargo describes it, with their lines in the manifest.
pub(super) fn check(package: &Value, manifest: &str) -> Vec<(usize, String)> {
    let name = package["name"].as_str().unwrap_or_default();
    let Some(allowed_here) = allowed(name) else {
        return vec![(1, format!("{name} is not in the table of xtask/src/tidy/arrows.rs"))];
    };
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let normal = dependencies.filter(|other| other["kind"] != "dev");
    let names = normal.filter_map(|other| other["name"].as_str());
    let line = |other: &str| manifest.lines().position(|line| line.starts_with(other));
    names
        .filter(|other| allowed(other).is_some() && !allowed_here.contains(&short(other)))
        .map(|other| {
            (line(other).map_or(1, |i| i + 1), format!("{name} must not depend on {other}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Checks a package that uses one other, in a dependency of this kind.
    fn findings(name: &str, other: &str, kind: Option<&str>) -> Vec<(usize, String)> {
        let package = json!({ "name": name, "dependencies": [{ "name": other, "kind": kind }] });
        check(&package, &format!("[dependencies]\n{other}.workspace = true\n"))
    }

    #[test]
    fn arrows_against_the_grain_are_found() {
        let what = "candelabrum-nn must not depend on candelabrum-optim".to_owned();
        assert_eq!(findings("candelabrum-nn", "candelabrum-optim", None), [(2, what)]);
        assert_eq!(findings("candelabrum-nn", "candelabrum-optim", Some("build")).len(), 1);
        assert!(findings("candelabrum-optim", "candelabrum-memory", None).is_empty());
        assert!(findings("candelabrum-nn", "candle-core", None).is_empty());
    }

    #[test]
    fn the_test_kit_is_for_tests_only() {
        let kit = "candelabrum-testkit";
        assert!(findings("candelabrum-nn", kit, Some("dev")).is_empty());
        assert_eq!(findings("candelabrum-nn", kit, None).len(), 1);
    }

    #[test]
    fn a_package_outside_the_table_is_found() {
        assert!(findings("newcomer", "anyhow", None)[0].1.contains("not in the table"));
    }
}
