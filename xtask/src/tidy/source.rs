//! Checks of Rust files: the opening doc comment, and the places of `cfg(feature)`.

use super::Finding;
use super::code::code_only;

/// The files with `cfg(feature = ..)`, besides each crate's `lib.rs` and tests. They declare the
/// modules that exist only with a feature.
const FEATURE_DOORS: &[&str] = &["crates/dist/src/comm/mod.rs"];

pub(super) fn check(file: &str, text: &str) -> Vec<Finding> {
    let mut findings = opening(file, text);
    findings.extend(feature_doors(file, &code_only(text)));
    findings
}

/// Every file begins with a description of itself.
fn opening(file: &str, text: &str) -> Vec<Finding> {
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
    if first.starts_with("//!") || first.starts_with("#![doc") {
        return Vec::new();
    }
    vec![Finding::new(file, 1, "does not open with a //! comment that says what the file is")]
}

/// A feature decides which modules exist, and never the behaviour of the code in them.
fn feature_doors(file: &str, code: &str) -> Vec<Finding> {
    let is_test = file.starts_with("tests/") || file.contains("/tests/");
    if is_test || file.ends_with("src/lib.rs") || FEATURE_DOORS.contains(&file) {
        return Vec::new();
    }
    let names_a_feature = |line: &str| {
        let gate = ["cfg(", "cfg!(", "cfg_attr("].iter().any(|word| line.contains(word));
        gate && line.contains("feature =")
    };
    let lines = code.lines().enumerate().filter(|(_, line)| names_a_feature(line));
    lines
        .map(|(i, _)| Finding::new(file, i + 1, "cfg(feature) outside the door of a module"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(file: &str, body: &str) -> Vec<usize> {
        check(file, &format!("//! A file.\n{body}")).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_file_opens_by_saying_what_it_is() {
        assert!(check("src/a.rs", "//! A file.\nfn a() {}\n").is_empty());
        assert!(check("src/lib.rs", "#![doc = include_str!(\"../README.md\")]\n").is_empty());
        assert_eq!(check("src/a.rs", "fn a() {}\n").len(), 1);
        assert_eq!(check("src/a.rs", "// A file.\n").len(), 1);
        assert_eq!(check("src/a.rs", "").len(), 1);
    }

    #[test]
    fn features_stand_at_the_doors_only() {
        let gate = "#[cfg(feature = \"mpi\")]\nmod mpi;\n";
        assert!(findings("crates/dist/src/lib.rs", gate).is_empty());
        assert!(findings(FEATURE_DOORS[0], gate).is_empty());
        assert_eq!(findings("crates/dist/src/world.rs", gate), [2]);
        assert_eq!(findings("src/a.rs", "if cfg!(feature = \"mpi\") {}\n"), [2]);
        assert_eq!(findings("src/a.rs", "#[cfg(all(unix, feature = \"mpi\"))]\n"), [2]);
    }

    #[test]
    fn tests_may_ask_for_features() {
        assert!(findings("tests/mpi.rs", "#![cfg(feature = \"mpi\")]\n").is_empty());
        let inside = "fn a() {\n    if cfg!(feature = \"mpi\") {}\n}\n";
        assert!(findings("crates/dist/tests/conformance/main.rs", inside).is_empty());
    }

    #[test]
    fn words_about_features_are_not_gates() {
        assert!(findings("src/a.rs", "// #[cfg(feature = \"mpi\")]\n").is_empty());
        assert!(findings("src/a.rs", "#[cfg(unix)]\nlet a = \"cfg(feature = x)\";\n").is_empty());
    }
}
