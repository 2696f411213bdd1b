//! The launchers that this project knows, and the environment variables of each, in one table:
//! [`LAUNCHERS`].

use super::variables::Variables;
use super::vars;

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
}

/// The environment variables of one launcher.
pub(super) struct LauncherVariables {
    pub(super) launcher: Launcher,
    /// The launcher started this process if all of these are set.
    pub(super) proof: &'static [&'static str],
    pub(super) rank: &'static str,
    /// The first of these variables that is set is used.
    pub(super) world_size: &'static [&'static str],
    pub(super) local_rank: &'static str,
    pub(super) local_size: LocalSize,
    /// A word that all ranks of a job have, and no rank of another job.
    pub(super) job: fn(&Variables<'_>) -> Option<String>,
    /// The launcher serves MPI libraries if one of these is set.
    pub(super) mpi: &'static [&'static str],
}

/// The source of the number of ranks on this host.
pub(super) enum LocalSize {
    /// This variable.
    Is(&'static str),
    /// The number of hosts is in the first of these variables that is set. If the number is 1, or
    /// none is set, all ranks are on this host.
    AllOnOne(&'static [&'static str]),
}

/// The first launcher of this table whose `proof` is set has started this process. The order
/// matters: `srun --mpi=pmi2` sets `PMI_RANK` as Hydra does, but not Hydra's `MPI_LOCALRANKID`. In
/// a batch script Slurm sets `SLURM_PROCID` although there is one process, so only `SLURM_STEP_ID`
/// proves that srun has started it.
pub(super) const LAUNCHERS: [LauncherVariables; 6] = [
    LauncherVariables {
        launcher: Launcher::Candelabrum,
        proof: &[vars::RANK],
        rank: vars::RANK,
        world_size: &[vars::WORLD_SIZE],
        local_rank: vars::RANK,
        local_size: LocalSize::Is(vars::WORLD_SIZE),
        job: |_| None,
        mpi: &[],
    },
    LauncherVariables {
        launcher: Launcher::Torchrun,
        proof: &["RANK", "WORLD_SIZE"],
        rank: "RANK",
        world_size: &["WORLD_SIZE"],
        local_rank: "LOCAL_RANK",
        local_size: LocalSize::Is("LOCAL_WORLD_SIZE"),
        job: torchrun_job,
        mpi: &[],
    },
    LauncherVariables {
        launcher: Launcher::OpenMpi,
        proof: &["OMPI_COMM_WORLD_RANK"],
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: LocalSize::Is("OMPI_COMM_WORLD_LOCAL_SIZE"),
        job: |env| env.get("PMIX_NAMESPACE").or_else(|| env.started_by("OMPI_COMM_WORLD_RANK")),
        mpi: &["OMPI_COMM_WORLD_RANK"],
    },
    LauncherVariables { proof: &["PMI_RANK", "MPI_LOCALRANKID"], ..HYDRA },
    LauncherVariables {
        launcher: Launcher::Slurm,
        proof: &["SLURM_STEP_ID", "SLURM_PROCID"],
        rank: "SLURM_PROCID",
        world_size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: "SLURM_LOCALID",
        // The allocation may have more nodes than the step.
        local_size: LocalSize::AllOnOne(&["SLURM_STEP_NUM_NODES", "SLURM_NNODES"]),
        job: |env| Some(format!("{}.{}", env.get("SLURM_JOB_ID")?, env.get("SLURM_STEP_ID")?)),
        // srun --mpi=pmix and --mpi=pmi2.
        mpi: &["PMIX_RANK", "PMI_RANK"],
    },
    HYDRA,
];

const HYDRA: LauncherVariables = LauncherVariables {
    launcher: Launcher::Hydra,
    proof: &["PMI_RANK"],
    rank: "PMI_RANK",
    world_size: &["PMI_SIZE"],
    local_rank: "MPI_LOCALRANKID",
    local_size: LocalSize::Is("MPI_LOCALNRANKS"),
    job: |env| env.started_by("PMI_RANK"),
    mpi: &["PMI_RANK"],
};

/// The address, port, run id and restart count of torchrun, which together identify a job. `None`
/// if neither the port nor the run id is set. If the user has not chosen a run id, torchrun sets
/// `none`, which does not count.
fn torchrun_job(env: &Variables<'_>) -> Option<String> {
    let run = env.get("TORCHELASTIC_RUN_ID").filter(|id| id != "none");
    let port = env.get("MASTER_PORT");
    run.as_ref().or(port.as_ref())?;
    let restart = env.get("TORCHELASTIC_RESTART_COUNT");
    let parts = [env.get("MASTER_ADDR"), port, run, restart];
    Some(parts.map(Option::unwrap_or_default).join(" "))
}
