//! The search for a program, as a shell does it, before any rank is started.
//!
//! Otherwise every rank would fail, and the message would not say what to do.

use std::env;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::failure::{Result, StartFailure};

/// Where programs are if PATH is not set, as in the C library.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The file of a program. A name without a `/` is searched in PATH.
pub(super) fn find(name: &OsStr) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    find_in(name, &path)
}

fn find_in(name: &OsStr, path: &OsStr) -> Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return check(Path::new(name)).map(|()| name.into());
    }
    let shown = name.to_string_lossy();
    let mut refused = None;
    if !name.is_empty() {
        for folder in env::split_paths(path) {
            let candidate = folder.join(name);
            match check(&candidate) {
                Ok(()) => return Ok(candidate),
                Err(StartFailure::NotFound(_)) => {}
                Err(error) => refused = refused.or(Some(error)),
            }
        }
    }
    let here = if !name.is_empty() && Path::new(name).is_file() {
        format!(": for the file in this folder write ./{shown}")
    } else {
        ": is its name right, and is it installed?".to_owned()
    };
    Err(refused
        .unwrap_or_else(|| StartFailure::NotFound(format!("no program `{shown}` in PATH{here}"))))
}

fn check(path: &Path) -> Result<()> {
    let shown = path.display();
    match path.metadata() {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            return Err(StartFailure::NotExecutable(format!("no permission to reach `{shown}`")));
        }
        Err(_) => return Err(StartFailure::NotFound(format!("there is no program `{shown}`"))),
        Ok(file) if file.is_dir() => {
            let what = format!("`{shown}` is a folder: name the program in it");
            return Err(StartFailure::NotExecutable(what));
        }
        Ok(_) => {}
    }
    access(path, Access::EXEC_OK).map_err(|_| {
        let what = format!("`{shown}` is not executable: `chmod +x` makes it so");
        StartFailure::NotExecutable(what)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn programs_are_found_as_by_a_shell() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, mode| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let (first, second) = (make("a/tool", 0o644), make("b/tool", 0o755));
        let plain = make("a/plain", 0o644);
        let path = env::join_paths([dir.path().join("a"), dir.path().join("b")]).unwrap();
        let find = |name: &OsStr| find_in(name, &path);
        assert_eq!(find("tool".as_ref()).unwrap(), second);
        assert_eq!(find(second.as_ref()).unwrap(), second);
        let code = |name: &OsStr| {
            let failure = find(name).unwrap_err();
            (failure.code(), failure.to_string())
        };
        for (name, code_of_it, part) in [
            (OsStr::new("nothing"), 127, "`nothing` in PATH"),
            (OsStr::new(""), 127, "`` in PATH"),
            (plain.file_name().unwrap(), 126, "chmod +x"),
            (first.as_os_str(), 126, "chmod +x"),
            (dir.path().as_os_str(), 126, "is a folder"),
            (OsStr::new("/no/such/program"), 127, "no program `/no/such/program`"),
        ] {
            let (code, message) = code(name);
            assert!(code == code_of_it && message.contains(part), "{name:?}: {code} {message}");
        }
    }
}
