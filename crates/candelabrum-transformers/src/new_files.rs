//! The files of a folder that belong together, where an older folder may be.
//!
//! Old weights with a new config, or new ones with an old config, open without an error and compute other numbers. So
//! all files are whole under other names before the first of them takes its place. The config, without which nothing
//! opens the folder, goes first and comes last.

use std::fs;
use std::path::{Path, PathBuf};

use candelabrum_datasets::temporary_beside;
use tempfile::NamedTempFile;

use crate::error::{Error, Result};

/// New files of a folder, which take their places together.
pub(crate) struct NewFiles<'p> {
    folder: &'p Path,
    /// The files, and their places.
    files: Vec<(NamedTempFile, PathBuf)>,
    /// What would be read with the new files if it were there, unless it is among them.
    others: Vec<PathBuf>,
}

impl<'p> NewFiles<'p> {
    /// Makes the folder if there is none.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub(crate) fn new(folder: &'p Path) -> Result<Self> {
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        Ok(Self { folder, files: Vec::new(), others: Vec::new() })
    }

    /// Adds the file `name`, whose content `write` gives to the file at a path.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn write(
        &mut self,
        name: &str,
        write: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        let path = self.folder.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        }
        let file = temporary_beside(&path).map_err(Error::io("create", &path))?;
        // The user's mask decides who may read a file. A library may decide otherwise.
        let created = file.as_file().metadata().map_err(Error::io("read", &path))?;
        write(file.path())?;
        fs::set_permissions(file.path(), created.permissions())
            .and_then(|()| file.as_file().sync_all())
            .map_err(Error::io("write", &path))?;
        self.files.push((file, path));
        Ok(())
    }

    /// Adds the file `name`.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn write_bytes(&mut self, name: &str, content: &[u8]) -> Result<()> {
        self.write(name, |path| fs::write(path, content).map_err(Error::io("write", path)))
    }

    /// Removes the files of these names that an older model has left, unless they are written now.
    pub(crate) fn without(&mut self, names: &[&str]) {
        self.others.extend(names.iter().map(|name| self.folder.join(name)));
    }

    /// Puts all files into their places. `config` opens the folder, so an older one goes first, and the new one comes
    /// last.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn finish(mut self, config: &str, text: &str) -> Result<()> {
        self.write_bytes(config, text.as_bytes())?;
        remove(&self.folder.join(config))?;
        self.places()
    }

    /// Puts all files into their places. Each of them has a meaning of its own.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn places(self) -> Result<()> {
        for other in self.others {
            if !self.files.iter().any(|(_, path)| *path == other) {
                remove(&other)?;
            }
        }
        for (file, path) in self.files {
            file.persist(&path).map_err(|failed| Error::io("write", &path)(failed.error))?;
        }
        Ok(())
    }
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const CONFIG: &str = "config.json";

    fn old_folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(CONFIG), "old").unwrap();
        fs::write(folder.path().join("weights"), "old").unwrap();
        folder
    }

    fn content(folder: &Path) -> BTreeMap<String, String> {
        let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let named = |path: PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(path).unwrap_or_default())
        };
        files.map(named).collect()
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_folder_as_it_was() {
        let folder = old_folder();
        let before = content(folder.path());
        let mut files = NewFiles::new(folder.path()).unwrap();
        files.write_bytes("weights", b"new").unwrap();
        let full = |path: &Path| Err(Error::file(path, "no space left".to_owned()));
        files.write("more", full).unwrap_err();
        drop(files);
        assert_eq!(content(folder.path()), before);
    }

    #[test]
    fn a_folder_without_all_of_its_new_files_has_no_config() {
        let folder = old_folder();
        // No file takes the place of a folder.
        fs::create_dir(folder.path().join("tokenizer")).unwrap();
        let mut files = NewFiles::new(folder.path()).unwrap();
        files.write_bytes("weights", b"new").unwrap();
        files.write_bytes("tokenizer", b"new").unwrap();
        files.finish(CONFIG, "new").unwrap_err();
        let after = content(folder.path());
        assert_eq!(after["weights"], "new");
        assert!(!after.contains_key(CONFIG), "{after:?}");
    }

    #[test]
    fn new_files_take_the_places_of_the_old_ones() {
        let folder = old_folder();
        let mut files = NewFiles::new(folder.path()).unwrap();
        files.write_bytes("weights", b"new").unwrap();
        files.write_bytes("1_Pooling/config.json", b"new").unwrap();
        fs::write(folder.path().join("template"), "old").unwrap();
        files.without(&["template", "weights"]);
        files.finish(CONFIG, "new").unwrap();
        let after = content(folder.path());
        assert_eq!((&after[CONFIG], &after["weights"]), (&"new".to_owned(), &"new".to_owned()));
        assert_eq!(after.len(), 3, "{after:?}");
    }
}
