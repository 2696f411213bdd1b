//! Names of source files and of code in Markdown: what a page names must exist.
//!
//! A page that explains code goes stale when a file moves. So every source file that stands in code style in a page
//! must be the end of a path of this repository, and in a row of a table that begins with a number, such as those
//! of docs/internals.md, each name in code style behind a file must occur in that file.

use std::collections::BTreeSet;

use super::text::code;

/// The ends of all paths: `src/lib.rs` and `lib.rs` for `crates/x/src/lib.rs`.
pub(super) fn ends_of_paths<'a>(paths: impl IntoIterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let ends = |path: &'a str| {
        let starts = path.match_indices('/').map(|(at, _)| at + 1);
        std::iter::once(0).chain(starts).map(move |start| &path[start..])
    };
    paths.into_iter().flat_map(ends).collect()
}

/// The source files that `text` names and that do not exist.
pub(super) fn missing_files(text: &str, ends: &BTreeSet<&str>) -> Vec<(usize, String)> {
    code(text)
        .filter(|(_, name)| is_source_file(name) && !ends.contains(&**name))
        .map(|(line, name)| (line, format!("no file {name}")))
        .collect()
}

/// The names in numbered rows of tables that do not occur in the file before them. `read` returns the text of a
/// file, by an end of its path.
pub(super) fn missing_names(
    text: &str,
    read: impl Fn(&str) -> Option<String>,
) -> Vec<(usize, String)> {
    let mut findings = Vec::new();
    for (row, line) in text.lines().zip(1..) {
        let first = row.trim_start_matches(['|', ' ']);
        if !row.starts_with('|') || !first.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let mut file = None;
        for (_, name) in code(row) {
            if is_source_file(&name) {
                file = read(&name).map(|source| (name, source));
            } else if let Some((path, source)) = &file {
                let last = name.rsplit("::").next().unwrap_or(&name);
                if !words(source).any(|word| word == last) {
                    findings.push((line, format!("{path} has no {last}")));
                }
            }
        }
    }
    findings
}

fn is_source_file(name: &str) -> bool {
    let is_path = name.chars().all(|c| c.is_alphanumeric() || "_-./".contains(c));
    is_path && [".rs", ".cu", ".py"].iter().any(|ending| name.ends_with(ending))
}

fn words(source: &str) -> impl Iterator<Item = &str> {
    source.split(|c: char| !c.is_alphanumeric() && c != '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_gone_is_found() {
        let ends = ends_of_paths(["crates/x/src/opt/step.rs", "README.md"]);
        let found = |text| missing_files(text, &ends);
        assert!(found("`opt/step.rs`, `step.rs` and `crates/x/src/opt/step.rs`").is_empty());
        assert_eq!(found("a\n`opt/steps.rs`"), [(2, "no file opt/steps.rs".to_owned())]);
        assert_eq!(found("`pt/step.rs`"), [(1, "no file pt/step.rs".to_owned())]);
        assert!(found("`Step::run`, `*.rs`\n```text\n`gone.rs`\n```\n").is_empty());
    }

    #[test]
    fn a_name_that_its_file_does_not_have_is_found() {
        let read = |path: &str| (path == "step.rs").then(|| "impl Step { fn run() }".to_owned());
        let found = |text| missing_names(text, read);
        assert!(found("| 1 | `step.rs` | `Step::run` |").is_empty());
        assert_eq!(
            found("\n| 2 | `step.rs` | `Step::ru` |"),
            [(2, "step.rs has no ru".to_owned())]
        );
        assert!(found("| a | `step.rs` | `gone` |\n`step.rs`: `gone`").is_empty());
    }
}
