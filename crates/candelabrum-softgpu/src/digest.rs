//! Digests of files, by which a step knows that nothing has changed since it was done.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::Hasher;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A digest in progress. It may change with the version of Rust, which only repeats the steps.
#[derive(Debug, Clone, Default)]
pub(crate) struct Digest(DefaultHasher);

impl Digest {
    pub(crate) fn text(&mut self, text: &str) {
        self.0.write_usize(text.len());
        self.0.write(text.as_bytes());
    }

    pub(crate) fn file(&mut self, path: &Path) -> Result<()> {
        let bytes = fs::read(path).map_err(Error::file("read", path))?;
        self.0.write_usize(bytes.len());
        self.0.write(&bytes);
        Ok(())
    }

    /// Every file below the folder, with its name.
    pub(crate) fn folder(&mut self, folder: &Path) -> Result<()> {
        for path in files_in(folder)? {
            self.text(&path.strip_prefix(folder).unwrap_or(&path).to_string_lossy());
            self.file(&path)?;
        }
        Ok(())
    }

    pub(crate) fn finish(&self) -> String {
        format!("{:016x}", self.0.finish())
    }
}

/// The files below the folder, sorted.
pub(crate) fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::file("list", folder))? {
        let path = entry.map_err(Error::file("list", folder))?.path();
        if path.is_dir() {
            files.extend(files_in(&path)?);
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_depends_on_names_and_contents() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let of = |folder: &str| {
            let mut digest = Digest::default();
            digest.folder(&package.join(folder)).expect("a folder");
            digest.finish()
        };
        assert_eq!(of("include"), of("include"));
        assert_ne!(of("include"), of("cpp"));
        let mut parts = [Digest::default(), Digest::default()];
        parts[0].text("ab");
        parts[0].text("c");
        parts[1].text("a");
        parts[1].text("bc");
        assert_ne!(parts[0].finish(), parts[1].finish());
    }
}
