//! Checks of any text file: white space, home folders, and links in Markdown.

use pulldown_cmark::{Event, Parser, Tag};

/// No white space at the end of a line, and one newline at the end of the file.
pub(super) fn whitespace(text: &str) -> Vec<(usize, String)> {
    let trailing = text.split('\n').zip(1..).filter(|(line, _)| line.ends_with([' ', '\t', '\r']));
    let mut findings: Vec<_> =
        trailing.map(|(_, at)| (at, "white space at the end".into())).collect();
    if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
        findings.push((text.lines().count(), "the file does not end with one newline".into()));
    }
    findings
}

/// No path into a home folder. (Written in two halves, because otherwise this file would be found.)
pub(super) fn home_paths(text: &str) -> Vec<(usize, String)> {
    const HOMES: [&str; 3] = [concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/ro", "ot/")];
    let begins = |line: &str, at: usize| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-}/~*".contains(c))
    };
    let names_home = |line: &str| {
        HOMES.iter().any(|home| line.match_indices(home).any(|(at, _)| begins(line, at)))
    };
    let lines = text.lines().zip(1..).filter(|(line, _)| names_home(line));
    lines.map(|(_, at)| (at, "names a home folder".into())).collect()
}

/// The target of every relative link in Markdown exists, as `exists` reports.
pub(super) fn links(text: &str, exists: impl Fn(&str) -> bool) -> Vec<(usize, String)> {
    let targets = Parser::new(text).into_offset_iter().filter_map(|(event, range)| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            Some((text[..range.start].matches('\n').count() + 1, dest_url))
        }
        _ => None,
    });
    let mut findings = Vec::new();
    for (line, target) in targets {
        let path = target.split(['#', '?']).next().unwrap_or("");
        let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
        if !is_elsewhere && !path.is_empty() && !exists(path) {
            findings.push((line, format!("link to {path}: no such file")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(findings: Vec<(usize, String)>) -> Vec<usize> {
        findings.into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn white_space_at_ends_is_found() {
        assert_eq!(lines(whitespace("a\nb \nc\t\n")), [2, 3]);
        assert_eq!(lines(whitespace("a\r\n")), [1]);
        assert_eq!(lines(whitespace("a\nb")), [2]);
        assert_eq!(lines(whitespace("a\n\n")), [2]);
        assert!(whitespace("a\n\nb\n").is_empty());
        assert!(whitespace("").is_empty());
    }

    #[test]
    fn home_folders_are_found_and_look_alikes_are_not() {
        let home = concat!("/ho", "me/someone/data");
        assert_eq!(lines(home_paths(&format!("x\ncd {home}\n"))), [2]);
        assert_eq!(lines(home_paths(concat!("path = \"/Us", "ers/me\""))), [1]);
        assert!(home_paths(concat!("https://site.org/ho", "me/page")).is_empty());
        assert!(home_paths(concat!("crates/ro", "ot/src")).is_empty());
    }

    #[test]
    fn dead_relative_links_are_found() {
        let found = |text| lines(links(text, |target| target == "README.md"));
        assert_eq!(found("[a](README.md) [b](gone.md)\n\n[c](gone.md#top)\n"), [1, 3]);
        assert_eq!(found("x\n[b][a]\n\n[a]: gone.md\n"), [2]);
        assert_eq!(found("![a](gone.png)\n"), [1]);
        assert!(found("[a](README.md#top) [b](#here) [c](README.md \"title\")\n").is_empty());
        assert!(found("[a](https://example.org/gone.md)\n").is_empty());
        assert!(found("```\n[a](gone.md)\n```\n`[b](gone.md)`\n").is_empty());
    }
}
