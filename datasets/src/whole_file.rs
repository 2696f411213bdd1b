//! Files that get their name only when they are complete.

use std::fs::Permissions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::NamedTempFile;

/// Makes the file at `path` from the output of `write`, and replaces an existing file. If several
/// processes write at the same time, the last one wins.
///
/// The bytes are written to a temporary file in the same directory, which is then renamed. After an
/// error the temporary file is removed, and an existing file is unchanged.
///
/// # Errors
/// Those of `write` and of the file system.
pub fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = temporary_beside(path)?;
    let mut out = BufWriter::new(file.as_file_mut());
    write(&mut out)?;
    out.flush()?;
    drop(out);
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// A new file in the directory of `path`, which is removed unless it is renamed.
///
/// # Errors
/// A file that cannot be made.
pub fn temporary_beside(path: &Path) -> io::Result<NamedTempFile> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    tempfile::Builder::new()
        .prefix(".partial-")
        // By default only its user can read a temporary file. But a report is for everybody, and
        // several users may share a cache.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(parent.unwrap_or(Path::new(".")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_or_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write_whole(&path, |out| out.write_all(b"old")).unwrap();
        write_whole(&path, |out| {
            out.write_all(b"half")?;
            Err(io::Error::other("no more"))
        })
        .unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        write_whole(&path, |out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        // Others can read the file, if this user's mask for new files allows it.
        let plain = dir.path().join("plain");
        fs::write(&plain, "").unwrap();
        let mode = |path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&plain));
    }
}
