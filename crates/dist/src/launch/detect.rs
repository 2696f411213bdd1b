//! The detection of the launcher that started this process, and of the process's rank.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::launchers::{LAUNCHERS, Launcher, LauncherVariables, LocalSize};
use super::variables::Variables;
use super::{ancestors, vars};
use crate::{Error, Result};

/// The deadline if `CANDELABRUM_TIMEOUT` is not set.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// This process's place among the processes that were started together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The program that started it.
    pub launcher: Launcher,
    /// This process's number, counted from 0.
    pub rank: usize,
    /// The number of processes.
    pub world_size: usize,
    /// This process's number on its host, counted from 0.
    pub local_rank: usize,
    /// The number of processes on this host.
    pub local_size: usize,
    job: Option<[u8; 32]>,
    /// Whether the launcher serves MPI libraries.
    mpi: bool,
}

impl Launch {
    /// Reads the environment.
    ///
    /// # Errors
    /// [`Error::Launch`] if variables contradict each other or are not numbers.
    pub fn detect() -> Result<Self> {
        launch(&Variables {
            variable: &|name| std::env::var(name).ok(),
            started_by: &ancestors::nearest_without,
        })
    }

    /// A world of one.
    pub(crate) fn alone() -> Self {
        Self {
            launcher: Launcher::Alone,
            rank: 0,
            world_size: 1,
            local_rank: 0,
            local_size: 1,
            job: None,
            mpi: false,
        }
    }

    /// A number that all ranks of this job have, and no rank of another job, see [`job_id`].
    ///
    /// # Errors
    /// [`Error::Launch`] if the environment does not identify this job.
    pub(crate) fn job_id(&self) -> Result<[u8; 32]> {
        self.job.ok_or_else(|| Error::Launch {
            what: format!(
                "the environment says that this process is one of {} ranks, but nothing in it tells \
                 their job from another one: set MASTER_ADDR and MASTER_PORT, or {} to a word, on \
                 every rank of this job alike, and to other values in every other job",
                self.world_size,
                vars::JOB
            ),
        })
    }

    /// Whether the launcher serves MPI libraries, so that the ranks can use MPI.
    pub(crate) fn speaks_mpi(&self) -> bool {
        self.mpi
    }

    /// Whether a launcher has already made this process one of several ranks.
    pub fn is_launched(&self) -> bool {
        self.launcher != Launcher::Alone
    }
}

/// The SHA-256 of a job's word and its secret, which may be empty. Whoever guesses the word cannot
/// compute the number without the secret.
fn job_id(job: &str, secret: &str) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update((job.len() as u64).to_le_bytes());
    digest.update(job);
    digest.update(secret);
    digest.finalize().into()
}

/// The launcher of this process and the place that the launcher gave to it.
fn launch(env: &Variables<'_>) -> Result<Launch> {
    let is_set = |name: &&str| env.get(name).is_some();
    let proven = |variables: &&LauncherVariables| variables.proof.iter().all(is_set);
    let Some(variables) = LAUNCHERS.iter().find(proven) else {
        return Ok(Launch::alone());
    };
    let (rank, world_size) = (env.need(&[variables.rank])?, env.need(variables.world_size)?);
    if rank >= world_size {
        let what = format!("the environment says rank {rank} of {world_size}");
        return Err(Error::Launch { what });
    }
    let local_rank = env.number(&[variables.local_rank])?;
    let local_size = match variables.local_size {
        LocalSize::Is(variable) => env.number(&[variable])?,
        LocalSize::AllOnOne(hosts) => (env.number(hosts)?.unwrap_or(1) == 1).then_some(world_size),
    };
    // A launcher that does not count per host is taken to have one rank there.
    let (local_rank, local_size) = match (local_rank, local_size) {
        (Some(rank), Some(size)) => (rank, size),
        (Some(rank), None) => (rank, rank + 1),
        (None, _) => (0, 1),
    };
    let job = env.get(vars::JOB).or_else(|| (variables.job)(env));
    Ok(Launch {
        launcher: variables.launcher,
        rank,
        world_size,
        local_rank,
        local_size,
        job: job.map(|job| job_id(&job, &env.get(vars::SECRET).unwrap_or_default())),
        mpi: variables.mpi.iter().any(is_set),
    })
}

/// The longest time that a rank waits for another one.
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
        let variable = |name: &str| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        };
        launch(&Variables { variable: &variable, started_by: &|_| Some("7-99".to_owned()) })
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

    #[test]
    fn what_tells_jobs_apart_is_in_their_numbers() -> Result<()> {
        let id = |variables: &[(&str, &str)]| detect(variables)?.job_id();
        let torchrun = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "29500")];
        let other = |name, value| [&torchrun[..], &[(name, value)]].concat();
        assert_eq!(id(&torchrun)?, id(&[&torchrun[1..], &[("RANK", "1")]].concat())?);
        assert_eq!(id(&torchrun)?, id(&other("TORCHELASTIC_RUN_ID", "none"))?);
        for (name, value) in [
            ("MASTER_ADDR", "node7"),
            ("TORCHELASTIC_RUN_ID", "mine"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
            ("CANDELABRUM_JOB", "mine"),
            ("CANDELABRUM_SECRET", "mine"),
        ] {
            assert_ne!(id(&torchrun)?, id(&other(name, value))?, "{name}");
        }
        let hydra = [("PMI_RANK", "0"), ("PMI_SIZE", "2")];
        assert_eq!(id(&hydra)?, job_id("7-99", ""));
        let step = [("SLURM_STEP_ID", "3"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")];
        assert_eq!(detect(&step)?.job, None);
        assert_eq!(id(&[&step[..], &[("SLURM_JOB_ID", "12")]].concat())?, job_id("12.3", ""));
        Ok(())
    }

    #[test]
    fn a_secret_cannot_be_taken_for_a_part_of_the_word() {
        assert_ne!(job_id("ab", "c"), job_id("a", "bc"));
    }

    #[test]
    fn ranks_without_a_word_for_their_job_are_refused() -> Result<()> {
        let place = [("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")];
        for more in
            [("LOCAL_WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "none"), ("MASTER_PORT", "")]
        {
            let launch = detect(&[&place[..], &[more]].concat())?;
            let message = launch.job_id().unwrap_err().to_string();
            for part in ["one of 2 ranks", "MASTER_ADDR and MASTER_PORT", "CANDELABRUM_JOB"] {
                assert!(message.contains(part), "{more:?}: {message}");
            }
        }
        let ours = detect(&[("CANDELABRUM_RANK", "0"), ("CANDELABRUM_WORLD_SIZE", "2")])?;
        assert!(ours.job_id().is_err());
        Ok(())
    }

    #[test]
    fn a_slurm_step_on_one_node_of_a_larger_allocation_is_on_one_host() -> Result<()> {
        let step = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "1"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_NNODES", "2"),
        ];
        let local_size = |nodes: &[(&str, &str)]| -> Result<usize> {
            Ok(detect(&[&step[..], nodes].concat())?.local_size)
        };
        assert_eq!(local_size(&[("SLURM_STEP_NUM_NODES", "1")])?, 4);
        assert_eq!(local_size(&[("SLURM_STEP_NUM_NODES", "2")])?, 2);
        assert_eq!(local_size(&[])?, 2);
        Ok(())
    }
}
