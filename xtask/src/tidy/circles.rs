//! No files of a program or library take names from each other in a loop.
//!
//! A file depends on the file that defines a name, wherever that name is re-exported. So a module
//! may declare and re-export its children. Methods are not followed, because only the compiler
//! knows where they are defined. Code for tests and modules inside a file do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fs_err as fs;
use proc_macro2::{Ident, Span};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, ExprLit, ItemMod, ItemUse, Lit, Meta, MetaNameValue, Token, UseTree,
    Visibility,
};

/// The loops among the files of the program or library that begins with the file `start`: the names
/// that a file takes, with their files and lines.
pub(super) fn check(start: &Path) -> Result<Vec<(PathBuf, usize, String)>> {
    let modules = read(start)?;
    let mut arrows = Arrows::new();
    for (file, module) in &modules {
        for path in &module.uses {
            for owner in owners(&modules, file, path).into_iter().filter(|owner| owner != file) {
                arrows.entry(file).or_default().entry(owner).or_insert(&path[path.len() - 1]);
            }
        }
    }
    let mut findings = Vec::new();
    for (from, uses) in &arrows {
        for (to, name) in uses.iter().filter(|(to, _)| leads(&arrows, to, from)) {
            let what = format!("takes {name} from {}, which depends on this file", to.display());
            findings.push((from.to_path_buf(), name.span().start().line, what));
        }
    }
    Ok(findings)
}

/// By file: the files that it depends on, each with one name that it takes.
type Arrows<'a> = BTreeMap<&'a Path, BTreeMap<&'a Path, &'a Ident>>;

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
type PathNames = Vec<Ident>;

#[derive(Default)]
struct Module {
    folder: PathBuf,
    /// The files of the modules that a name stands for: of one with a feature and of another one
    /// without it. `crate`, `self` and `super` are such names.
    modules: BTreeMap<Ident, Vec<PathBuf>>,
    imports: BTreeMap<Ident, Vec<PathNames>>,
    /// The paths in the code. A re-export is not among them.
    uses: Vec<PathNames>,
}

/// All modules of a program or library, by file.
fn read(start: &Path) -> Result<BTreeMap<PathBuf, Module>> {
    let (mut all, mut next) = (BTreeMap::new(), vec![(start.to_owned(), start.to_owned())]);
    while let Some((file, parent)) = next.pop() {
        let syntax = syn::parse_file(&fs::read_to_string(&file)?);
        let syntax = syntax.with_context(|| format!("cannot parse {}", file.display()))?;
        let mut module = Module { folder: file.with_file_name(""), ..Module::default() };
        module.visit_file(&syntax);
        next.extend(module.modules.values().flatten().map(|child| (child.clone(), file.clone())));
        for (name, known) in [("crate", start), ("self", &file), ("super", &parent)] {
            module.modules.insert(Ident::new(name, Span::call_site()), vec![known.to_owned()]);
        }
        all.insert(file, module);
    }
    Ok(all)
}

/// The files that define what a path in a file names. A name from another package or inside a
/// function counts as a definition of the file itself.
fn owners<'a>(all: &'a BTreeMap<PathBuf, Module>, file: &'a Path, path: &[Ident]) -> Vec<&'a Path> {
    let Some((first, rest)) = path.split_first() else { return Vec::new() };
    let Module { modules, imports, .. } = &all[file];
    if let Some(files) = modules.get(first) {
        return files.iter().flat_map(|file| owners(all, file, rest)).collect();
    }
    let Some(imports) = imports.get(first) else { return vec![file] };
    let ours = imports.iter().filter(|path| modules.contains_key(&path[0]));
    ours.flat_map(|path| owners(all, file, &[path, rest].concat())).collect()
}

/// The paths that a `use` imports, each with its name from then on.
fn imports(tree: &UseTree) -> Vec<(PathNames, Ident)> {
    let (end, name) = match tree {
        UseTree::Path(outer) => {
            let outer_name = |name| if name == "self" { outer.ident.clone() } else { name };
            let inner = imports(&outer.tree).into_iter();
            return inner
                .map(|(path, name)| ([vec![outer.ident.clone()], path].concat(), outer_name(name)))
                .collect();
        }
        UseTree::Group(group) => return group.items.iter().flat_map(imports).collect(),
        // Only tests and preludes import all names of a module.
        UseTree::Glob(_) => return Vec::new(),
        UseTree::Name(name) => (&name.ident, &name.ident),
        UseTree::Rename(rename) => (&rename.ident, &rename.rename),
    };
    vec![(if end == "self" { Vec::new() } else { vec![end.clone()] }, name.clone())]
}

pub(super) fn is_for_tests(attributes: &[Attribute]) -> bool {
    let is_test = |cfg: &Attribute| cfg.parse_args::<Ident>().is_ok_and(|word| word == "test");
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg") && is_test(attribute))
}

/// The value of an attribute `#[path = "x.rs"]`.
fn written_path(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(MetaNameValue { path, value, .. }) = &attribute.meta else { return None };
    let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = value else { return None };
    path.is_ident("path").then(|| text.value())
}

impl Visit<'_> for Module {
    fn visit_item_mod(&mut self, item: &ItemMod) {
        if item.content.is_none() && !is_for_tests(&item.attrs) {
            let written = item.attrs.iter().find_map(written_path);
            let beside = self.folder.join(written.unwrap_or(format!("{}.rs", item.ident)));
            let below = self.folder.join(format!("{}/mod.rs", item.ident));
            let file = if beside.exists() { beside } else { below };
            self.modules.entry(item.ident.clone()).or_default().push(file);
        }
    }

    fn visit_item_use(&mut self, item: &ItemUse) {
        for (path, name) in imports(&item.tree).into_iter().filter(|_| !is_for_tests(&item.attrs)) {
            if matches!(item.vis, Visibility::Inherited) {
                self.uses.push(path.clone());
            }
            self.imports.entry(name).or_default().push(path);
        }
    }

    fn visit_path(&mut self, path: &syn::Path) {
        self.uses.push(path.segments.iter().map(|segment| segment.ident.clone()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
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
