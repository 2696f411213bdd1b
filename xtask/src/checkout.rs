//! The checkout of the tasks: the one from which they are called.
//!
//! Clones of this repository may share a target directory, and therefore this program. The place
//! where the program was compiled does not determine the checkout to work on, but it shows which
//! clone's build is in the target directory. cargo identifies the packages of a workspace by their
//! paths below its root, which are the same in every clone. So cargo would use the other clone's
//! programs and tests for this one's, as long as this clone's files are not newer.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

static ROOT: OnceLock<PathBuf> = OnceLock::new();

/// Looks for the checkout around the current folder. [`repo_root`] returns it from then on. Returns
/// the root of the checkout in which this program was compiled, if that is another one.
pub(crate) fn enter() -> Result<Option<&'static Path>> {
    let root = root_above(&env::current_dir().context("there is no current folder")?)?;
    let root = ROOT.get_or_init(|| root);
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiled_in = package.parent().unwrap_or(package);
    let is_this = fs::canonicalize(compiled_in).ok() == fs::canonicalize(root).ok();
    Ok((!is_this).then_some(compiled_in))
}

/// The root of the checkout from which this program was called.
pub(crate) fn repo_root() -> PathBuf {
    // Tests start here, because cargo runs them in the folder of this package.
    let find = || env::current_dir().map(|folder| root_above(&folder));
    ROOT.get_or_init(|| find().expect("a current folder").expect("a checkout around it")).clone()
}

/// The root of the workspace around `folder`, which must be this project's.
fn root_above(folder: &Path) -> Result<PathBuf> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["locate-project", "--workspace", "--message-format", "plain"]);
    let output = command.current_dir(folder).output().context("cannot start cargo")?;
    let manifest = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let Some(root) = manifest.parent().filter(|_| output.status.success()) else {
        bail!("{} is in no checkout of Candelabrum", folder.display());
    };
    let text = fs::read_to_string(&manifest).unwrap_or_default();
    ensure!(
        text.lines().any(|line| line == "name = \"candelabrum\""),
        "{} is in the workspace {}, which is not Candelabrum's: call `cargo xtask` in a checkout",
        folder.display(),
        root.display()
    );
    Ok(root.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_of_a_checkout_nothing_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let message = |folder: &Path| root_above(folder).unwrap_err().to_string();
        assert!(message(folder.path()).contains("in no checkout"));
        // Another project, perhaps inside of a checkout.
        fs::create_dir(folder.path().join("src")).unwrap();
        fs::write(folder.path().join("src/lib.rs"), "").unwrap();
        let manifest = "[workspace]\n[package]\nname = \"other\"\n";
        fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
        assert!(message(folder.path()).contains("not Candelabrum's"));
    }

    #[test]
    fn this_program_finds_its_own_checkout() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(Some(&*repo_root()), package.parent());
        assert_eq!(root_above(&package.join("src/bench")).unwrap(), repo_root());
    }
}
