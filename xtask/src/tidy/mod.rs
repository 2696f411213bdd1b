//! `cargo xtask tidy`: the project's rules that neither rustc nor clippy checks.
//!
//! A check is a function from text to findings, each with its line, so a few lines are enough to
//! test it. The check of circles reads files, because they name each other.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use fs_err as fs;
use walkdir::{DirEntry, WalkDir};

use self::budget::LineCounter;
use self::type_names::TypeNames;
use crate::checkout::{repo_root, workspace};
use crate::shell::{find_program, run as run_command};

mod arrows;
mod budget;
mod circles;
mod errors;
mod names;
mod source;
mod text;
mod type_names;

/// Checks every text file of the repository, the packages, and the figures.
pub(crate) fn run() -> Result<()> {
    let root = repo_root();
    let files = files_below(&root)?;
    let mut count = 0;
    let mut report = |file: &Path, (line, what): (usize, String)| {
        let what = what.replace(&format!("{}/", root.display()), "");
        println!("{}:{line}: {what}", file.strip_prefix(&root).unwrap_or(file).display());
        count += 1;
    };
    let relative = files.iter().filter_map(|path| path.strip_prefix(&root).ok()?.to_str());
    let ends = names::ends_of_paths(relative);
    let read = |end: &str| {
        let path = files.iter().find(|path| path.ends_with(end))?;
        fs::read_to_string(path).ok()
    };
    let read_file = |path: &PathBuf| {
        let text = String::from_utf8(fs::read(path)?).ok();
        let relative = path.strip_prefix(&root)?.to_owned();
        Ok(text.map(|text| (relative, text)))
    };
    let texts =
        files.iter().map(read_file).filter_map(Result::transpose).collect::<Result<Vec<_>>>()?;
    let of_errors =
        texts.iter().filter(|(path, _)| path.to_string_lossy().starts_with(errors::PAGES));
    let page = errors::PageText::from_text(
        &of_errors.map(|(_, text)| &**text).collect::<Vec<_>>().join("\n"),
    );
    let mut types = TypeNames::default();
    for (relative, text) in &texts {
        let (name, path) = (relative.to_string_lossy(), root.join(relative));
        let mut findings = [text::whitespace(text), text::home_paths(text)].concat();
        if name.ends_with(".md") {
            findings.extend(text::links(text, |target| path.with_file_name(target).exists()));
            findings.extend(names::missing_files(text, &ends));
            findings.extend(names::missing_names(text, read));
        }
        if name.ends_with(".rs") {
            findings.extend(source::check(&name, text));
            // rustc refuses a file that does not parse.
            if let Ok(syntax) = syn::parse_file(text) {
                findings.extend(page.missing(&name, &syntax));
                types.add(relative, &syntax);
            }
        }
        findings.into_iter().for_each(|found| report(&path, found));
    }
    for package in &workspace().packages {
        let manifest = package.manifest_path.as_std_path();
        let found =
            arrows::check(&package.name, &package.dependencies, &fs::read_to_string(manifest)?);
        found.into_iter().for_each(|found| report(manifest, found));
        for target in &package.targets {
            for (file, line, what) in circles::check(target.src_path.as_std_path())? {
                report(&file, (line, what));
            }
        }
    }
    for (file, line, what) in types.check() {
        report(&file, (line, what));
    }
    let (lines, budget) = (LineCounter::of_files(&texts), read(budget::BUDGET).unwrap_or_default());
    lines.check(&budget).into_iter().for_each(|found| report(Path::new(budget::BUDGET), found));
    println!("{}", lines.table(&budget, &budget::of_last_commit(&texts, &lines)));
    ensure!(count == 0, "tidy: {count} findings");
    println!("tidy: {} files, nothing found", files.len());
    check_figures()
}

/// The figures of the documentation are those that their script writes.
fn check_figures() -> Result<()> {
    if find_program("python3").is_none() {
        println!("left out: no python3 here, so the figures were not compared with their script");
        return Ok(());
    }
    run_command(
        Command::new("python3").arg("scripts/figures.py").arg("--check").current_dir(repo_root()),
    )
}

/// Every file below the folder, except the files of tools, or the file itself.
pub(crate) fn files_below(start: &Path) -> Result<Vec<PathBuf>> {
    const OF_TOOLS: [&str; 5] = [".git", ".venv", "target", "__pycache__", "proptest-regressions"];
    let is_ours = |entry: &DirEntry| {
        entry.depth() == 0 || !OF_TOOLS.iter().any(|name| entry.file_name() == *name)
    };
    let entries = WalkDir::new(start).sort_by_file_name().into_iter().filter_entry(is_ours);
    let files = entries.filter(|entry| entry.as_ref().map_or(true, |e| e.file_type().is_file()));
    Ok(files.map(|file| file.map(DirEntry::into_path)).collect::<Result<_, _>>()?)
}
