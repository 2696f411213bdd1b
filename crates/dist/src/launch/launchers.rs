//! The launchers that this project knows, and the environment variables of each, in one table:
//! [`LAUNCHERS`].

use super::detect::Environment;
use super::vars;

/// Who started the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// Nobody: a world of one.
    Alone,
    /// [`super::spawn()`].
    Candelabrum,
    /// Open MPI's mpiexec.
    OpenMpi,
    /// MPICH's, Intel MPI's or another Hydra mpiexec.
    Hydra,
    /// Slurm's srun.
    Slurm,
    /// torchrun, or anything else that sets RANK and WORLD_SIZE.
    Torchrun,
}

/// The environment variables of one launcher.
pub(super) struct Variables {
    pub(super) launcher: Launcher,
    /// The launcher started this process if all of these are set.
    pub(super) proof: &'static [&'static str],
    pub(super) rank: &'static str,
    /// The first of these variables that is set counts.
    pub(super) world_size: &'static [&'static str],
    pub(super) local_rank: &'static str,
    pub(super) local_size: LocalSize,
    /// A word that all ranks of a job have, and no other job.
    pub(super) job: fn(&Environment<'_>) -> Option<String>,
    /// The launcher serves MPI libraries if one of these is set.
    pub(super) mpi: &'static [&'static str],
}

/// The source of the number of ranks on this host.
pub(super) enum LocalSize {
    /// This variable.
    Is(&'static str),
    /// The first of these variables that is set is the number of hosts. If it is 1, or none is set, all
    /// ranks are on this host.
    AllOnOne(&'static [&'static str]),
}

/// The first launcher whose proof is there has started this process, so the order matters:
/// `srun --mpi=pmi2` sets `PMI_RANK` as Hydra does, but not Hydra's `MPI_LOCALRANKID`. In a batch
/// script Slurm sets `SLURM_PROCID` although there is one process: only `SLURM_STEP_ID` proves that
/// srun has started it.
pub(super) const LAUNCHERS: [Variables; 6] = [
    Variables {
        launcher: Launcher::Candelabrum,
        proof: &[vars::RANK],
        rank: vars::RANK,
        world_size: &[vars::WORLD_SIZE],
        local_rank: vars::RANK,
        local_size: LocalSize::Is(vars::WORLD_SIZE),
        job: |_| None,
        mpi: &[],
    },
    Variables {
        launcher: Launcher::Torchrun,
        proof: &["RANK", "WORLD_SIZE"],
        rank: "RANK",
        world_size: &["WORLD_SIZE"],
        local_rank: "LOCAL_RANK",
        local_size: LocalSize::Is("LOCAL_WORLD_SIZE"),
        job: torchrun_job,
        mpi: &[],
    },
    Variables {
        launcher: Launcher::OpenMpi,
        proof: &["OMPI_COMM_WORLD_RANK"],
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: LocalSize::Is("OMPI_COMM_WORLD_LOCAL_SIZE"),
        job: |env| env.get("PMIX_NAMESPACE").or_else(|| env.started_by("OMPI_COMM_WORLD_RANK")),
        mpi: &["OMPI_COMM_WORLD_RANK"],
    },
    Variables { proof: &["PMI_RANK", "MPI_LOCALRANKID"], ..HYDRA },
    Variables {
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

const HYDRA: Variables = Variables {
    launcher: Launcher::Hydra,
    proof: &["PMI_RANK"],
    rank: "PMI_RANK",
    world_size: &["PMI_SIZE"],
    local_rank: "MPI_LOCALRANKID",
    local_size: LocalSize::Is("MPI_LOCALNRANKS"),
    job: |env| env.started_by("PMI_RANK"),
    mpi: &["PMI_RANK"],
};

/// Address, port, run id and count of restarts together tell the jobs of torchrun apart. The port or
/// the run id must be there; torchrun sets the run id `none` where the user has not chosen one.
fn torchrun_job(env: &Environment<'_>) -> Option<String> {
    let run = env.get("TORCHELASTIC_RUN_ID").filter(|id| id != "none");
    let port = env.get("MASTER_PORT");
    run.as_ref().or(port.as_ref())?;
    let restart = env.get("TORCHELASTIC_RESTART_COUNT");
    let parts = [env.get("MASTER_ADDR"), port, run, restart];
    Some(parts.map(Option::unwrap_or_default).join(" "))
}
