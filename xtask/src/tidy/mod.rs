//! `cargo xtask tidy`: the project's rules that neither rustc nor clippy checks.
//!
//! Every check is a function from text to findings, so a few lines are enough to test it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::checkout::repo_root;

mod arrows;
mod code;
mod source;
mod text;

/// One broken rule and its place.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    /// Relative to the root of the repository.
    file: String,
    /// Counted from one.
    line: usize,
    what: String,
}

impl Finding {
    fn new(file: &str, line: usize, what: impl Into<String>) -> Self {
        Finding { file: file.into(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// Checks every text file of the repository, and the arrows between its packages.
pub(crate) fn run() -> Result<()> {
    let root = repo_root();
    let mut files = Vec::new();
    collect_files(&root, &mut files)?;
    files.sort();
    let mut findings = Vec::new();
    for path in &files {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        if let Ok(text) = String::from_utf8(bytes) {
            let name = path.strip_prefix(&root)?.to_string_lossy().replace('\\', "/");
            findings.extend(check_file(&root, &name, &text));
        }
    }
    findings.extend(arrows::check_workspace(&root)?);
    for finding in &findings {
        println!("{finding}");
    }
    ensure!(findings.is_empty(), "tidy: {} findings", findings.len());
    println!("tidy: {} files, nothing found", files.len());
    Ok(())
}

fn check_file(root: &Path, name: &str, text: &str) -> Vec<Finding> {
    let mut findings = text::whitespace(name, text);
    findings.extend(text::home_paths(name, text));
    if name.ends_with(".md") {
        let folder = root.join(name).parent().expect("a file has a folder").to_path_buf();
        findings.extend(text::links(name, text, |target| folder.join(target).exists()));
    }
    if name.ends_with(".rs") {
        findings.extend(source::check(name, text));
    }
    findings
}

/// Every file below the folder, except the files of tools.
pub(crate) fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    const OF_TOOLS: [&str; 5] = [".git", ".venv", "target", "__pycache__", "proptest-regressions"];
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_file() {
            files.push(entry.path());
        } else if kind.is_dir() && !OF_TOOLS.contains(&&*entry.file_name().to_string_lossy()) {
            collect_files(&entry.path(), files)?;
        }
    }
    Ok(())
}
