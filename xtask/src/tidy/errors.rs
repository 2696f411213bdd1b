//! Each error text that a user may meet is on a page of docs/troubleshooting.
//!
//! A user searches the pages for the words of an error. So each fixed piece of a text, between its placeholders, must
//! occur on one of them. A piece of one word would occur there by chance, so it does not count. A text of placeholders
//! alone has the words of the error that it wraps.

use proc_macro2::TokenStream;
use syn::parse::ParseStream;
use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, LitStr};

use super::circles::is_for_tests;
use super::source::is_product;

/// Where the paths of the pages begin on which a user looks up an error: the first page, and the folder beside it.
pub(super) const PAGES: &str = "docs/troubleshooting";

/// The folders of packages whose errors no user sees.
const UNSEEN: [&str; 4] =
    ["crates/candelabrum-testkit/", "crates/candelabrum-softgpu/", "xtask/", "benches/"];

/// The text of the pages, as texts are compared with it.
pub(super) struct PageText(String);

impl PageText {
    pub(super) fn from_text(text: &str) -> Self {
        Self(plain(text))
    }

    /// The pieces of the error texts in a file that are on no page.
    pub(super) fn missing(&self, file: &str, source: &syn::File) -> Vec<(usize, String)> {
        if !is_seen(file) {
            return Vec::new();
        }
        let mut findings = Vec::new();
        for text in error_texts(source) {
            let lacks = |piece: &String| is_phrase(piece) && !has_words(&self.0, piece);
            for piece in pieces(&text.value()).into_iter().filter(lacks) {
                let what = format!("{PAGES} does not have the words of this error: {piece}");
                findings.push((text.span().start().line, what));
            }
        }
        findings
    }
}

/// Whether a user can meet the errors of a file.
fn is_seen(file: &str) -> bool {
    is_product(file) && !UNSEEN.iter().any(|folder| file.starts_with(folder))
}

/// The format strings of all attributes `#[error(".." ..)]`.
fn error_texts(source: &syn::File) -> Vec<LitStr> {
    let mut texts = ErrorTexts::default();
    texts.visit_file(source);
    texts.0
}

#[derive(Default)]
struct ErrorTexts(Vec<LitStr>);

impl Visit<'_> for ErrorTexts {
    fn visit_attribute(&mut self, attribute: &Attribute) {
        let text = |input: ParseStream<'_>| {
            let text: LitStr = input.parse()?;
            // The arguments of the placeholders.
            input.parse::<TokenStream>().map(|_| text)
        };
        if attribute.path().is_ident("error") {
            // `transparent` is no text.
            self.0.extend(attribute.parse_args_with(text));
        }
    }

    fn visit_item_mod(&mut self, item: &ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }
}

/// The fixed pieces of a format string, before, between and after its placeholders.
fn pieces(format: &str) -> Vec<String> {
    let (mut pieces, mut piece) = (Vec::new(), String::new());
    let mut characters = format.chars().peekable();
    while let Some(character) = characters.next() {
        if matches!(character, '{' | '}') && characters.next_if_eq(&character).is_none() {
            pieces.push(plain(&std::mem::take(&mut piece)));
            // The rest of the placeholder.
            characters.by_ref().find(|character| *character == '}');
        } else {
            piece.push(character);
        }
    }
    pieces.push(plain(&piece));
    pieces
}

/// The text with one space for each run of white space, and without backticks: the pages have errors in code style.
fn plain(text: &str) -> String {
    text.replace('`', "").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_phrase(piece: &str) -> bool {
    piece.split(' ').filter(|word| word.contains(char::is_alphabetic)).count() > 1
}

/// Whether the pages have the piece, and not only as a part of longer words.
fn has_words(page: &str, piece: &str) -> bool {
    let is_joined = |left: Option<char>, right: Option<char>| {
        [left, right].iter().all(|end| end.is_some_and(char::is_alphanumeric))
    };
    page.match_indices(piece).any(|(at, _)| {
        let (before, after) = (&page[..at], &page[at + piece.len()..]);
        !is_joined(before.chars().next_back(), piece.chars().next())
            && !is_joined(piece.chars().next_back(), after.chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(page: &str, source: &str) -> Vec<(usize, String)> {
        missing_in("crates/x/src/error.rs", page, source)
    }

    fn missing_in(file: &str, page: &str, source: &str) -> Vec<(usize, String)> {
        PageText::from_text(page).missing(file, &syn::parse_file(source).unwrap())
    }

    /// An enum of one variant with this attribute.
    fn variant(attribute: &str) -> String {
        format!("enum Error {{\n    {attribute}\n    A {{ n: usize }},\n}}\n")
    }

    #[test]
    fn a_text_that_the_page_does_not_have_is_found() {
        let source = variant("#[error(\"rank {n} is gone, see {n}: start it again\")]");
        let page = "| `rank RANK is gone, see FILE` | | |\n";
        let what = format!("{PAGES} does not have the words of this error: : start it again");
        assert_eq!(missing(page, &source), [(2, what)]);
        assert_eq!(missing("", &source).len(), 2);
        let of_struct = "#[error(\"no such name\")]\nstruct Name;\n";
        assert_eq!(missing("no such names", of_struct).len(), 1);
    }

    #[test]
    fn texts_are_found_whatever_stands_between_their_words() {
        let page = "The page.\n\n| `rank RANK waited N s in OPERATION; set\nNAME first` | | |\n";
        for attribute in [
            "#[error(\"rank {n} waited {n} s in {n}; set `NAME` first\")]",
            "#[error(\n        \"rank {n} waited {} s in {0:?}; set `{n}` first\",\n        n.x()\n    )]",
            "#[error(\"rank {n} waited {n} s in \\\n             {n}; set \\u{60}NAME\\u{60} first\")]",
            "#[error(r#\"rank {n} waited\"#)]",
        ] {
            assert_eq!(missing(page, &variant(attribute)), []);
        }
        assert_eq!(missing(page, &variant("#[error(\n        \"s in the\",\n    )]")).len(), 1);
    }

    #[test]
    fn texts_without_words_of_their_own_are_left_out() {
        for attribute in [
            "#[error(\"{0}\")]",
            "#[error(\"{n}: {source}\")]",
            "#[error(\"checkpoint: {n} {n}\")]",
            "#[error(transparent)]",
            "#[serde(rename = \"rank of it\")]",
        ] {
            assert_eq!(missing("", &variant(attribute)), []);
        }
    }

    #[test]
    fn only_errors_that_users_meet_count() {
        let source = variant("#[error(\"out of luck\")]");
        let of_tests = format!("#[cfg(test)]\nmod tests {{\n{source}}}\n");
        assert_eq!(missing("", &of_tests), []);
        assert_eq!(missing("", &of_tests.replace("#[cfg(test)]", "")).len(), 1);
        for file in [
            "xtask/src/main.rs",
            "benches/player/src/main.rs",
            "crates/candelabrum-testkit/src/lib.rs",
            "crates/candelabrum-dist/src/opt/tests.rs",
            "tests/it/main.rs",
            "examples/mnist_dist.rs",
        ] {
            assert_eq!(missing_in(file, "", &source), []);
        }
        assert_eq!(missing_in("src/lib.rs", "", &source).len(), 1);
    }

    #[test]
    fn doubled_braces_are_words() {
        assert_eq!(pieces("a {{b}} c {d}}} e"), ["a {b} c", "} e"]);
        assert_eq!(pieces("{a:?}{b}"), ["", "", ""]);
    }
}
