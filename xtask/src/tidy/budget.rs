//! The lines of product code of each package, against the budget in `budget.txt`.
//!
//! A repository grows by changes that are each small. A package whose code is above its budget fails here, so a change
//! that needs more raises the number in the same commit, and the commit's body says what the lines are worth.
//!
//! A line counts if code stands in it: no blank lines, no comments, no documentation. Code for tests does not count.
//! Programs in other languages count as one package, by their lines with a text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use proc_macro2::token_stream::IntoIter;
use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};

use super::source::is_test_file;
use crate::checkout::repo_root;
use crate::shell::output;

/// The file with the budgets, a line `package lines` for each.
pub(super) const BUDGET: &str = "budget.txt";

const OTHER_LANGUAGES: &str = "other-languages";
const EXTENSIONS: [&str; 9] = ["c", "cpp", "css", "cu", "cuh", "h", "js", "py", "sh"];

/// The lines of a package, or of a file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct LineCounts {
    /// Product code.
    code: usize,
    /// Code of tests.
    tests: usize,
    /// All lines of Rust, with blank lines and comments.
    all: usize,
}

impl LineCounts {
    /// The same lines, all for tests.
    fn for_tests(self) -> Self {
        Self { code: 0, tests: self.code + self.tests, ..self }
    }
}

impl std::ops::AddAssign for LineCounts {
    fn add_assign(&mut self, other: Self) {
        self.code += other.code;
        self.tests += other.tests;
        self.all += other.all;
    }
}

/// Counts the lines of the repository's files, by package.
#[derive(Debug, Default)]
pub(super) struct LineCounter {
    packages: BTreeMap<String, LineCounts>,
    /// The lines of each file, as if no module were declared for tests.
    files: BTreeMap<PathBuf, LineCounts>,
}

impl LineCounter {
    /// Counts these files, by their paths in the repository.
    pub(super) fn of_files(files: &[(PathBuf, String)]) -> Self {
        Self::with_known(files, BTreeMap::new())
    }

    /// Counts these files, of which the lines of some are known.
    fn with_known(files: &[(PathBuf, String)], known: BTreeMap<PathBuf, LineCounts>) -> Self {
        let rust = files.iter().filter(|(path, _)| has_extension(path, &["rs"]));
        // Files that are compiled for tests only, because their module is declared so.
        let test_files: BTreeSet<_> =
            rust.flat_map(|(path, text)| test_modules(path, text)).collect();
        let mut count = Self { files: known, ..Self::default() };
        for (path, text) in files {
            let Some(package) = package(path) else { continue };
            let mut lines =
                *count.files.entry(path.clone()).or_insert_with(|| lines_of_file(path, text));
            if test_files.iter().any(|file| path.starts_with(file)) {
                lines = lines.for_tests();
            }
            *count.packages.entry(package).or_default() += lines;
        }
        count
    }

    /// Findings for the packages that are above their budgets, by the lines of [`BUDGET`].
    pub(super) fn check(&self, budget: &str) -> Vec<(usize, String)> {
        let budgets = budgets(budget);
        let mut findings = Vec::new();
        for (package, lines) in &self.packages {
            match budgets.get(package.as_str()) {
                None if lines.code > 0 => {
                    findings.push((1, format!("{package} has {} lines and no budget", lines.code)));
                }
                Some((at, most)) if lines.code > *most => findings.push((
                    *at,
                    format!(
                        "{package} has {} lines of product code, {} more than its budget: take as many away, or \
                         raise the number and say in the commit what they are worth",
                        lines.code,
                        lines.code - most
                    ),
                )),
                _ => {}
            }
        }
        findings
    }

    /// The table of all packages. `before` counts the files of the last commit.
    pub(super) fn table(&self, budget: &str, before: &Self) -> String {
        let budgets = budgets(budget);
        let mut table = format!(
            "{:<26} {:>8} {:>8} {:>8} {:>8} {:>9}\n",
            "package", "code", "budget", "change", "tests", "all lines"
        );
        let mut total = LineCounts::default();
        for (package, lines) in &self.packages {
            let most =
                budgets.get(package.as_str()).map_or(String::new(), |(_, most)| most.to_string());
            let change = lines.code as i64
                - before.packages.get(package).map_or(0, |lines| lines.code) as i64;
            let change = if change == 0 { String::new() } else { format!("{change:+}") };
            let LineCounts { code, tests, all } = lines;
            table +=
                &format!("{package:<26} {code:>8} {most:>8} {change:>8} {tests:>8} {all:>9}\n");
            total += *lines;
        }
        let LineCounts { code, tests, all } = total;
        table + &format!("{:<26} {code:>8} {:>8} {:>8} {tests:>8} {all:>9}", "together", "", "")
    }
}

/// Counts the same files as they are in the last commit. `now` is their count.
pub(super) fn of_last_commit(files: &[(PathBuf, String)], now: &LineCounter) -> LineCounter {
    let git =
        |arguments: &[&str]| output(Command::new("git").args(arguments).current_dir(repo_root()));
    let changed = git(&["diff", "--name-only", "--no-renames", "HEAD"]).unwrap_or_default();
    let added = git(&["ls-files", "--others", "--exclude-standard"]).unwrap_or_default();
    let changed: BTreeSet<_> = changed.lines().chain(added.lines()).map(PathBuf::from).collect();
    let mut before: Vec<_> =
        files.iter().filter(|(path, _)| !changed.contains(path)).cloned().collect();
    let mut known = now.files.clone();
    known.retain(|path, _| !changed.contains(path));
    for path in changed {
        if let Some(text) = git(&["show", &format!("HEAD:{}", path.display())]) {
            before.push((path, text));
        }
    }
    LineCounter::with_known(&before, known)
}

/// By package: the line of its budget, and the number.
fn budgets(text: &str) -> BTreeMap<&str, (usize, usize)> {
    let budget = |(line, at)| {
        let (package, most) = str::split_once(line, ' ')?;
        Some((package, (at, most.trim().parse().ok()?)))
    };
    text.lines().zip(1..).filter_map(budget).collect()
}

fn lines_of_file(path: &Path, text: &str) -> LineCounts {
    if !has_extension(path, &["rs"]) {
        let code = text.lines().filter(|line| !line.trim().is_empty()).count();
        return LineCounts { code, ..LineCounts::default() };
    }
    let (code, tests) = text.parse().map_or((0, 0), code_and_tests);
    let lines = LineCounts { code, tests, all: text.lines().count() };
    if is_test_file(&path.to_string_lossy()) { lines.for_tests() } else { lines }
}

/// The package of a file, if its lines count.
fn package(path: &Path) -> Option<String> {
    if has_extension(path, &EXTENSIONS) {
        return Some(OTHER_LANGUAGES.to_owned());
    }
    let mut parts = path.iter().map(|part| part.to_string_lossy());
    let (first, second) = (parts.next()?, parts.next()?);
    has_extension(path, &["rs"]).then(|| match &*first {
        "crates" | "benches" => second.into_owned(),
        "src" | "tests" => "candelabrum".to_owned(),
        _ => first.into_owned(),
    })
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().is_some_and(|found| extensions.iter().any(|extension| found == *extension))
}

/// The files or folders of the modules that a file declares for tests.
fn test_modules(path: &Path, text: &str) -> Vec<PathBuf> {
    let mut words = text.lines().map(str::trim);
    let mut found = Vec::new();
    while let Some(line) = words.next() {
        if line != "#[cfg(test)]" {
            continue;
        }
        let declared = words.next().and_then(|line| line.strip_suffix(';')?.rsplit_once("mod "));
        if let Some((_, name)) = declared {
            found.push(path.with_file_name(format!("{name}.rs")));
            found.push(path.with_file_name(name));
        }
    }
    found
}

/// The numbers of lines with product code, and of those with code for tests alone.
fn code_and_tests(file: TokenStream) -> (usize, usize) {
    let mut is_product = BTreeMap::new();
    mark_lines(file, false, &mut is_product);
    let code = is_product.values().filter(|is_product| **is_product).count();
    (code, is_product.len() - code)
}

/// Says of each line in which a token stands whether a token of product code stands there.
fn mark_lines(stream: TokenStream, in_tests: bool, is_product: &mut BTreeMap<usize, bool>) {
    let mut mark = |first: Span, last: Span, is_test: bool| {
        for line in first.start().line..=last.end().line {
            *is_product.entry(line).or_default() |= !is_test;
        }
    };
    let (mut tokens, mut groups) = (stream.into_iter(), Vec::new());
    // From `#[cfg(test)]` to the end of its item.
    let mut item_of_tests = false;
    while let Some(token) = tokens.next() {
        if let Some((attribute, rest)) = attribute(&token, tokens.clone()) {
            item_of_tests |= attribute == "cfg (test)";
            if attribute.starts_with("doc") {
                tokens = rest;
                continue;
            }
        }
        let is_test = in_tests || item_of_tests;
        let ends_item = match token {
            TokenTree::Group(group) => {
                mark(group.span_open(), group.span_open(), is_test);
                mark(group.span_close(), group.span_close(), is_test);
                groups.push((group.stream(), is_test));
                group.delimiter() == Delimiter::Brace
            }
            other => {
                mark(other.span(), other.span(), is_test);
                matches!(other, TokenTree::Punct(end) if end.as_char() == ';')
            }
        };
        item_of_tests &= !ends_item;
    }
    for (inner, is_test) in groups {
        mark_lines(inner, is_test, is_product);
    }
}

/// The text between the brackets of an attribute that begins with `token`, and what follows the attribute.
fn attribute(token: &TokenTree, mut rest: IntoIter) -> Option<(String, IntoIter)> {
    let is =
        |token: &TokenTree, sign| matches!(token, TokenTree::Punct(mark) if mark.as_char() == sign);
    let mut next = is(token, '#').then(|| rest.next())??;
    if is(&next, '!') {
        next = rest.next()?;
    }
    let TokenTree::Group(group) = next else { return None };
    (group.delimiter() == Delimiter::Bracket).then(|| (group.stream().to_string(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(files: &[(&str, &str)]) -> LineCounter {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
        LineCounter::of_files(&files)
    }

    fn lines(path: &str, text: &str) -> (usize, usize) {
        let count = count(&[(path, text)]);
        let lines = count.packages.values().next().copied().unwrap_or_default();
        (lines.code, lines.tests)
    }

    #[test]
    fn lines_with_code_count_and_comments_do_not() {
        let text = "//! A file.\n\n/// A function.\nfn a() {\n    // Why.\n    b(); /* here */ c();\n\n}\n";
        assert_eq!(lines("crates/x/src/a.rs", text), (3, 0));
        // Each line of a string is code, a blank one too: the program has it.
        assert_eq!(lines("src/a.rs", "const A: &str = \"a\n\nb\";\n"), (3, 0));
        assert_eq!(lines("docs/a.md", "text\n"), (0, 0));
        assert_eq!(lines("scripts/a.py", "import a\n\nprint(a)\n"), (2, 0));
    }

    #[test]
    fn code_for_tests_is_no_product_code() {
        let inside = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
        assert_eq!(lines("src/a.rs", inside), (2, 4));
        let in_a_block =
            "impl A {\n    #[cfg(test)]\n    fn a() {\n        b()\n    }\n    fn c() {}\n}\n";
        assert_eq!(lines("src/a.rs", in_a_block), (3, 4));
        assert_eq!(lines("crates/x/tests/it/a.rs", "fn a() {}\n"), (0, 1));
        let declared = count(&[
            ("src/a/mod.rs", "#[cfg(test)]\npub(crate) mod fixture;\n"),
            ("src/a/fixture.rs", "fn a() {}\n"),
            ("src/a/fixture/b.rs", "fn b() {}\n"),
        ]);
        assert_eq!(declared.packages["candelabrum"], LineCounts { code: 0, tests: 4, all: 4 });
    }

    #[test]
    fn a_package_above_its_budget_is_a_finding() {
        let count = count(&[
            ("crates/x/src/a.rs", "fn a() {}\nfn b() {}\n"),
            ("models/src/a.rs", "fn a() {}\n"),
        ]);
        assert!(count.check("# Lines.\nx 2\nmodels 1\n").is_empty());
        let found = count.check("# Lines.\nx 1\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].1.starts_with("models has 1 lines and no budget"), "{found:?}");
        assert!(
            found[1].0 == 2 && found[1].1.starts_with("x has 2 lines of product code, 1 more"),
            "{found:?}"
        );
    }

    #[test]
    fn the_table_says_what_a_change_adds() {
        let (now, before) = (
            count(&[("src/a.rs", "fn a() {}\nfn b() {}\n")]),
            count(&[("src/a.rs", "fn a() {}\n")]),
        );
        let table = now.table("candelabrum 5\n", &before);
        let row: Vec<_> = table.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        assert_eq!(row, ["candelabrum", "2", "5", "+1", "0", "2"]);
    }
}
