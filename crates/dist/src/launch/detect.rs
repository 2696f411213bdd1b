//! Reading a launcher's environment variables.
//!
//! The order matters: `srun --mpi=pmi2` also sets `PMI_RANK`, but not Hydra's `MPI_LOCALRANKID`; and
//! inside an sbatch script Slurm sets `SLURM_PROCID` for a single process, so only `SLURM_STEP_ID`
//! proves a task.

use std::time::Duration;

use super::vars;
use crate::{Error, Result};

/// Without `CANDELABRUM_TIMEOUT`.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

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

/// This process's place among those that were started together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Who started it.
    pub launcher: Launcher,
    /// This process's number, from 0.
    pub rank: usize,
    /// How many there are.
    pub world_size: usize,
    /// This process's number on its host.
    pub local_rank: usize,
    /// How many there are on this host.
    pub local_size: usize,
    /// A word that the ranks of this job share and no other job has.
    job: String,
    /// Whether the launcher serves MPI libraries.
    mpi: bool,
}

impl Launch {
    /// Reads the environment.
    ///
    /// # Errors
    /// [`Error::Launch`] where variables contradict each other or are no numbers.
    pub fn detect() -> Result<Self> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// A world of one.
    pub(crate) fn alone() -> Self {
        Self {
            launcher: Launcher::Alone,
            rank: 0,
            world_size: 1,
            local_rank: 0,
            local_size: 1,
            job: String::new(),
            mpi: false,
        }
    }

    /// The word by which the local backend's ranks find each other.
    pub(crate) fn job(&self) -> &str {
        &self.job
    }

    /// Whether the ranks can talk MPI.
    pub(crate) fn speaks_mpi(&self) -> bool {
        self.mpi
    }

    /// Whether a launcher has already made this process one of several ranks.
    pub fn is_launched(&self) -> bool {
        self.launcher != Launcher::Alone
    }

    fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let has = |name: &str| get(name).is_some();
        let number = |name: &str| -> Result<Option<usize>> {
            let Some(text) = get(name) else { return Ok(None) };
            let parsed = text.trim().parse().map_err(|_| Error::Launch {
                what: format!("{name} is `{text}` in the environment, not a number"),
            })?;
            Ok(Some(parsed))
        };
        let need = |name: &str| -> Result<usize> {
            number(name)?.ok_or_else(|| Error::Launch {
                what: format!("{name} is not set in the environment, although its partners are"),
            })
        };
        let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());

        let (launcher, rank, world_size, local, job) = if has(vars::RANK) {
            let (rank, size) = (need(vars::RANK)?, need(vars::WORLD_SIZE)?);
            let job = get(vars::JOB).unwrap_or_default();
            (Launcher::Candelabrum, rank, size, (Some(rank), Some(size)), job)
        } else if has("RANK") && has("WORLD_SIZE") {
            let local = (number("LOCAL_RANK")?, number("LOCAL_WORLD_SIZE")?);
            let part = |name: &str| get(name).unwrap_or_default();
            let job = format!(
                "{}-{}-{}-{}",
                part("MASTER_ADDR"),
                part("MASTER_PORT"),
                part("TORCHELASTIC_RUN_ID"),
                part("TORCHELASTIC_RESTART_COUNT")
            );
            (Launcher::Torchrun, need("RANK")?, need("WORLD_SIZE")?, local, job)
        } else if has("OMPI_COMM_WORLD_RANK") {
            let local =
                (number("OMPI_COMM_WORLD_LOCAL_RANK")?, number("OMPI_COMM_WORLD_LOCAL_SIZE")?);
            let job = get("PMIX_NAMESPACE").unwrap_or_else(|| format!("ompi-{parent}"));
            let size = need("OMPI_COMM_WORLD_SIZE")?;
            (Launcher::OpenMpi, need("OMPI_COMM_WORLD_RANK")?, size, local, job)
        } else if has("PMI_RANK") && (has("MPI_LOCALRANKID") || !has("SLURM_STEP_ID")) {
            let local = (number("MPI_LOCALRANKID")?, number("MPI_LOCALNRANKS")?);
            let job = format!("hydra-{parent}");
            (Launcher::Hydra, need("PMI_RANK")?, need("PMI_SIZE")?, local, job)
        } else if has("SLURM_STEP_ID") && has("SLURM_PROCID") {
            let size = match number("SLURM_STEP_NUM_TASKS")? {
                Some(size) => size,
                None => need("SLURM_NTASKS")?,
            };
            let one_node = number("SLURM_NNODES")?.unwrap_or(1) == 1;
            let local = (number("SLURM_LOCALID")?, one_node.then_some(size));
            let part = |name: &str| get(name).unwrap_or_default();
            let job = format!("slurm-{}-{}", part("SLURM_JOB_ID"), part("SLURM_STEP_ID"));
            (Launcher::Slurm, need("SLURM_PROCID")?, size, local, job)
        } else {
            return Ok(Self::alone());
        };
        if rank >= world_size {
            let what = format!("the environment says rank {rank} of {world_size}");
            return Err(Error::Launch { what });
        }
        // A launcher that does not count per host is taken to have one rank there.
        let (local_rank, local_size) = match local {
            (Some(rank), Some(size)) => (rank, size),
            (Some(rank), None) => (rank, rank + 1),
            (None, _) => (0, 1),
        };
        let mpi = match launcher {
            Launcher::OpenMpi | Launcher::Hydra => true,
            // srun --mpi=pmix and --mpi=pmi2.
            Launcher::Slurm => has("PMIX_RANK") || has("PMI_RANK"),
            Launcher::Alone | Launcher::Candelabrum | Launcher::Torchrun => false,
        };
        Ok(Self { launcher, rank, world_size, local_rank, local_size, job, mpi })
    }
}

/// How long anybody waits for anybody.
pub(crate) fn timeout() -> Result<Duration> {
    let Ok(text) = std::env::var(vars::TIMEOUT) else { return Ok(DEFAULT_TIMEOUT) };
    let seconds = text.trim().parse::<f64>().ok();
    seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()).filter(|d| !d.is_zero()).ok_or_else(
        || Error::Setting {
            setting: vars::TIMEOUT,
            value: text.clone(),
            range: "a number of seconds above 0",
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(variables: &[(&str, &str)]) -> Result<Launch> {
        Launch::from_variables(|name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_launcher_is_recognised() -> Result<()> {
        let alone = detect(&[])?;
        assert_eq!((alone.launcher, alone.rank, alone.world_size), (Launcher::Alone, 0, 1));
        let cases: [(&[(&str, &str)], Launcher); 5] = [
            (
                &[
                    ("CANDELABRUM_RANK", "1"),
                    ("CANDELABRUM_WORLD_SIZE", "4"),
                    ("OMPI_COMM_WORLD_RANK", "0"),
                ],
                Launcher::Candelabrum,
            ),
            (
                &[
                    ("OMPI_COMM_WORLD_RANK", "1"),
                    ("OMPI_COMM_WORLD_SIZE", "4"),
                    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
                    ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
                    ("PMIX_RANK", "1"),
                ],
                Launcher::OpenMpi,
            ),
            (
                &[
                    ("PMI_RANK", "1"),
                    ("PMI_SIZE", "4"),
                    ("MPI_LOCALRANKID", "1"),
                    ("MPI_LOCALNRANKS", "4"),
                ],
                Launcher::Hydra,
            ),
            (
                &[
                    ("RANK", "1"),
                    ("WORLD_SIZE", "4"),
                    ("LOCAL_RANK", "1"),
                    ("LOCAL_WORLD_SIZE", "4"),
                    ("MASTER_ADDR", "localhost"),
                    ("MASTER_PORT", "29500"),
                ],
                Launcher::Torchrun,
            ),
            (
                &[
                    ("SLURM_STEP_ID", "0"),
                    ("SLURM_PROCID", "1"),
                    ("SLURM_STEP_NUM_TASKS", "4"),
                    ("SLURM_LOCALID", "1"),
                    ("SLURM_NNODES", "1"),
                ],
                Launcher::Slurm,
            ),
        ];
        for (variables, launcher) in cases {
            let launch = detect(variables)?;
            assert_eq!(launch.launcher, launcher);
            let place = (launch.rank, launch.world_size, launch.local_rank, launch.local_size);
            assert_eq!(place, (1, 4, 1, 4), "{launcher:?}");
        }
        Ok(())
    }

    #[test]
    fn srun_speaks_mpi_where_it_serves_pmi() -> Result<()> {
        let step = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "3"), ("SLURM_STEP_NUM_TASKS", "4")];
        assert!(!detect(&step)?.speaks_mpi());
        for pmi in [("PMIX_RANK", "3"), ("PMI_RANK", "3")] {
            let launch = detect(&[&step[..], &[pmi]].concat())?;
            assert_eq!((launch.launcher, launch.rank), (Launcher::Slurm, 3));
            assert!(launch.speaks_mpi(), "{pmi:?}");
        }
        Ok(())
    }

    #[test]
    fn an_sbatch_script_without_srun_is_one_process() -> Result<()> {
        let launch = detect(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")])?;
        assert_eq!(launch.launcher, Launcher::Alone);
        Ok(())
    }

    #[test]
    fn nonsense_is_named() {
        let error = detect(&[("RANK", "one"), ("WORLD_SIZE", "2")]).unwrap_err();
        assert!(error.to_string().contains("RANK is `one`"), "{error}");
        let error = detect(&[("RANK", "2"), ("WORLD_SIZE", "2")]).unwrap_err();
        assert!(error.to_string().contains("rank 2 of 2"), "{error}");
        let error = detect(&[("CANDELABRUM_RANK", "0")]).unwrap_err();
        assert!(error.to_string().contains("CANDELABRUM_WORLD_SIZE"), "{error}");
    }
}
