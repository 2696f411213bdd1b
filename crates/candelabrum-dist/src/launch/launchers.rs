//! The launchers that this project knows, and the environment variables of each, in one table:
//! [`LAUNCHERS`].

use super::variables::Variables;
use super::{dmlc, vars};
use crate::Result;

/// The program that started the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// No launcher: a world of one.
    Alone,
    /// [`super::spawn()`].
    Candelabrum,
    /// Open MPI's mpiexec.
    OpenMpi,
    /// MPICH's, Intel MPI's or another Hydra mpiexec.
    Hydra,
    /// Slurm's srun.
    Slurm,
    /// torchrun, or any other launcher that sets RANK and WORLD_SIZE.
    Torchrun,
    /// MXNet's tracker.
    Dmlc,
    /// The program itself, which gives its ranks their places ([`super::WorldConfig`]).
    Program,
}

/// The environment variables of one launcher.
pub(super) struct LauncherVariables {
    pub(super) launcher: Launcher,
    /// The launcher started this process if all of these are set.
    pub(super) proof: &'static [&'static str],
    pub(super) rank: &'static str,
    pub(super) world_size: WorldSize,
    /// One of these numbers is above 1 only if the launcher has started several processes.
    pub(super) several: &'static [&'static str],
    pub(super) on_host: HostRank,
    /// The job id: all ranks of a job have it, and no rank of another job.
    pub(super) job: fn(&Variables<'_>) -> Option<String>,
    /// The launcher serves MPI libraries if one of these is set.
    pub(super) mpi: &'static [&'static str],
}

/// The source of the number of ranks.
pub(super) enum WorldSize {
    /// The first of these variables that is set.
    Is(&'static [&'static str]),
    /// The result of this function.
    From(fn(&Variables<'_>) -> Result<usize>),
}

/// The source of this rank's number on its host, and of the number of ranks there.
pub(super) enum HostRank {
    /// These variables.
    Is { rank: &'static str, size: &'static str },
    /// The rank's number is in a variable. The number of hosts is in the first of `hosts` that is
    /// set. If the number is 1, or none is set, all ranks are on this host. On several hosts the function counts the
    /// ranks of this one, if it can.
    AllOfOne {
        rank: &'static str,
        hosts: &'static [&'static str],
        count: fn(&Variables<'_>) -> Option<usize>,
    },
    /// All ranks are on this host if this function says so. Otherwise the launcher does not count per host.
    AllIf(fn(&Variables<'_>) -> bool),
}

impl HostRank {
    /// The variables that count the ranks of a host.
    pub(super) fn names(&self) -> Option<[&'static str; 2]> {
        match *self {
            Self::Is { rank, size } => Some([rank, size]),
            Self::AllOfOne { .. } | Self::AllIf(_) => None,
        }
    }
}

/// The first launcher of this table whose `proof` is set has started this process. The order
/// matters: `srun --mpi=pmi2` sets `PMI_RANK` as Hydra does, but not Hydra's `MPI_LOCALRANKID`. In
/// a batch script Slurm sets `SLURM_PROCID` although there is one process, so only `SLURM_STEP_ID`
/// proves that srun has started it. MXNet's tracker for one host may run in a step of srun or
/// mpiexec, and then gives each process a number that the step does not give. Its tracker for MPI
/// leaves the numbers to mpiexec. Its tracker for ssh gives none, which is an error.
pub(super) const LAUNCHERS: [LauncherVariables; 8] = [
    LauncherVariables {
        launcher: Launcher::Candelabrum,
        proof: &[vars::RANK],
        rank: vars::RANK,
        world_size: WorldSize::Is(&[vars::WORLD_SIZE]),
        several: &[vars::WORLD_SIZE],
        on_host: HostRank::Is { rank: vars::RANK, size: vars::WORLD_SIZE },
        job: |_| None,
        mpi: &[],
    },
    LauncherVariables { proof: &[dmlc::ROLE, dmlc::WORKERS, dmlc::SERVERS, dmlc::TASK], ..DMLC },
    LauncherVariables {
        launcher: Launcher::Torchrun,
        proof: &["RANK", "WORLD_SIZE"],
        rank: "RANK",
        world_size: WorldSize::Is(&["WORLD_SIZE"]),
        several: &["WORLD_SIZE", "LOCAL_WORLD_SIZE"],
        on_host: HostRank::Is { rank: "LOCAL_RANK", size: "LOCAL_WORLD_SIZE" },
        job: torchrun_job,
        mpi: &[],
    },
    LauncherVariables {
        launcher: Launcher::OpenMpi,
        proof: &["OMPI_COMM_WORLD_RANK"],
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: WorldSize::Is(&["OMPI_COMM_WORLD_SIZE"]),
        several: &["OMPI_COMM_WORLD_SIZE"],
        on_host: HostRank::Is {
            rank: "OMPI_COMM_WORLD_LOCAL_RANK",
            size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        },
        job: |env| env.get("PMIX_NAMESPACE").or_else(|| env.started_by("OMPI_COMM_WORLD_RANK")),
        mpi: &["OMPI_COMM_WORLD_RANK"],
    },
    LauncherVariables { proof: &["PMI_RANK", "MPI_LOCALRANKID"], ..HYDRA },
    LauncherVariables {
        launcher: Launcher::Slurm,
        proof: &["SLURM_STEP_ID", "SLURM_PROCID"],
        rank: "SLURM_PROCID",
        world_size: WorldSize::Is(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"]),
        // SLURM_NTASKS is also set in a batch script, which is one process.
        several: &["SLURM_STEP_NUM_TASKS"],
        on_host: HostRank::AllOfOne {
            rank: "SLURM_LOCALID",
            // The allocation may have more nodes than the step.
            hosts: &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"],
            count: tasks_of_node,
        },
        job: |env| Some(format!("{}.{}", env.get("SLURM_JOB_ID")?, env.get("SLURM_STEP_ID")?)),
        // srun --mpi=pmix and --mpi=pmi2.
        mpi: &["PMIX_RANK", "PMI_RANK"],
    },
    HYDRA,
    DMLC,
];

/// The lowest number of a step that srun has not started: the batch script's, or that of the shell that salloc opens.
const SCRIPT_OR_SHELL: u32 = 0xffff_fffa;

/// Whether this process is in the shell of an interactive step of Slurm. It is in the situation of a batch script: the
/// step has one task, and the allocation may have more nodes.
pub(super) fn is_interactive(env: &Variables<'_>) -> bool {
    let step = env.get("SLURM_STEP_ID").and_then(|step| step.trim().parse::<u32>().ok());
    step.is_some_and(|step| step >= SCRIPT_OR_SHELL)
}

const HYDRA: LauncherVariables = LauncherVariables {
    launcher: Launcher::Hydra,
    proof: &["PMI_RANK"],
    rank: "PMI_RANK",
    world_size: WorldSize::Is(&["PMI_SIZE"]),
    several: &["PMI_SIZE", "MPI_LOCALNRANKS"],
    on_host: HostRank::Is { rank: "MPI_LOCALRANKID", size: "MPI_LOCALNRANKS" },
    job: |env| env.started_by("PMI_RANK"),
    mpi: &["PMI_RANK"],
};

const DMLC: LauncherVariables = LauncherVariables {
    launcher: Launcher::Dmlc,
    proof: &[dmlc::ROLE, dmlc::WORKERS, dmlc::SERVERS],
    rank: dmlc::TASK,
    world_size: WorldSize::From(dmlc::ranks),
    several: &[dmlc::WORKERS],
    on_host: HostRank::AllIf(dmlc::is_on_one_host),
    job: dmlc::job,
    mpi: &[],
};

/// The number of tasks on this node of a step of Slurm. SLURM_GTIDS lists them (`4,5`). SLURM_STEP_TASKS_PER_NODE counts
/// those of each node, in the order of the nodes' numbers (`2(x3),1`).
fn tasks_of_node(env: &Variables<'_>) -> Option<usize> {
    if let Some(tasks) = env.get("SLURM_GTIDS") {
        return Some(tasks.split(',').count());
    }
    let mut node = env.get("SLURM_NODEID")?.trim().parse::<usize>().ok()?;
    for nodes in env.get("SLURM_STEP_TASKS_PER_NODE")?.split(',') {
        let (tasks, equal) = match nodes.split_once("(x") {
            Some((tasks, equal)) => (tasks, equal.trim_end_matches(')').parse().ok()?),
            None => (nodes, 1),
        };
        if node < equal {
            return tasks.trim().parse().ok();
        }
        node -= equal;
    }
    None
}

/// The port, run id and restart count of torchrun, which together identify a job. `None`
/// if neither the port nor the run id is set. If the user has not chosen a run id, torchrun sets
/// `none`, which does not count. The address does not count either, because each rank may write it in its own way: as a
/// number, or as a name.
fn torchrun_job(env: &Variables<'_>) -> Option<String> {
    let run = env.get("TORCHELASTIC_RUN_ID").filter(|id| id != "none");
    let port = env.get("MASTER_PORT");
    run.as_ref().or(port.as_ref())?;
    let restart = env.get("TORCHELASTIC_RESTART_COUNT");
    let parts = [port, run, restart];
    Some(parts.map(Option::unwrap_or_default).join(" "))
}
