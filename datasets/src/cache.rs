//! The directory for downloads.

use std::path::{Path, PathBuf};

use crate::{
    environment::Environment,
    error::{Error, Result},
    image_set::ImageSet,
    whole_file::write_whole,
};

/// The directory of a set, for instance MNIST: `$CANDELABRUM_CACHE/mnist`, or else
/// `$XDG_CACHE_HOME/candelabrum/mnist`, or else `~/.cache/candelabrum/mnist`. `None` if none of the three
/// variables is set.
///
/// A relative `$XDG_CACHE_HOME` is ignored, as its specification requires.
pub fn cache_dir(environment: &Environment, set: ImageSet) -> Option<PathBuf> {
    let Environment { candelabrum_cache, xdg_cache_home, home, .. } = environment;
    let xdg = || xdg_cache_home.as_ref().filter(|dir| dir.is_absolute()).cloned();
    let own = candelabrum_cache.clone().or_else(|| {
        let caches = xdg().or_else(|| home.as_ref().map(|home| home.join(".cache")));
        Some(caches?.join("candelabrum"))
    });
    Some(own?.join(set.name()))
}

/// Makes a file of the cache, and its directory where that is missing.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
    write_whole(path, |out| out.write_all(content)).map_err(Error::io("write", path))
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
            cache_dir(&environment, ImageSet::Mnist).map(|dir| dir.to_string_lossy().into_owned())
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
