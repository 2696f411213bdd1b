//! Checks of Rust files: the opening doc comment, and the places of `cfg(feature)`.

use proc_macro2::{TokenStream, TokenTree};

/// The files with `cfg(feature = ..)`, besides each crate's `lib.rs` and tests. They declare the
/// modules that exist only with a feature.
const FEATURE_DOORS: &[&str] =
    &["crates/candelabrum-dist/src/comm/mod.rs", "benches/player/src/main.rs"];

pub(super) fn check(file: &str, text: &str) -> Vec<(usize, String)> {
    let mut findings = Vec::new();
    if !["//!", "#![doc"].iter().any(|opening| text.trim_start().starts_with(opening)) {
        let what = "does not open with a //! comment that says what the file is";
        findings.push((1, what.to_owned()));
    }
    let is_test = file.split('/').any(|folder| folder == "tests");
    if !is_test && !file.ends_with("src/lib.rs") && !FEATURE_DOORS.contains(&file) {
        let lines = text.parse().map_or(Vec::new(), feature_gates).into_iter();
        findings.extend(lines.map(|at| (at, "cfg(feature) outside the door of a module".into())));
    }
    findings
}

/// Whether a file has tests and nothing else.
pub(super) fn is_test_file(file: &str) -> bool {
    file.split('/').any(|part| part == "tests" || part == "tests.rs")
}

/// Whether a file is a part of a library, or of a program that is more than an example or a small benchmark.
pub(super) fn is_product(file: &str) -> bool {
    let mut below = file.split('/').skip(1);
    !is_test_file(file)
        && !file.split('/').any(|part| part == "examples")
        && below.all(|part| part != "benches")
}

/// The lines where the code asks for a feature. A feature decides which modules exist, and never
/// the behaviour of the code in them.
fn feature_gates(code: TokenStream) -> Vec<usize> {
    let (mut lines, mut gate) = (Vec::new(), None);
    for token in code {
        match token {
            TokenTree::Ident(word) if word == "cfg" || word == "cfg_attr" => {
                gate = Some(word.span().start().line);
            }
            TokenTree::Punct(mark) if mark.as_char() == '!' => {}
            TokenTree::Group(group) => match gate.take() {
                Some(line) if group.to_string().contains("feature =") => lines.push(line),
                _ => lines.extend(feature_gates(group.stream())),
            },
            TokenTree::Punct(_) | TokenTree::Ident(_) | TokenTree::Literal(_) => gate = None,
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(file: &str, body: &str) -> Vec<usize> {
        check(file, &format!("//! A file.\n{body}")).iter().map(|(line, _)| *line).collect()
    }

    #[test]
    fn a_file_opens_by_saying_what_it_is() {
        assert!(check("src/a.rs", "//! A file.\nfn a() {}\n").is_empty());
        assert!(check("src/lib.rs", "#![doc = include_str!(\"../README.md\")]\n").is_empty());
        for without in ["fn a() {}\n", "// A file.\n", ""] {
            assert_eq!(check("src/a.rs", without).len(), 1);
        }
    }

    #[test]
    fn features_stand_at_the_doors_and_in_tests_only() {
        let inside = "fn a() {\n    if cfg!(feature = \"mpi\") {}\n}\n";
        assert_eq!(findings("src/a.rs", inside), [3]);
        assert!(findings("crates/candelabrum-dist/tests/conformance/main.rs", inside).is_empty());
        for gate in [
            "#[cfg(feature = \"mpi\")]\nmod mpi;\n",
            "#![cfg(feature = \"mpi\")]\n",
            "#[cfg(all(unix, feature = \"mpi\"))]\n",
            "#[cfg_attr(feature = \"mpi\", test)]\n",
        ] {
            assert_eq!(findings("crates/candelabrum-dist/src/world.rs", gate), [2]);
            for door in [
                "crates/candelabrum-dist/src/lib.rs",
                FEATURE_DOORS[0],
                "tests/mpi.rs",
                "a/tests/b/main.rs",
            ] {
                assert!(findings(door, gate).is_empty());
            }
        }
    }

    #[test]
    fn words_about_features_are_not_gates() {
        for words in [
            "// #[cfg(feature = \"mpi\")]\n",
            "/* /* cfg(feature = */ x */ fn f<'a>(r#type: &'a u8) {}\n",
            "#[cfg(unix)]\nconst A: &str = \"cfg(feature = x)\";\n",
            "const A: &str = r#\"a \" cfg(feature = b)\"#;\n",
        ] {
            assert!(findings("src/a.rs", words).is_empty());
        }
    }
}
