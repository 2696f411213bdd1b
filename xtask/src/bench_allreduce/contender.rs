//! The contenders of the benchmark, and the commands that start their ranks.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::Serialize;

use super::Ready;
use crate::bench::{build, compile_mpi};
use crate::checkout::repo_root;
use crate::hosts::{ADDRESSES, DEVICE, Hosts};
use crate::{machine, ranks};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Contender {
    /// Ours over shared memory, with the numbers in a buffer of the communicator
    Local,
    /// Ours over shared memory, with the numbers in a vector of the caller
    LocalSlice,
    /// Ours over MPI
    Mpi,
    /// A C program that calls MPI_Allreduce in place
    MpiC,
    /// Gloo, through torch.distributed
    Gloo,
    /// As many threads that change their numbers in place: the limit set by the memory
    Memory,
}

impl Contender {
    /// The name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::LocalSlice => "local-slice",
            Self::Mpi => "mpi",
            Self::MpiC => "mpi-c",
            Self::Gloo => "gloo",
            Self::Memory => "memory",
        }
    }

    /// The name in a chart.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Local => "Candelabrum, local",
            Self::LocalSlice => "Candelabrum, local, caller's memory",
            Self::Mpi => "Candelabrum, MPI",
            Self::MpiC => "C, MPI_Allreduce in place",
            Self::Gloo => "PyTorch, Gloo",
            Self::Memory => "what memory allows",
        }
    }

    /// Whether its ranks can be on two hosts.
    pub(super) fn is_between_hosts(self) -> bool {
        matches!(self, Self::Mpi | Self::MpiC | Self::Gloo)
    }

    /// The error of a contender that is ready but started wrongly: ranks that do not find each
    /// other would each be a world of one.
    pub(super) fn mistrust(self, ready: &Ready, asked: usize) -> Option<String> {
        let backend = ready.backend.as_deref();
        let expected = match self {
            Self::Local | Self::LocalSlice => Some("local"),
            Self::Mpi => Some("mpi"),
            Self::Memory => Some("memory"),
            Self::MpiC | Self::Gloo => backend,
        };
        let as_asked = ready.ranks == asked && backend == expected;
        (!as_asked).then(|| {
            let over = backend.map_or_else(String::new, |backend| format!(" over {backend}"));
            format!("asked for {asked} ranks, it has {}{over}", ready.ranks)
        })
    }
}

/// The programs of the contenders.
#[derive(Debug)]
pub(super) struct Programs {
    ours: PathBuf,
    c: Option<PathBuf>,
    /// A Python with PyTorch.
    python: Option<PathBuf>,
    wire: Option<Wire>,
}

impl Programs {
    /// Builds and finds the needed programs. Removes contenders that this machine lacks, and
    /// reports them.
    pub(super) fn find(contenders: &mut Vec<Contender>, wire: Option<Wire>) -> Result<Self> {
        let is_mpi = |who: &Contender| matches!(who, Contender::Mpi | Contender::MpiC);
        let lacks = machine::lacks_for_mpi();
        if contenders.iter().any(is_mpi) && !lacks.is_empty() {
            println!("MPI: no {} here, left out (cargo xtask setup)", lacks.join(", no "));
            contenders.retain(|who| !is_mpi(who));
        }
        let mut python = None;
        if contenders.contains(&Contender::Gloo) {
            python = machine::python_with_torch();
            if python.is_none() {
                println!("Gloo: PyTorch is not installed, left out (cargo xtask setup --pytorch)");
                contenders.retain(|who| *who != Contender::Gloo);
            }
        }
        ensure!(!contenders.is_empty(), "no contender is left to measure");
        let c = contenders.contains(&Contender::MpiC);
        let c = c.then(|| compile_mpi("benches/allreduce/allreduce.c", "bench-allreduce-c"));
        let mpi = contenders.contains(&Contender::Mpi);
        let options: &[&str] = if mpi { &["--features", "mpi"] } else { &[] };
        let ours = build("candelabrum-bench-allreduce", "bench-allreduce-rank", options)?;
        Ok(Self { ours, c: c.transpose()?, python, wire })
    }

    /// The commands of a contender's processes.
    pub(super) fn commands(&self, contender: Contender, ranks: usize) -> Result<Vec<Command>> {
        if let Some(wire) = &self.wire {
            return self.between_hosts(wire, contender);
        }
        let ours = |numbers: &str| {
            let mut command = Command::new(&self.ours);
            command.args(["--numbers", numbers]);
            Ok(command)
        };
        let mut commands = match contender {
            Contender::Local => ranks::side_by_side(ranks, || ours("segment"))?,
            Contender::LocalSlice => ranks::side_by_side(ranks, || ours("slice"))?,
            Contender::Mpi => vec![ranks::mpiexec(ranks, &self.ours)],
            Contender::MpiC => {
                vec![ranks::mpiexec(ranks, self.c.as_ref().context("no C program")?)]
            }
            Contender::Gloo => ranks::side_by_side(ranks, || {
                let python = self.python.as_ref().context("no Python with PyTorch")?;
                let mut python = Command::new(python);
                python.arg(repo_root().join("scripts/bench_allreduce.py"));
                // All ranks are on this host, whatever its name is.
                python.env("GLOO_SOCKET_IFNAME", "lo").env("OMP_NUM_THREADS", "1");
                Ok(python)
            })?,
            Contender::Memory => {
                let mut command = Command::new(&self.ours);
                command.args(["--memory", &ranks.to_string()]);
                vec![command]
            }
        };
        for command in &mut commands {
            command.env("CANDELABRUM_TIMEOUT", ranks::STANDSTILL);
        }
        Ok(commands)
    }

    fn between_hosts(&self, wire: &Wire, contender: Contender) -> Result<Vec<Command>> {
        let Wire { hosts, late_ms } = wire;
        let late = ["--late-ms".to_owned(), late_ms.to_string()];
        if contender != Contender::Gloo {
            let c = self.c.as_ref().filter(|_| contender == Contender::MpiC);
            return Ok(vec![hosts.mpiexec(c.unwrap_or(&self.ours), &late)]);
        }
        let python = self.python.as_ref().context("no Python with PyTorch")?.display();
        let script = repo_root().join("scripts/bench_allreduce.py");
        let rank = |rank: usize| {
            let line = format!(
                "env RANK={rank} LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR={} \
                 MASTER_PORT=29500 GLOO_SOCKET_IFNAME={DEVICE} OMP_NUM_THREADS=1 {python} {} {}",
                ADDRESSES[0],
                script.display(),
                late.join(" ")
            );
            hosts.command(rank, &line)
        };
        Ok(vec![rank(0), rank(1)])
    }
}

/// Two hosts, and how late a rank is there.
#[derive(Debug)]
pub(super) struct Wire {
    hosts: Hosts,
    late_ms: u64,
}

impl Wire {
    pub(super) fn make(megabits: f64, late_ms: u64, folder: &Path) -> Result<Self> {
        let lacks = Hosts::lacks();
        ensure!(lacks.is_empty(), "--link needs what is missing here: {}", lacks.join(", "));
        let hosts = Hosts::make(folder)?;
        hosts.set_rate(megabits)?;
        Ok(Self { hosts, late_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::display;

    #[test]
    fn each_contender_has_its_ranks() {
        let programs = Programs {
            ours: "rank".into(),
            c: Some("c-rank".into()),
            python: Some("python".into()),
            wire: None,
        };
        let shown = |who: Contender| -> Vec<String> {
            programs.commands(who, 3).unwrap().iter().map(display).collect()
        };
        assert_eq!(shown(Contender::LocalSlice).len(), 3);
        assert!(shown(Contender::LocalSlice)[2].ends_with("rank --numbers slice"));
        assert!(shown(Contender::Mpi)[0].contains("mpiexec --bind-to none -n 3 rank"));
        assert!(shown(Contender::MpiC)[0].contains("-n 3 c-rank"));
        assert!(shown(Contender::Gloo)[1].contains("LOCAL_RANK=1"));
        assert!(shown(Contender::Memory)[0].ends_with("rank --memory 3"));
    }

    #[test]
    fn another_world_than_asked_for_is_mistrusted() {
        let ready = |ranks, backend: Option<&str>| Ready {
            ranks,
            backend: backend.map(str::to_owned),
            version: None,
        };
        assert_eq!(Contender::Local.mistrust(&ready(2, Some("local")), 2), None);
        assert_eq!(Contender::Gloo.mistrust(&ready(2, None), 2), None);
        let alone = Contender::Mpi.mistrust(&ready(1, Some("single")), 2);
        assert_eq!(alone.unwrap(), "asked for 2 ranks, it has 1 over single");
        assert!(Contender::Mpi.mistrust(&ready(2, Some("local")), 2).is_some());
    }
}
