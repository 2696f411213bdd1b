//! The programs of the workspace, as a user starts them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use candelabrum_testkit::Program;

/// An example. It is built first if it is missing or out of date.
pub(crate) fn example(name: &str) -> Program {
    Program::new(programs().join("examples").join(name)).env_remove("MNIST_DIR")
}

/// The directory of the executables, which are built at the first call.
pub(crate) fn programs() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // `cargo xtask test` has built them.
        if std::env::var_os("CANDELABRUM_PROGRAMS_ARE_BUILT").is_none() {
            build();
        }
        let mut dir = std::env::current_exe().expect("a test knows its own program");
        dir.pop(); // deps
        dir.pop();
        dir
    })
}

fn build() {
    let mut build = Command::new(env!("CARGO"));
    // For the whole workspace and with examples, like `cargo test --workspace`: for this package alone,
    // or for the command alone, which needs no dev-dependencies, cargo would choose other features of the
    // dependencies and build most of them again.
    build.args(["build", "--quiet", "--workspace", "--examples", "--bin", "candelabrum"]);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    // The variables that cargo sets for a test would make build scripts run again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            build.env_remove(&name);
        }
    }
    build.args(features());
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success(), "the programs do not build");
}

/// The options with which cargo builds what this test was built with.
pub(crate) fn features() -> impl Iterator<Item = String> {
    let features = [
        ("transformers", cfg!(feature = "transformers")),
        ("f64", cfg!(feature = "f64")),
        ("mpi", cfg!(feature = "mpi")),
        ("cuda", cfg!(feature = "cuda")),
    ];
    let wanted = features.into_iter().filter(|(_, is_on)| *is_on);
    wanted.map(|(feature, _)| format!("--features=candelabrum/{feature}"))
}
