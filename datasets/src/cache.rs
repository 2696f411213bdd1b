//! The directory for downloads, and writing complete files to it.

use std::{
    fs::Permissions,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::{
    environment::Environment,
    error::{Error, Result},
};

/// The directory of MNIST: `$CANDELABRUM_CACHE/mnist`, or else `$XDG_CACHE_HOME/candelabrum/mnist`,
/// or else `~/.cache/candelabrum/mnist`. `None` if none of the three variables is set.
///
/// A relative `$XDG_CACHE_HOME` is ignored, as its specification requires.
pub fn cache_dir(environment: &Environment) -> Option<PathBuf> {
    let Environment { candelabrum_cache, xdg_cache_home, home, .. } = environment;
    let xdg = || xdg_cache_home.as_ref().filter(|dir| dir.is_absolute()).cloned();
    let own = candelabrum_cache.clone().or_else(|| {
        let caches = xdg().or_else(|| home.as_ref().map(|home| home.join(".cache")));
        Some(caches?.join("candelabrum"))
    });
    Some(own?.join("mnist"))
}

/// Writes a file so that no process ever sees a part of it: the content is written to a temporary
/// file in the same directory, which is then renamed. If several processes write at the same time,
/// the last one wins.
///
/// By default only its user can access a temporary file. This one gets the permissions of any new
/// file, because several users may share a cache.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    let mut file = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(dir)
        .map_err(Error::io("write into", dir))?;
    file.write_all(content).map_err(Error::io("write", path))?;
    file.as_file().sync_all().map_err(Error::io("write", path))?;
    file.persist(path).map_err(|error| Error::io("write", path)(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_decides() {
        let check = |candelabrum: Option<&str>, xdg: Option<&str>, home: Option<&str>| {
            let environment = Environment {
                mnist_dir: None,
                candelabrum_cache: candelabrum.map(PathBuf::from),
                xdg_cache_home: xdg.map(PathBuf::from),
                home: home.map(PathBuf::from),
            };
            cache_dir(&environment).map(|dir| dir.to_string_lossy().into_owned())
        };
        assert_eq!(check(Some("/c"), Some("/x"), Some("/h")).as_deref(), Some("/c/mnist"));
        assert_eq!(check(None, Some("/x"), Some("/h")).as_deref(), Some("/x/candelabrum/mnist"));
        let home = Some("/h/.cache/candelabrum/mnist");
        assert_eq!(check(None, None, Some("/h")).as_deref(), home);
        assert_eq!(check(None, Some("relative"), Some("/h")).as_deref(), home);
        assert_eq!(check(None, None, None), None);
    }

    #[test]
    fn a_written_file_replaces_the_old_one_and_leaves_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b/file");
        write_atomically(&path, b"old").unwrap();
        write_atomically(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(root.path().join("a/b")).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("taken"), b"").unwrap();
        let error = write_atomically(&root.path().join("taken/file"), b"x").unwrap_err();
        assert!(error.to_string().contains("taken: cannot create"), "{error}");
    }
}
