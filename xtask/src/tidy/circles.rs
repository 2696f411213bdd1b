//! No files of a program or library take names from each other in a loop.
//!
//! A file depends on the file that defines a name, wherever that name is re-exported. So a module may
//! declare and re-export its children. Methods are not followed, because only the compiler knows
//! where they are defined. Code for tests and modules inside a file do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, ItemMod, ItemUse, Lit, Meta, MetaNameValue, Token, UseTree, Visibility,
};

/// The loops among the files of the program or library that begins with the file `start`: the names
/// that a file takes, with their files and lines.
pub(super) fn check(start: &Path) -> Result<Vec<(PathBuf, usize, String)>> {
    let modules = read(start)?;
    let mut arrows = Arrows::new();
    for (at, module) in modules.iter().enumerate() {
        for (path, line) in &module.uses {
            let name = path.last().map_or("", |name| name);
            for owner in owners(&modules, at, path).into_iter().filter(|&owner| owner != at) {
                let uses = arrows.entry(&module.file).or_default();
                uses.entry(&*modules[owner].file).or_insert((name, *line));
            }
        }
    }
    let mut findings = Vec::new();
    for (&from, uses) in &arrows {
        for (to, (name, line)) in uses.iter().filter(|(to, _)| leads(&arrows, to, from)) {
            let what = format!("takes {name} from {}, which depends on this file", to.display());
            findings.push((from.to_path_buf(), *line, what));
        }
    }
    Ok(findings)
}

/// By file: the files that it depends on, each with one name that it takes and the line.
type Arrows<'a> = BTreeMap<&'a Path, BTreeMap<&'a Path, (&'a str, usize)>>;

/// Whether dependencies lead from one file to another.
fn leads(arrows: &Arrows<'_>, from: &Path, to: &Path) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(file) = next.pop() {
        if seen.insert(file) {
            next.extend(arrows.get(file).into_iter().flat_map(BTreeMap::keys));
        }
    }
    seen.contains(to)
}

/// A path in the code, by its names.
type Names = Vec<String>;

#[derive(Default)]
struct Module {
    file: PathBuf,
    parent: usize,
    /// The modules that it declares. An attribute may give the file.
    declared: Vec<(String, Option<String>)>,
    /// A name may stand for one module with a feature and for another one without it.
    children: BTreeMap<String, Vec<usize>>,
    imports: BTreeMap<String, Vec<Names>>,
    /// The paths in the code, with their lines. A re-export is not among them.
    uses: Vec<(Names, usize)>,
}

/// All modules of a program or library. The first one is the root.
fn read(start: &Path) -> Result<Vec<Module>> {
    let mut all = vec![Module::read(start, 0)?];
    let mut at = 0;
    while at < all.len() {
        let folder = all[at].file.parent().unwrap_or(Path::new("")).to_path_buf();
        for (name, written) in std::mem::take(&mut all[at].declared) {
            let beside = folder.join(written.unwrap_or(format!("{name}.rs")));
            let below = folder.join(&name).join("mod.rs");
            let child = Module::read(if beside.exists() { &beside } else { &below }, at)?;
            let number = all.len();
            all[at].children.entry(name).or_default().push(number);
            all.push(child);
        }
        at += 1;
    }
    Ok(all)
}

/// The modules that define what a path in a module names. A name from another package or inside a
/// function counts as a definition of the module itself.
fn owners(modules: &[Module], at: usize, path: &[String]) -> Vec<usize> {
    let Some((first, rest)) = path.split_first() else { return Vec::new() };
    let module = &modules[at];
    match first.as_str() {
        "crate" => return owners(modules, 0, rest),
        "self" => return owners(modules, at, rest),
        "super" => return owners(modules, module.parent, rest),
        _ => {}
    }
    if let Some(children) = module.children.get(first) {
        return children.iter().flat_map(|&child| owners(modules, child, rest)).collect();
    }
    let Some(imports) = module.imports.get(first) else { return vec![at] };
    let is_ours = |path: &&Names| {
        ["crate", "self", "super"].contains(&&*path[0]) || module.children.contains_key(&path[0])
    };
    let ours = imports.iter().filter(is_ours);
    ours.flat_map(|path| owners(modules, at, &[path, rest].concat())).collect()
}

impl Module {
    fn read(file: &Path, parent: usize) -> Result<Self> {
        let name = file.display();
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
        let syntax = syn::parse_file(&text).with_context(|| format!("cannot parse {name}"))?;
        let mut module = Self { file: file.to_path_buf(), parent, ..Self::default() };
        module.visit_file(&syntax);
        Ok(module)
    }

    fn import(&mut self, tree: &UseTree, mut path: Names, is_used: bool) {
        let (end, name) = match tree {
            UseTree::Path(inner) => {
                path.push(inner.ident.to_string());
                return self.import(&inner.tree, path, is_used);
            }
            UseTree::Group(group) => {
                let trees = group.items.iter();
                return trees.for_each(|tree| self.import(tree, path.clone(), is_used));
            }
            // Only tests and preludes import all names of a module.
            UseTree::Glob(_) => return,
            UseTree::Name(name) => (&name.ident, &name.ident),
            UseTree::Rename(rename) => (&rename.ident, &rename.rename),
        };
        if end != "self" {
            path.push(end.to_string());
        }
        let name = if name == "self" { path.last().cloned() } else { Some(name.to_string()) };
        if is_used {
            self.uses.push((path.clone(), end.span().start().line));
        }
        self.imports.entry(name.unwrap_or_default()).or_default().push(path);
    }
}

/// The value of an attribute: `test` for `#[cfg(test)]`, `x.rs` for `#[path = "x.rs"]`.
fn value(attributes: &[Attribute], name: &str) -> Option<String> {
    let named = attributes.iter().find(|attribute| attribute.path().is_ident(name))?;
    match &named.meta {
        Meta::List(list) => Some(list.tokens.to_string()),
        Meta::NameValue(MetaNameValue { value: Expr::Lit(literal), .. }) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    value(attributes, "cfg").as_deref() == Some("test")
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.content.is_none() && !is_for_tests(&item.attrs) {
            self.declared.push((item.ident.to_string(), value(&item.attrs, "path")));
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.import(&item.tree, Names::new(), matches!(item.vis, Visibility::Inherited));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let line = path.segments.first().map_or(1, |first| first.ident.span().start().line);
        self.uses.push((names, line));
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let arguments = call.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated);
        arguments.iter().flatten().for_each(|argument| self.visit_expr(argument));
        visit::visit_macro(self, call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By finding: the file, the line and the name.
    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = check(&folder.path().join("lib.rs")).unwrap().into_iter();
        let described = found.map(|(file, line, what)| {
            let file = file.strip_prefix(folder.path()).unwrap().display();
            format!("{file}:{line} {}", what.split(' ').nth(1).unwrap())
        });
        described.collect()
    }

    #[test]
    fn files_that_take_names_from_each_other_are_found() {
        let root = ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\npub use b::B;\n");
        let a = ("a.rs", "//! A.\nuse crate::B;\npub struct A(B);\n");
        let of_b = |text| findings(&[root, a, ("b.rs", text), ("c.rs", "use crate::{A, B};\n")]);
        assert_eq!(of_b("use super::A;\n"), ["a.rs:2 B", "b.rs:1 A"]);
        assert_eq!(of_b("\nfn f(_: super::A) {}\n"), ["a.rs:2 B", "b.rs:2 A"]);
        assert_eq!(of_b("fn f() { assert!(crate::a::A::new()); }\n"), ["a.rs:2 B", "b.rs:1 new"]);
        assert!(of_b("#[cfg(test)]\nuse crate::A;\n").is_empty());
        assert!(of_b("#[cfg(test)]\nmod tests { use crate::A; }\n").is_empty());
    }

    #[test]
    fn a_module_may_re_export_its_children_but_not_use_what_uses_it() {
        let child = ("a/b.rs", "use super::{A, B as C};\nuse std::fmt::{self, Debug};\n");
        let of_parent = |text| findings(&[("lib.rs", "mod a;\n"), ("a/mod.rs", text), child]);
        assert!(of_parent("mod b;\npub use self::b::B;\npub struct A;\n").is_empty());
        let found = of_parent("mod b;\npub use self::b::B;\npub struct A(b::B);\n");
        assert_eq!(found, ["a/b.rs:1 A", "a/mod.rs:3 B"]);
    }

    #[test]
    fn both_choices_of_a_feature_are_read() {
        let root = "#[cfg(x)]\nmod a;\n#[cfg(not(x))]\n#[path = \"no_a.rs\"]\nmod a;\nmod b;\n";
        let (b, a) = (("b.rs", "use crate::a::A;\n"), ("a.rs", "pub struct A;\n"));
        let no_a = ("no_a.rs", "use crate::b::B;\npub struct A(B);\n");
        assert_eq!(findings(&[("lib.rs", root), a, no_a, b]), ["b.rs:1 A", "no_a.rs:1 B"]);
    }
}
