//! Checks of any text file: white space, home folders, and links in Markdown.

use super::Finding;

/// No white space at the end of a line, and one newline at the end of the file.
pub(super) fn whitespace(file: &str, text: &str) -> Vec<Finding> {
    let trailing =
        text.split('\n').enumerate().filter(|(_, line)| line.ends_with([' ', '\t', '\r']));
    let mut findings: Vec<_> =
        trailing.map(|(i, _)| Finding::new(file, i + 1, "white space at the end")).collect();
    let last = text.lines().count();
    if !text.is_empty() && !text.ends_with('\n') {
        findings.push(Finding::new(file, last, "no newline at the end of the file"));
    } else if text.ends_with("\n\n") {
        findings.push(Finding::new(file, last, "empty line at the end of the file"));
    }
    findings
}

/// No path into a home folder. (Written in two halves, because otherwise this file would be found.)
pub(super) fn home_paths(file: &str, text: &str) -> Vec<Finding> {
    const HOMES: [&str; 3] = [concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/ro", "ot/")];
    let names_home = |line: &str| {
        HOMES.iter().any(|home| {
            line.match_indices(home).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                !before.is_some_and(|c| c.is_alphanumeric() || "._-}/~*".contains(c))
            })
        })
    };
    let lines = text.lines().enumerate().filter(|(_, line)| names_home(line));
    lines.map(|(i, _)| Finding::new(file, i + 1, "names a home folder")).collect()
}

/// The target of every relative link in Markdown exists, as `exists` reports.
pub(super) fn links(file: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_code = false;
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for target in link_targets(line) {
            let path = target.split(['#', '?']).next().unwrap_or("");
            let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
            if !is_elsewhere && !path.is_empty() && !exists(path) {
                findings.push(Finding::new(file, i + 1, format!("link to {path}: no such file")));
            }
        }
    }
    findings
}

/// The targets of `[text](target)`, `[text](target "title")` and `[name]: target`, except inside
/// backticks.
fn link_targets(line: &str) -> Vec<&str> {
    let definition = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]:"));
    if let Some((_, target)) = definition {
        return target.split_whitespace().take(1).collect();
    }
    let outside_code = line.split('`').step_by(2);
    let after_brackets = outside_code.flat_map(|part| part.split("](").skip(1));
    let inside = after_brackets.filter_map(|rest| rest.split([')', ' ']).next());
    inside.map(|target| target.trim_matches(['<', '>'])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn white_space_at_ends_is_found() {
        assert_eq!(lines(&whitespace("a", "a\nb \nc\t\n")), [2, 3]);
        assert_eq!(lines(&whitespace("a", "a\r\n")), [1]);
        assert_eq!(lines(&whitespace("a", "a\nb")), [2]);
        assert_eq!(lines(&whitespace("a", "a\n\n")), [2]);
        assert!(whitespace("a", "a\n\nb\n").is_empty());
        assert!(whitespace("a", "").is_empty());
    }

    #[test]
    fn home_folders_are_found_and_look_alikes_are_not() {
        let home = concat!("/ho", "me/someone/data");
        assert_eq!(lines(&home_paths("a", &format!("x\ncd {home}\n"))), [2]);
        assert_eq!(lines(&home_paths("a", concat!("path = \"/Us", "ers/me\""))), [1]);
        assert!(home_paths("a", concat!("https://site.org/ho", "me/page")).is_empty());
        assert!(home_paths("a", concat!("crates/ro", "ot/src")).is_empty());
    }

    #[test]
    fn dead_relative_links_are_found() {
        let exists = |target: &str| target == "README.md";
        let found = |text| lines(&links("a.md", text, exists));
        assert_eq!(found("[a](README.md) [b](gone.md)\n\n[c](gone.md#top)\n"), [1, 3]);
        assert_eq!(found("[a]: gone.md\n"), [1]);
        assert!(found("[a](README.md#top) [b](#here) [c](README.md \"title\")\n").is_empty());
        assert!(found("[a](https://example.org/gone.md)\n").is_empty());
        assert!(found("```\n[a](gone.md)\n```\n`[b](gone.md)`\n").is_empty());
    }
}
