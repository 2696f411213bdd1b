//! The name of a type stands for one thing, in words of the field.
//!
//! A reader who searches for a name should find one definition. So a name that two types have is a finding, unless it
//! is one of [`SHARED`]. A reader should guess what a name stands for, which few short words allow. So a name of at
//! most [`SHORT`] letters is a finding, unless it is one of [`TERMS`].
//!
//! Tests do not count, nor examples and small benchmarks: each is a program of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{
    Ident, ImplItemFn, ItemEnum, ItemFn, ItemMod, ItemStruct, ItemTrait, ItemType, ItemUnion,
};

use super::circles::is_for_tests;
use super::source::is_product;

/// Names that several types may have, because a path before them says which one is meant.
const SHARED: &[&str] = &[
    "Amx",
    "Args",
    "Avx512",
    "Command",
    "Config",
    "Conv1d",
    "Conv2d",
    "CudaMatrix",
    "Embedding",
    "Error",
    "FinetuneArgs",
    "GroupNorm",
    "KernelArg",
    "LaunchGrid",
    "LayerNorm",
    "Linear",
    "Mlp",
    "Result",
    "RmsNorm",
    "StreamPoint",
    "TileRegisters",
    "UpdateTable",
    "Vit",
];

/// The longest name that must be one of [`TERMS`].
const SHORT: usize = 5;

/// Terms of the field that are short.
const TERMS: &[&str] = &[
    "Adam", "AdamW", "Amx", "Batch", "Bert", "Cache", "Chats", "Clip", "Cnn", "Conv", "Crop",
    "Csv", "Ctc", "Event", "F1", "Fit", "Float", "Glyph", "Gpt", "Gpt2", "Gpu", "Graph", "Group",
    "Gru", "Half", "Han", "Hook", "Huber", "Init", "Job", "JobId", "Key", "Label", "Lamb", "Lars",
    "Layer", "LeNet", "Leaf", "Llama", "Lstm", "Mesh", "Mlp", "Mnist", "Model", "Muon", "Nll",
    "Node", "Norm", "Param", "Pass", "Rnn", "Run", "Scale", "Scope", "Score", "Sgd", "Shard",
    "Span", "Stack", "Stem", "Step", "Tape", "Task", "Tile", "Vgg", "Vit", "World",
];

/// The definitions of types, by name.
#[derive(Debug, Default)]
pub(super) struct TypeNames(BTreeMap<String, Vec<(PathBuf, usize)>>);

impl TypeNames {
    /// Adds the types that a file defines.
    pub(super) fn add(&mut self, path: &Path, source: &syn::File) {
        if is_product(&path.to_string_lossy()) {
            Definitions { names: self, path }.visit_file(source);
        }
    }

    /// The findings, each with its file and line.
    pub(super) fn check(&self) -> Vec<(PathBuf, usize, String)> {
        self.check_with(SHARED, TERMS)
    }

    fn check_with(&self, shared: &[&str], terms: &[&str]) -> Vec<(PathBuf, usize, String)> {
        let mut findings = Vec::new();
        for (name, places) in &self.0 {
            let (path, line) = &places[0];
            if places.len() > 1 && !shared.contains(&&**name) {
                let others: Vec<_> =
                    places[1..].iter().map(|(path, _)| path.display().to_string()).collect();
                let what = format!(
                    "a type {name} is in {}, too: give one of them another name",
                    others.join(" and ")
                );
                findings.push((path.clone(), *line, what));
            }
            if name.len() <= SHORT && !terms.contains(&&**name) && !shared.contains(&&**name) {
                let what =
                    format!("the type name {name} is short, and no term of the field: say more");
                findings.push((path.clone(), *line, what));
            }
        }
        findings
    }
}

/// Finds the types at the level of modules.
struct Definitions<'a> {
    names: &'a mut TypeNames,
    path: &'a Path,
}

impl Definitions<'_> {
    fn add(&mut self, name: &Ident) {
        let place = (self.path.to_owned(), name.span().start().line);
        self.names.0.entry(name.to_string()).or_default().push(place);
    }
}

impl Visit<'_> for Definitions<'_> {
    fn visit_item_enum(&mut self, item: &ItemEnum) {
        self.add(&item.ident);
    }

    fn visit_item_struct(&mut self, item: &ItemStruct) {
        self.add(&item.ident);
    }

    fn visit_item_trait(&mut self, item: &ItemTrait) {
        self.add(&item.ident);
    }

    fn visit_item_type(&mut self, item: &ItemType) {
        self.add(&item.ident);
    }

    fn visit_item_union(&mut self, item: &ItemUnion) {
        self.add(&item.ident);
    }

    fn visit_item_mod(&mut self, item: &ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    // A type of one function is beside its use.
    fn visit_item_fn(&mut self, _: &ItemFn) {}

    fn visit_impl_item_fn(&mut self, _: &ImplItemFn) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let mut names = TypeNames::default();
        let add = |(path, text): &(&str, &str)| {
            names.add(Path::new(path), &syn::parse_file(text).unwrap());
        };
        files.iter().for_each(add);
        let found = names.check_with(&["Error"], &["Adam"]).into_iter();
        found.map(|(path, line, what)| format!("{}:{line}: {what}", path.display())).collect()
    }

    #[test]
    fn a_name_of_two_types_is_found() {
        let found =
            findings(&[("a.rs", "struct Message;\n"), ("b.rs", "\nmod c { enum Message {} }\n")]);
        assert_eq!(
            found,
            ["a.rs:1: a type Message is in b.rs, too: give one of them another name"]
        );
        let none = [
            ("a.rs", "struct Message; struct Error;"),
            (
                "b.rs",
                "type Error = (); fn a() { struct Message; } #[cfg(test)] mod tests { struct Message; }",
            ),
            ("crates/x/tests/it/a.rs", "struct Message;"),
            ("examples/a.rs", "struct Message;"),
        ];
        assert!(findings(&none).is_empty(), "{:?}", findings(&none));
    }

    #[test]
    fn a_short_name_is_a_term_or_found() {
        assert!(findings(&[("a.rs", "struct Adam; struct Error; trait Rounds {}")]).is_empty());
        assert_eq!(findings(&[("a.rs", "trait News {}")]).len(), 1);
    }
}
