//! The build that the checks and the tests share.
//!
//! The tests are built once, with everything that this machine has: MPI, and GPUs as the software GPU stands in for
//! them. Tests that are not about GPUs run in this build as on a machine without a GPU.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use candelabrum_softgpu::SoftGpuKit;
use cargo_metadata::{Artifact, Message};

use crate::checkout::{repo_root, target_folder, workspace};
use crate::machine;
use crate::shell::{cargo, read_lines};

/// How everything is built on this machine.
#[derive(Debug)]
pub(crate) struct TestBuild {
    features: Vec<&'static str>,
    /// The software GPU.
    kit: Option<SoftGpuKit>,
}

/// A built program with tests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TestProgram {
    /// The package, without the name that all of them begin with.
    pub(crate) package: String,
    pub(crate) target: String,
    /// A library or a program of ours, with the tests in its sources.
    pub(crate) has_unit_tests: bool,
    pub(crate) path: PathBuf,
    /// The folder of the package, in which cargo would run it.
    pub(crate) folder: PathBuf,
}

impl TestBuild {
    pub(crate) fn of_this_machine() -> Result<Self> {
        let mut build = Self {
            features: vec![
                "candelabrum/transformers",
                "candelabrum/f64",
                "candelabrum-bench-player/finetune",
            ],
            kit: None,
        };
        if machine::lacks_for_mpi().is_empty() {
            build.features.push("candelabrum/mpi");
        }
        if machine::lacks_for_softgpu().is_empty() {
            let kit =
                SoftGpuKit::build(&repo_root(), &target_folder()).context("no software GPU")?;
            build.features.extend(["candelabrum/cuda", "candelabrum-softgpu/cuda"]);
            build.kit = Some(kit);
        }
        Ok(build)
    }

    pub(crate) fn has_software_gpu(&self) -> bool {
        self.kit.is_some()
    }

    /// Whether this machine has everything, so that the build has every feature.
    pub(crate) fn is_complete(&self) -> bool {
        self.features.contains(&"candelabrum/mpi") && self.has_software_gpu()
    }

    /// The folder of cargo's builds: with the software GPU one of its own.
    pub(crate) fn target_folder(&self) -> PathBuf {
        self.kit.as_ref().map_or_else(target_folder, SoftGpuKit::build_folder)
    }

    /// `cargo <args> --workspace`. For single packages cargo would choose other features of their dependencies, and
    /// build candle again.
    pub(crate) fn cargo(&self, args: &[&str]) -> Command {
        let mut command = match self.kit {
            Some(_) => cargo(&["xtask", "softgpu", "--", "cargo"]),
            None => cargo(&[]),
        };
        command.args(args).args(["--workspace", "--features", &self.features.join(",")]);
        command
    }

    /// `cargo test <args> --workspace`, by [`compiler`].
    pub(crate) fn test(&self, args: &[&str]) -> Command {
        let mut command = self.cargo(&[&["test"], args].concat());
        command.envs([compiler()]);
        command
    }

    /// Sets the variables with which programs of this build run.
    pub(crate) fn prepare(&self, command: &mut Command) {
        command.envs(self.kit.iter().flat_map(SoftGpuKit::environment)).envs([compiler()]);
    }

    /// Builds the programs that have tests, or of all of them those with these names.
    pub(crate) fn programs(&self, names: Option<&BTreeSet<String>>) -> Result<Vec<TestProgram>> {
        let mut command = self.test(&["--no-run"]);
        for name in names.into_iter().flatten() {
            command.args(["--test", name]);
        }
        let artifacts = artifacts(&mut command)?;
        let mut programs: Vec<_> = artifacts.into_iter().filter_map(program).collect();
        programs.sort();
        Ok(programs)
    }
}

/// The variable by which cargo compiles the packages of the workspace with `xtask/rustc.sh`.
fn compiler() -> (&'static str, PathBuf) {
    ("RUSTC_WORKSPACE_WRAPPER", repo_root().join("xtask/rustc.sh"))
}

/// Runs a build, and returns what it made.
pub(crate) fn artifacts(command: &mut Command) -> Result<Vec<Artifact>> {
    let mut artifacts = Vec::new();
    command.args(["--message-format", "json-render-diagnostics"]);
    let status = read_lines(command, |line| {
        if let Ok(Message::CompilerArtifact(artifact)) = serde_json::from_str(line) {
            artifacts.push(artifact);
        }
    })?;
    ensure!(status.success(), "the build failed ({status})");
    Ok(artifacts)
}

fn program(artifact: Artifact) -> Option<TestProgram> {
    let path = artifact.executable.filter(|_| artifact.profile.test)?.into();
    let mut packages = workspace().packages.iter();
    let package = packages.find(|package| package.id == artifact.package_id)?;
    Some(TestProgram {
        package: short(&package.name).to_owned(),
        has_unit_tests: !artifact.target.is_test(),
        target: artifact.target.name,
        path,
        folder: package.manifest_path.parent()?.into(),
    })
}

/// The name of a package without the one that all of them begin with.
pub(super) fn short(name: &str) -> &str {
    name.strip_prefix("candelabrum-").unwrap_or(name)
}
