//! Checks of Rust files: the opening doc comment, the places of `cfg(feature)`, SAFETY comments.

use super::Finding;
use super::code::code_only;

/// Where `cfg(feature = ..)` may stand besides a crate's `lib.rs` and its tests: the doors of
/// modules that exist only with a feature.
const FEATURE_DOORS: &[&str] = &["crates/dist/src/comm/mod.rs"];

pub(super) fn check(file: &str, text: &str) -> Vec<Finding> {
    let code = code_only(text);
    let mut findings = opening(file, text);
    findings.extend(feature_doors(file, &code));
    findings.extend(safety_comments(file, text, &code));
    findings
}

/// Every file says first what it is.
fn opening(file: &str, text: &str) -> Vec<Finding> {
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
    if first.starts_with("//!") || first.starts_with("#![doc") {
        return Vec::new();
    }
    vec![Finding::new(file, 1, "does not open with a //! comment that says what the file is")]
}

/// A feature decides which modules exist, not what the code inside them does.
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

/// Every `unsafe` block and `unsafe impl` is argued for in the three lines before it.
fn safety_comments(file: &str, text: &str, code: &str) -> Vec<Finding> {
    let lines: Vec<&str> = text.lines().collect();
    let is_unsafe = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let starts_block = |word: &str| word == "{" || word.starts_with('{');
        words.windows(2).any(|pair| {
            let keyword = pair[0].rsplit(['(', '=', '|', '!', '&', '*']).next();
            keyword == Some("unsafe") && (starts_block(pair[1]) || pair[1].starts_with("impl"))
        })
    };
    let places = code.lines().enumerate().filter(|(_, line)| is_unsafe(line)).map(|(i, _)| i);
    places
        .filter(|&i| !has_safety_comment(&lines, i))
        .map(|i| Finding::new(file, i + 1, "unsafe without a // SAFETY: comment before it"))
        .collect()
}

/// Looks at the line, the three before it, and on through the comment that those belong to.
fn has_safety_comment(lines: &[&str], unsafe_line: usize) -> bool {
    let mut at = unsafe_line;
    loop {
        if lines[at].contains("// SAFETY:") {
            return true;
        }
        let is_near = unsafe_line - at < 3;
        let in_comment = lines[at].trim_start().starts_with("//");
        if at == 0 || !(is_near || in_comment) {
            return false;
        }
        at -= 1;
    }
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

    #[test]
    fn unsafe_blocks_are_argued_for() {
        assert_eq!(findings("src/a.rs", "fn a() {\n    unsafe { b() }\n}\n"), [3]);
        assert_eq!(findings("src/a.rs", "let a = f(unsafe { b() });\n"), [2]);
        assert_eq!(findings("src/a.rs", "unsafe impl Send for A {}\n"), [2]);
        assert!(findings("src/a.rs", "// SAFETY: b is sound.\nunsafe { b() }\n").is_empty());
        let near = "// SAFETY: b is sound.\nlet c =\n    d\n    .f(unsafe { b() });\n";
        assert!(findings("src/a.rs", near).is_empty());
        let long = "// SAFETY: b\n// is\n// sound\n// because\n// of c.\nunsafe { b() }\n";
        assert!(findings("src/a.rs", long).is_empty());
        let far = "// SAFETY: b.\nlet c;\nlet d;\nlet e;\nunsafe { b() }\n";
        assert_eq!(findings("src/a.rs", far), [6]);
    }

    #[test]
    fn declarations_and_words_are_not_unsafe_blocks() {
        assert!(findings("src/a.rs", "unsafe extern \"C\" {}\n").is_empty());
        assert!(findings("src/a.rs", "/// # Safety\npub unsafe fn b() {}\n").is_empty());
        assert!(findings("src/a.rs", "// unsafe { no }\nlet s = \"unsafe { no }\";\n").is_empty());
        assert!(findings("src/a.rs", "#![deny(unsafe_code)]\n").is_empty());
    }
}
