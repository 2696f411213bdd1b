//! The contenders of the benchmark, their numbers of workers, and the commands that start them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

use super::Plan;
use crate::checkout::repo_root;
use crate::{bench, machine, ranks};

/// A library, the transport of its workers, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Contender {
    /// Ours, one worker.
    OursAlone,
    /// Ours over shared memory.
    OursLocal,
    /// Ours over MPI.
    OursMpi,
    /// PyTorch, one process without DDP.
    TorchAlone(Layout),
    /// PyTorch's DistributedDataParallel over Gloo.
    Ddp(Layout, Buckets),
}

/// PyTorch's memory layout of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Layout {
    Default,
    ChannelsLast,
}

/// DDP's option `gradient_as_bucket_view`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Buckets {
    /// Gradients are copied into buckets and back.
    Copied,
    /// Gradients are views of the buckets.
    Views,
}

impl Contender {
    /// All contenders. The references of comparisons come first.
    pub(super) const ALL: [Self; 9] = [
        Self::OursAlone,
        Self::OursLocal,
        Self::OursMpi,
        Self::TorchAlone(Layout::Default),
        Self::TorchAlone(Layout::ChannelsLast),
        Self::Ddp(Layout::Default, Buckets::Copied),
        Self::Ddp(Layout::Default, Buckets::Views),
        Self::Ddp(Layout::ChannelsLast, Buckets::Copied),
        Self::Ddp(Layout::ChannelsLast, Buckets::Views),
    ];

    pub(super) fn label(self) -> String {
        let layout = |layout| match layout {
            Layout::Default => "",
            Layout::ChannelsLast => ", channels last",
        };
        match self {
            Self::OursAlone | Self::OursLocal => "Candelabrum".to_owned(),
            Self::OursMpi => "Candelabrum, MPI".to_owned(),
            Self::TorchAlone(of) => format!("PyTorch{}", layout(of)),
            Self::Ddp(of, Buckets::Copied) => format!("PyTorch DDP{}", layout(of)),
            Self::Ddp(of, Buckets::Views) => format!("PyTorch DDP{}, bucket views", layout(of)),
        }
    }

    /// `workers` if the contender has several, otherwise 1.
    pub(super) fn workers(self, workers: usize) -> usize {
        if matches!(self, Self::OursAlone | Self::TorchAlone(_)) { 1 } else { workers }
    }

    /// The contender with one worker to which its speed is compared.
    pub(super) fn alone(self) -> Self {
        match self {
            Self::OursAlone | Self::OursLocal | Self::OursMpi => Self::OursAlone,
            Self::TorchAlone(layout) | Self::Ddp(layout, _) => Self::TorchAlone(layout),
        }
    }

    pub(super) fn is_pytorch(self) -> bool {
        matches!(self, Self::TorchAlone(_) | Self::Ddp(..))
    }

    fn has_layout(self, wanted: Layout) -> bool {
        matches!(self, Self::TorchAlone(layout) | Self::Ddp(layout, _) if layout == wanted)
    }
}

/// The programs of the contenders.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) ours: PathBuf,
    /// A Python with PyTorch.
    pub(super) python: Option<PathBuf>,
}

impl Programs {
    /// Builds and finds the programs. Removes contenders that this machine lacks, and reports them.
    pub(super) fn find(plan: &mut Plan) -> Result<Self> {
        if !plan.network.has_convolutions() {
            plan.contenders.retain(|who| !who.has_layout(Layout::ChannelsLast));
        }
        let lacks = machine::lacks_for_mpi();
        if !lacks.is_empty() {
            println!("MPI: no {} here, left out (cargo xtask setup)", lacks.join(", no "));
            plan.contenders.retain(|who| *who != Contender::OursMpi);
        }
        let python = machine::python_with_torch();
        if python.is_none() {
            println!("PyTorch is not installed: left out (cargo xtask setup --pytorch)");
            plan.contenders.retain(|who| !who.is_pytorch());
        }
        let options: &[&str] = if lacks.is_empty() { &["--features", "mpi"] } else { &[] };
        let ours = bench::build("candelabrum-bench-step", "bench-step-contender", options)?;
        Ok(Self { ours, python })
    }

    /// The commands of a contender's processes, with one compute thread each.
    pub(super) fn commands(&self, contender: Contender, plan: &Plan) -> Result<Vec<Command>> {
        let ours = || Ok(options(Command::new(&self.ours), "ours", plan));
        let torch = |layout, ddp: Option<Buckets>| {
            let mut python = Command::new(self.python.as_ref().context("no Python with PyTorch")?);
            python.arg(repo_root().join("scripts/bench_step.py"));
            if let Some(buckets) = ddp {
                let buckets = if buckets == Buckets::Views { "bucket-view" } else { "default" };
                python.args(["--ddp", buckets]);
            }
            let channels_last = layout == Layout::ChannelsLast;
            let name = if channels_last { "pytorch-channels-last" } else { "pytorch" };
            Ok(options(python, name, plan))
        };
        let mut commands = match contender {
            Contender::OursAlone => vec![ours()?],
            Contender::OursLocal => ranks::side_by_side(plan.workers, ours)?,
            Contender::OursMpi => {
                vec![options(ranks::mpiexec(plan.workers, &self.ours), "ours", plan)]
            }
            Contender::TorchAlone(layout) => vec![torch(layout, None)?],
            Contender::Ddp(layout, buckets) => {
                ranks::side_by_side(plan.workers, || torch(layout, Some(buckets)))?
            }
        };
        for command in &mut commands {
            for variable in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"] {
                command.env(variable, "1");
            }
            command.env_remove("CANDLE_NUM_THREADS");
            command.env("GLOO_SOCKET_IFNAME", "lo").env("CANDELABRUM_TIMEOUT", ranks::STANDSTILL);
        }
        Ok(commands)
    }
}

fn options(mut command: Command, contender: &str, plan: &Plan) -> Command {
    command.args(["--contender", contender, "--network", plan.network.name()]);
    command.args(["--batch-size", &plan.batch_size.to_string(), "--threads", "1"]);
    command.args(["--warm-up", &plan.network.warm_up_steps().to_string()]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_ddp::fixture;
    use crate::shell::display;

    #[test]
    fn each_contender_has_its_workers() {
        let programs = Programs { ours: "step".into(), python: Some("python".into()) };
        let plan = fixture::plan();
        for contender in Contender::ALL {
            let commands = programs.commands(contender, &plan).unwrap();
            let shown: Vec<String> = commands.iter().map(display).collect();
            let several = contender.workers(2) > 1 && contender != Contender::OursMpi;
            assert_eq!(shown.len(), if several { 2 } else { 1 }, "{shown:?}");
            assert_eq!(shown[0].contains("WORLD_SIZE=2"), several, "{shown:?}");
            let is_ddp = matches!(contender, Contender::Ddp(..));
            assert_eq!(shown[0].contains("--ddp"), is_ddp, "{shown:?}");
        }
    }

    #[test]
    fn ddp_is_compared_with_one_process_of_the_same_layout() {
        let ddp = Contender::Ddp(Layout::ChannelsLast, Buckets::Views);
        assert_eq!(ddp.alone(), Contender::TorchAlone(Layout::ChannelsLast));
        assert_eq!(Contender::OursMpi.alone(), Contender::OursAlone);
    }
}
