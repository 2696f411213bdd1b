//! One sample: a contender in a fresh process, and the JSON line that it prints.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::Args;
use super::contender::{Contender, Network};
use crate::host;
use crate::shell::{display, repo_root};

/// What one process measured, and under which circumstances.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sample {
    pub(super) round: usize,
    pub(super) network: Network,
    pub(super) contender: Contender,
    #[serde(flatten)]
    pub(super) measured: Measured,
    /// Share of the machine's cores that other programs used meanwhile.
    pub(super) others_cpu_share: Option<f64>,
}

/// The line that a contender prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) images_per_second: f64,
    pub(super) steps: usize,
    /// The loss of the last warm-up step: the same step for everybody.
    pub(super) warm_up_loss: f64,
    /// The loss of the last measured step: the faster contender is further on.
    pub(super) final_loss: f64,
    pub(super) peak_rss_mb: Option<f64>,
    pub(super) threads: usize,
    /// Of the library, where it can only tell itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
}

/// Starts contenders.
#[derive(Debug)]
pub(super) struct Runner {
    program: Option<PathBuf>,
    python: Option<PathBuf>,
    batch_size: usize,
    seconds: f64,
    threads: usize,
}

impl Runner {
    /// With the program of the Rust contenders and a Python that has PyTorch.
    pub(super) fn new(program: Option<PathBuf>, python: Option<PathBuf>, args: &Args) -> Self {
        let &Args { batch_size, seconds, threads, .. } = args;
        Self { program, python, batch_size, seconds, threads }
    }

    /// Runs one contender once.
    pub(super) fn sample(
        &self,
        round: usize,
        network: Network,
        contender: Contender,
    ) -> Result<Sample> {
        let mut command = self.command(network, contender)?;
        let shown = display(&command);
        let before = host::CpuTime::now();
        let output = command
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot start `{shown}`"))?;
        let others_cpu_share = host::CpuTime::others_share(before, host::CpuTime::now());
        if !output.status.success() {
            bail!("`{shown}` failed ({})", output.status);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().last().unwrap_or("");
        let measured = serde_json::from_str(line)
            .with_context(|| format!("`{shown}` printed no result but: {line}"))?;
        Ok(Sample { round, network, contender, measured, others_cpu_share })
    }

    fn command(&self, network: Network, contender: Contender) -> Result<Command> {
        let mut command = if contender.is_pytorch() {
            let mut python = Command::new(self.python.as_ref().context("no Python with PyTorch")?);
            python.arg(repo_root().join("scripts/bench_step.py"));
            python
        } else {
            Command::new(self.program.as_ref().context("the Rust contenders were not built")?)
        };
        let threads = self.threads.to_string();
        command.args(["--contender", contender.name(), "--network", network.name()]);
        command.args(["--batch-size", &self.batch_size.to_string(), "--threads", &threads]);
        command.args(["--seconds", &self.seconds.to_string()]);
        for variable in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"] {
            command.env(variable, &threads);
        }
        Ok(command)
    }
}
