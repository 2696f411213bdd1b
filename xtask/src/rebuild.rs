//! The tasks, compiled again in the checkout from which they are called.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::checkout::workspace;
use crate::shell::{cargo, run};

/// Set for the second attempt, after another clone's build has been removed.
const BUILT_AGAIN: &str = "CANDELABRUM_XTASK_BUILT_AGAIN";

/// Removes the build of the checkout `other` from the target directory, builds this checkout's
/// tasks and runs them in place of this process. Returns only if that fails.
pub(crate) fn rebuild(other: &Path) -> Result<()> {
    let (other, own) = (other.display(), &workspace().workspace_root);
    ensure!(
        env::var_os(BUILT_AGAIN).is_none(),
        "built in {own}, this program says it was in {other}"
    );
    println!("the target directory has the build of {other}: removing it, and building {own}");
    for profile in ["dev", "release"] {
        run(&mut cargo(&["clean", "--quiet", "--workspace", "--profile", profile]))?;
    }
    let mut again = cargo(&["xtask"]);
    again.args(env::args_os().skip(1)).current_dir(env::current_dir()?).env(BUILT_AGAIN, "1");
    Err(again.exec()).context("cannot start `cargo xtask` again")
}
