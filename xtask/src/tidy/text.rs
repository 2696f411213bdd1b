//! Checks of any text file: white space, home folders, and links in Markdown. Also finds the code in Markdown.

use pulldown_cmark::{CowStr, Event, Options, Parser, Tag};

/// No white space at the end of a line, and one newline at the end of the file.
pub(super) fn whitespace(text: &str) -> Vec<(usize, String)> {
    let mut findings =
        lines(text, "white space at the end", |line| line.ends_with([' ', '\t', '\r']));
    if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
        findings.push((text.lines().count(), "the file does not end with one newline".into()));
    }
    findings
}

/// No path into a home folder. (Written in two halves, because otherwise this file would be found.)
pub(super) fn home_paths(text: &str) -> Vec<(usize, String)> {
    const HOMES: [&str; 3] = [concat!("/ho", "me/"), concat!("/Us", "ers/"), concat!("/ro", "ot/")];
    let is_longer =
        |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || "._-}/~*".contains(c));
    let begins = |line: &str, home| line.match_indices(home).any(|(at, _)| !is_longer(&line[..at]));
    lines(text, "names a home folder", |line| HOMES.iter().any(|home| begins(line, *home)))
}

/// A finding for each of these lines.
fn lines(text: &str, what: &str, is_wrong: impl Fn(&str) -> bool) -> Vec<(usize, String)> {
    let wrong = text.split('\n').zip(1..).filter(|(line, _)| is_wrong(line));
    wrong.map(|(_, at)| (at, what.to_owned())).collect()
}

/// The target of every relative link in Markdown exists, as `exists` reports.
pub(super) fn links(text: &str, exists: impl Fn(&str) -> bool) -> Vec<(usize, String)> {
    let mut findings = Vec::new();
    for (event, range) in Parser::new(text).into_offset_iter() {
        if let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event {
            let path = dest_url.split(['#', '?']).next().unwrap_or("");
            let is_elsewhere = dest_url.contains("://") || dest_url.starts_with("mailto:");
            if !is_elsewhere && !path.is_empty() && !exists(path) {
                findings
                    .push((line_of(text, range.start), format!("link to {path}: no such file")));
            }
        }
    }
    findings
}

/// The code between backquotes in Markdown, with its lines. Blocks of code are left out.
pub(super) fn code(text: &str) -> impl Iterator<Item = (usize, CowStr<'_>)> {
    Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter().filter_map(|(event, range)| {
        let Event::Code(code) = event else { return None };
        Some((line_of(text, range.start), code))
    })
}

fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(findings: Vec<(usize, String)>) -> Vec<usize> {
        findings.into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn white_space_at_ends_is_found() {
        assert_eq!(at(whitespace("a\nb \nc\t\n")), [2, 3]);
        assert_eq!(at(whitespace("a\r\n")), [1]);
        assert_eq!(at(whitespace("a\nb")), [2]);
        assert_eq!(at(whitespace("a\n\n")), [2]);
        assert!(whitespace("a\n\nb\n").is_empty());
        assert!(whitespace("").is_empty());
    }

    #[test]
    fn home_folders_are_found_and_look_alikes_are_not() {
        let home = concat!("/ho", "me/someone/data");
        assert_eq!(at(home_paths(&format!("x\ncd {home}\n"))), [2]);
        assert_eq!(at(home_paths(concat!("path = \"/Us", "ers/me\""))), [1]);
        assert!(home_paths(concat!("https://site.org/ho", "me/page")).is_empty());
        assert!(home_paths(concat!("crates/ro", "ot/src")).is_empty());
    }

    #[test]
    fn dead_relative_links_are_found() {
        let found = |text| at(links(text, |target| target == "README.md"));
        assert_eq!(found("[a](README.md) [b](gone.md)\n\n[c](gone.md#top)\n"), [1, 3]);
        assert_eq!(found("x\n[b][a]\n\n[a]: gone.md\n"), [2]);
        assert_eq!(found("![a](gone.png)\n"), [1]);
        assert!(found("[a](README.md#top) [b](#here) [c](README.md \"title\")\n").is_empty());
        assert!(found("[a](https://example.org/gone.md)\n").is_empty());
        assert!(found("```\n[a](gone.md)\n```\n`[b](gone.md)`\n").is_empty());
    }
}
