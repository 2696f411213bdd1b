//! The allowed dependencies between our packages: arrows point in one direction (ARCHITECTURE.md).
//!
//! Only normal dependencies count: a test may use any package. The test kit is the reverse case:
//! every package may have it as a dev-dependency, and none as a normal one.

use cargo_metadata::{Dependency, DependencyKind};

/// Our packages that a package may use, without the prefix `candelabrum-`. `None` if it is none of
/// ours.
fn allowed(package: &str) -> Option<&'static [&'static str]> {
    Some(match short(package) {
        "memory" | "datasets" | "testkit" | "softgpu" | "runlog" => &[],
        "nn" | "optim" => &["memory"],
        "models" | "compat" => &["nn"],
        "transformers" => &["datasets", "nn"],
        "dist" => &["memory", "nn", "optim"],
        "kvstore" => &["dist", "memory", "nn", "optim"],
        "train" => &["datasets", "dist", "kvstore", "memory", "nn", "optim", "runlog"],
        "candelabrum" => &[
            "datasets",
            "dist",
            "kvstore",
            "memory",
            "models",
            "nn",
            "optim",
            "runlog",
            "train",
            "transformers",
        ],
        "cli" => &["dist", "runlog"],
        "bench-player" => &["candelabrum"],
        "xtask" => &["softgpu"],
        _ => return None,
    })
}

fn short(package: &str) -> &str {
    package.strip_prefix("candelabrum-").unwrap_or(package)
}

/// The forbidden dependencies of a package, with their lines in its manifest.
pub(super) fn check(name: &str, all: &[Dependency], manifest: &str) -> Vec<(usize, String)> {
    let Some(allowed_here) = allowed(name) else {
        return vec![(1, format!("{name} is not in the table of xtask/src/tidy/arrows.rs"))];
    };
    let mut findings = Vec::new();
    for Dependency { name: other, kind, .. } in all {
        let counts = allowed(other).is_some() && *kind != DependencyKind::Development;
        if counts && !allowed_here.contains(&short(other)) {
            let line = manifest.lines().position(|line| line.starts_with(&**other));
            let what = format!("{name} must not depend on {other}");
            findings.push((line.map_or(1, |i| i + 1), what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    /// Checks a package that uses one other, in a dependency of this kind.
    fn findings(name: &str, other: &str, kind: Option<&str>) -> Vec<(usize, String)> {
        let dependency = json!({
            "name": other, "kind": kind, "req": "*", "optional": false, "features": [],
            "uses_default_features": true,
        });
        let manifest = format!("[dependencies]\n{other}.workspace = true\n");
        check(name, &[from_value(dependency).unwrap()], &manifest)
    }

    #[test]
    fn arrows_against_the_grain_are_found() {
        let [nn, optim] = ["candelabrum-nn", "candelabrum-optim"];
        let what = format!("{nn} must not depend on {optim}");
        assert_eq!(findings(nn, optim, None), [(2, what)]);
        assert_eq!(findings(nn, optim, Some("build")).len(), 1);
        assert!(findings(optim, "candelabrum-memory", None).is_empty());
        assert!(findings(nn, "candle-core", None).is_empty());
        assert!(findings(nn, "candelabrum-testkit", Some("dev")).is_empty());
        assert_eq!(findings(nn, "candelabrum-testkit", None).len(), 1);
        assert!(findings("newcomer", "anyhow", None)[0].1.contains("not in the table"));
    }
}
