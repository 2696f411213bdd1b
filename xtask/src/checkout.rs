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
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

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
    let manifest = |folder: &Path| fs::read_to_string(folder.join("Cargo.toml")).ok();
    let has_line = |text: &str, line: &str| text.lines().any(|other| other.trim() == line);
    // The nearest manifest of a workspace, as in cargo.
    let workspaces = folder.ancestors().filter_map(|folder| Some((folder, manifest(folder)?)));
    let nearest = workspaces.into_iter().find(|(_, text)| has_line(text, "[workspace]"));
    match nearest {
        Some((root, text)) if has_line(&text, "name = \"candelabrum\"") => Ok(root.to_path_buf()),
        Some((root, _)) => bail!(
            "{} is in the workspace {}, which is not Candelabrum's: call `cargo xtask` in a checkout",
            folder.display(),
            root.display()
        ),
        None => bail!("{} is in no checkout of Candelabrum", folder.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with the manifest of a workspace of this name.
    fn workspace(folder: &Path, name: &str) -> PathBuf {
        fs::create_dir_all(folder.join("crates/inner/src")).unwrap();
        let manifest = format!("[workspace]\nmembers = []\n\n[package]\nname = \"{name}\"\n");
        fs::write(folder.join("Cargo.toml"), manifest).unwrap();
        let member = "[package]\nname = \"inner\"\n";
        fs::write(folder.join("crates/inner/Cargo.toml"), member).unwrap();
        folder.to_path_buf()
    }

    #[test]
    fn each_clone_is_its_own_root_from_any_folder_in_it() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            let root = workspace(&folder.path().join(name), "candelabrum");
            for inside in ["", "crates", "crates/inner/src"] {
                assert_eq!(root_above(&root.join(inside)).unwrap(), root);
            }
        }
    }

    #[test]
    fn outside_of_a_checkout_nothing_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let message = |folder: &Path| root_above(folder).unwrap_err().to_string();
        assert!(message(folder.path()).contains("in no checkout"));
        let outer = workspace(&folder.path().join("outer"), "candelabrum");
        // Another project inside of a checkout, as a vendored project may be.
        let inner = workspace(&outer.join("other"), "other");
        assert!(message(&inner).contains("not Candelabrum's"));
    }

    #[test]
    fn this_program_finds_its_own_checkout() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(Some(&*repo_root()), package.parent());
    }
}
