//! The checkout of the tasks: the one from which they are called.
//!
//! Clones of this repository may share a target directory, and therefore this program. The place
//! where the program was compiled does not determine the checkout to work on, but it shows which
//! clone's build is in the target directory. cargo identifies the packages of a workspace by their
//! paths below its root, which are the same in every clone. So cargo would use the other clone's
//! programs and tests for this one's, as long as this clone's files are not newer.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use cargo_metadata::{Metadata, MetadataCommand};

static WORKSPACE: OnceLock<Metadata> = OnceLock::new();

/// Looks for the checkout around the current folder. [`workspace`] returns it from then on. Returns
/// the root of the checkout in which this program was compiled, if that is another one.
pub(crate) fn enter() -> Result<Option<&'static Path>> {
    let found = workspace_around(&env::current_dir().context("there is no current folder")?)?;
    let root = &WORKSPACE.get_or_init(|| found).workspace_root;
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiled_in = package.parent().unwrap_or(package);
    let is_this = fs::canonicalize(compiled_in).ok() == fs::canonicalize(root).ok();
    Ok((!is_this).then_some(compiled_in))
}

/// The checkout from which this program was called, as cargo describes it.
pub(crate) fn workspace() -> &'static Metadata {
    // Tests start here, because cargo runs them in the folder of this package.
    WORKSPACE.get_or_init(|| workspace_around(Path::new(".")).expect("a checkout around it"))
}

/// The root of the checkout.
pub(crate) fn repo_root() -> PathBuf {
    workspace().workspace_root.clone().into()
}

/// The folder of cargo's builds, with the user's settings.
pub(crate) fn target_folder() -> PathBuf {
    workspace().target_directory.clone().into()
}

/// The workspace around `folder`, which must be this project's.
fn workspace_around(folder: &Path) -> Result<Metadata> {
    let describe = |folder: &Path| MetadataCommand::new().no_deps().current_dir(folder).exec().ok();
    let (found, name) = (describe(folder), folder.display());
    let found = found.with_context(|| format!("{name} is in no checkout of Candelabrum"))?;
    let root = &found.workspace_root;
    ensure!(
        found.packages.iter().any(|package| package.name == "candelabrum"),
        "{name} is in the workspace {root}, which is not Candelabrum's: call `cargo xtask` in a \
         checkout"
    );
    // Again from there, since a user's setting of the target folder may be relative.
    describe(root.as_std_path()).context("cargo does not describe the checkout")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_of_a_checkout_nothing_is_done() {
        let folder = tempfile::tempdir().unwrap();
        let message = |folder: &Path| workspace_around(folder).unwrap_err().to_string();
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
        let found = workspace_around(&package.join("src/bench")).unwrap();
        assert_eq!(found.workspace_root, repo_root());
    }
}
