//! The detection of the launcher that started this process, and of the process's rank.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::config::WorldConfig;
use super::engines::{ALONE, refuse_one_of_several};
use super::launchers::{
    HostRank, LAUNCHERS, Launcher, LauncherVariables, WorldSize, is_interactive,
};
use super::meeting::MeetingPoint;
use super::variables::{Variables, seconds};
use super::{cores, dmlc, vars};
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
    /// The number of processes that are servers of the key-value store: those with the highest
    /// ranks. It is in `CANDELABRUM_SERVERS`, and for a job of MXNet's tracker also in
    /// DMLC_NUM_SERVER. A process that no launcher started is no server and has none.
    pub servers: usize,
    job: Option<[u8; 32]>,
    /// Whether the launcher serves MPI libraries.
    mpi: bool,
    /// The variables that would say how many processes are on this host, if they are not set.
    uncounted: Option<String>,
    /// The place as the program itself gave it.
    config: Option<WorldConfig>,
}

impl Launch {
    /// Reads the environment.
    ///
    /// # Errors
    /// [`Error::Launch`] if variables contradict each other or are not numbers, if this process
    /// is the scheduler of MXNet's tracker, or if an engine has started it as one of several and no launcher has given
    /// it a place among them.
    pub fn detect() -> Result<Self> {
        Self::detect_for(None)
    }

    /// As [`Self::detect`], where the user has asked for `workers` ranks on this host (`--workers`).
    ///
    /// With `Some(1)` a process without a place trains alone, whatever an engine says. With more than that, an engine may have
    /// given this node more than one process, or a run of an array of jobs, but only this node.
    ///
    /// # Errors
    /// Those of [`Self::detect`].
    pub fn detect_for(workers: Option<usize>) -> Result<Self> {
        launch(&Variables::of_process(), workers)
    }

    /// Whether this process is in an allocation of Slurm and no task of srun: in a batch script, or in a shell of salloc.
    pub fn is_in_slurm_allocation() -> bool {
        let env = Variables::of_process();
        env.get("SLURM_JOB_ID").is_some()
            && (env.get("SLURM_STEP_ID").is_none() || is_interactive(&env))
    }

    /// A world of one.
    pub(crate) fn alone() -> Self {
        Self {
            launcher: Launcher::Alone,
            rank: 0,
            world_size: 1,
            local_rank: 0,
            local_size: 1,
            servers: 0,
            job: None,
            mpi: false,
            uncounted: None,
            config: None,
        }
    }

    /// The place that the program itself gives to this process. Nothing in the environment counts beside it,
    /// except the job's secret.
    ///
    /// # Errors
    /// [`Error::Setting`] if the place is one that no world has.
    pub(crate) fn of_program(config: WorldConfig) -> Result<Self> {
        config.check()?;
        let &WorldConfig { rank, world_size, local_rank, local_size, .. } = &config;
        let secret = Variables::of_process().get(vars::SECRET).unwrap_or_default();
        let job = Some(job_id(&config.job_id, &secret));
        let (launcher, config) = (Launcher::Program, Some(config));
        Ok(Self {
            launcher,
            rank,
            world_size,
            local_rank,
            local_size,
            job,
            config,
            ..Self::alone()
        })
    }

    /// Where rank 0 listens for the ranks of other hosts.
    ///
    /// # Errors
    /// [`Error::Launch`] or [`Error::Setting`] if the environment, or the program, does not say it.
    pub(crate) fn meeting_point(&self) -> Result<MeetingPoint> {
        let Some(config) = &self.config else { return MeetingPoint::from_env() };
        config.check_master()?;
        MeetingPoint::at(config.master_addr.clone(), config.master_port)
    }

    /// A rank of a world of threads of one process, whose job has this name.
    pub(crate) fn of_thread(rank: usize, ranks: usize, job: &str) -> Self {
        let job = Some(job_id(job, ""));
        Self { rank, world_size: ranks, local_rank: rank, local_size: ranks, job, ..Self::alone() }
    }

    /// The same place in a world whose last `servers` ranks are servers of the key-value store.
    ///
    /// # Errors
    /// [`Error::Launch`] if the environment has said another number of servers, or if no rank
    /// remains as a worker.
    pub fn with_servers(self, servers: usize) -> Result<Self> {
        let Self { servers: said, world_size, .. } = self;
        if said != 0 && said != servers {
            let what = format!(
                "the environment says that {said} of {world_size} ranks are servers of the key-value \
                 store, but this program asks for {servers}: its options for them are --kvstore \
                 and --servers"
            );
            return Err(Error::Launch { what });
        }
        check_servers(servers, world_size)?;
        Ok(Self { servers, ..self })
    }

    /// A number that all ranks of this job have, and no rank of another job, see [`job_id`].
    ///
    /// # Errors
    /// [`Error::Launch`] if the environment does not identify this job.
    pub(crate) fn job_id(&self) -> Result<[u8; 32]> {
        self.job.ok_or_else(|| Error::Launch {
            what: format!(
                "the environment says that this process is one of {} ranks, but nothing in it tells \
                 their job from another one: set MASTER_PORT, or {} to a word, on every rank of this job \
                 alike, and to another value in every other job",
                self.world_size,
                vars::JOB
            ),
        })
    }

    /// Whether the environment says that all processes are on this host.
    pub(crate) fn is_on_one_host(&self) -> bool {
        self.uncounted.is_none() && self.local_size == self.world_size
    }

    /// The reason why ranks that have neither MPI nor GPUs cannot be connected, and the ways out. `has_mpi`: this
    /// build has the MPI backend.
    pub(crate) fn why_mpi(&self, has_mpi: bool) -> String {
        let &Self { world_size, local_size, .. } = self;
        let why = match &self.uncounted {
            None => {
                format!("{world_size} ranks, {local_size} of them on this host, need MPI or TCP")
            }
            Some(missing) => format!(
                "the environment says that this process is one of {world_size} ranks, but not how \
                 many of them are on this host: if all are, set {missing} on every rank; ranks on \
                 several hosts need MPI or TCP"
            ),
        };
        let start = match self.launcher {
            Launcher::Slurm => "start them by `srun --mpi=pmix`",
            _ => "start them by mpiexec",
        };
        let mpi = match (has_mpi, self.mpi) {
            (true, _) => start.to_owned(),
            (false, true) => "build with `--features mpi`".to_owned(),
            (false, false) => format!("build with `--features mpi` and {start}"),
        };
        format!(
            "{why}: {mpi}; or set {}=tcp, and MASTER_ADDR and {} to the address of rank 0's host and a free port \
             there, on every rank",
            vars::BACKEND,
            vars::PORT
        )
    }

    /// Whether the launcher serves MPI libraries, so that the ranks can use MPI.
    pub(crate) fn speaks_mpi(&self) -> bool {
        self.mpi
    }

    /// The compute threads of this rank, if the user does not say otherwise: its share of the cores that the launcher
    /// has for the ranks of this host, at least one.
    pub fn default_threads(&self) -> usize {
        cores::threads(self.launcher, self.local_size)
    }

    /// Whether a launcher has already made this process one of several ranks.
    pub fn is_launched(&self) -> bool {
        self.launcher != Launcher::Alone
    }
}

/// The SHA-256 of a job's id and its secret, which may be empty. Whoever guesses the id cannot
/// compute the number without the secret.
fn job_id(job: &str, secret: &str) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update((job.len() as u64).to_le_bytes());
    digest.update(job);
    digest.update(secret);
    digest.finalize().into()
}

/// The launcher of this process and the place that the launcher gave to it.
fn launch(env: &Variables<'_>, workers: Option<usize>) -> Result<Launch> {
    if dmlc::is_scheduler(env) {
        let what = "this process is the scheduler of MXNet's tracker (DMLC_ROLE), not a rank: the \
                    program must run `launch::Scheduler` in it instead of joining a world";
        return Err(Error::Launch { what: what.to_owned() });
    }
    let is_set = |name: &&str| env.get(name).is_some();
    let proven = |variables: &&LauncherVariables| {
        variables.proof.iter().all(is_set)
            && !(variables.launcher == Launcher::Slurm && is_interactive(env))
    };
    let Some(variables) = LAUNCHERS.iter().find(proven) else {
        if workers != Some(1) {
            LAUNCHERS.iter().try_for_each(|variables| refuse_a_part(env, variables))?;
        }
        refuse_one_of_several(env, workers)?;
        return Ok(Launch::alone());
    };
    if variables.launcher == Launcher::Dmlc {
        dmlc::check_place(env)?;
    }
    let rank = env.need(&[variables.rank])?;
    let world_size = match variables.world_size {
        WorldSize::Is(names) => env.need(names)?,
        WorldSize::From(count) => count(env)?,
    };
    if rank >= world_size {
        let (name, last) = (variables.rank, world_size.saturating_sub(1));
        let size = variables.several[0];
        let what = format!(
            "the environment says rank {rank} of {world_size} ({name}, {size}): the ranks are \
             numbered from 0 to {last}"
        );
        return Err(Error::Launch { what });
    }
    let on_host = match variables.on_host {
        HostRank::Is { rank, size } => (env.number(&[rank])?, env.number(&[size])?),
        HostRank::AllOfOne { rank: local, hosts, count } => {
            let is_one = env.number(hosts)?.unwrap_or(1) == 1;
            let local = env.number(&[local])?;
            let several = || count(env).filter(|&n| n <= world_size && local < Some(n));
            (local, if is_one { Some(world_size) } else { several() })
        }
        HostRank::AllIf(is_one) if is_one(env) => (Some(rank), Some(world_size)),
        HostRank::AllIf(_) => (None, None),
    };
    // A launcher that does not count per host is taken to have one rank there.
    let (local_rank, local_size) = match on_host {
        (Some(rank), Some(size)) => (rank, size),
        (Some(rank), None) => (rank, rank + 1),
        (None, _) => (0, 1),
    };
    if let (Some(rank), Some(size)) = on_host
        && (rank >= size || size > world_size)
    {
        let what = format!(
            "the environment says that this process is number {rank} of {size} on this host{}, and \
             that there are {world_size} in all: on each host they are numbered from 0, and no host \
             has more than all",
            variables
                .on_host
                .names()
                .map(|names| format!(" ({})", names.join(", ")))
                .unwrap_or_default()
        );
        return Err(Error::Launch { what });
    }
    let job = env.get(vars::JOB).or_else(|| (variables.job)(env));
    Ok(Launch {
        launcher: variables.launcher,
        rank,
        world_size,
        local_rank,
        local_size,
        servers: servers(env, world_size)?,
        job: job.map(|job| job_id(&job, &env.get(vars::SECRET).unwrap_or_default())),
        mpi: variables.mpi.iter().any(is_set),
        uncounted: variables.on_host.names().and_then(|names| missing(env, names)),
        config: None,
    })
}

/// The names of the variables that are not set, joined by `and`.
fn missing<'a>(env: &Variables<'_>, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let missing: Vec<&str> = names.into_iter().filter(|name| env.get(name).is_none()).collect();
    (!missing.is_empty()).then(|| missing.join(" and "))
}

/// Refuses a process that has only a part of a launcher's variables, if these cannot be those of a single
/// process. It would train alone, and so would each of its partners.
fn refuse_a_part(env: &Variables<'_>, variables: &LauncherVariables) -> Result<()> {
    let ranks = [(variables.rank, 1)].into_iter();
    let ranks = ranks.chain(variables.several.iter().map(|&size| (size, 2)));
    for (name, least) in ranks {
        let Some(value) = env.number(&[name])?.filter(|&value| value >= least) else { continue };
        let mut needed = variables.proof.to_vec();
        let size = variables.several[0];
        needed.extend([variables.rank, size].iter().filter(|name| !variables.proof.contains(name)));
        let missing = missing(env, needed).unwrap_or_default();
        let what = format!(
            "{name} is {value} in the environment, so this process is one of several, but {missing} \
             must be set, too: a launcher sets all of them on every rank; {ALONE}"
        );
        return Err(Error::Launch { what });
    }
    Ok(())
}

/// The number of servers among `world_size` ranks.
fn servers(env: &Variables<'_>, world_size: usize) -> Result<usize> {
    let (ours, mxnets) = (env.number(&[vars::SERVERS])?, dmlc::servers(env, world_size)?);
    if let (Some(ours), Some(mxnets)) = (ours, mxnets)
        && ours != mxnets
    {
        let (own, other) = (vars::SERVERS, dmlc::SERVERS);
        let what = format!("{own} is {ours} in the environment, but {other} is {mxnets}");
        return Err(Error::Launch { what });
    }
    let servers = ours.or(mxnets).unwrap_or(0);
    check_servers(servers, world_size)?;
    Ok(servers)
}

fn check_servers(servers: usize, world_size: usize) -> Result<()> {
    if servers < world_size {
        return Ok(());
    }
    let what = format!("{servers} servers among {world_size} ranks leave no rank as a worker");
    Err(Error::Launch { what })
}

/// The longest time that a rank waits for another one: CANDELABRUM_TIMEOUT, or 300 s.
///
/// # Errors
/// A value of the variable that is not a number of seconds.
pub fn timeout() -> Result<Duration> {
    Ok(seconds(vars::TIMEOUT)?.unwrap_or(DEFAULT_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(variables: &[(&str, &str)]) -> Result<Launch> {
        detect_for(variables, None)
    }

    fn detect_for(variables: &[(&str, &str)], workers: Option<usize>) -> Result<Launch> {
        let variable = |name: &str| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        };
        let names = || variables.iter().map(|(name, _)| (*name).to_owned()).collect();
        let started_by = |_: &str| Some("7-99".to_owned());
        let env = Variables { variable: &variable, names: &names, started_by: &started_by };
        launch(&env, workers)
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
    fn an_sbatch_script_and_a_shell_of_salloc_are_no_ranks() -> Result<()> {
        let script = [
            ("SLURM_JOB_ID", "77"),
            ("SLURM_PROCID", "0"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_NNODES", "1"),
        ];
        let shell = [("SLURM_STEP_ID", "4294967290"), ("SLURM_STEP_NUM_TASKS", "1")];
        for variables in [script.to_vec(), [&script[..], &shell].concat()] {
            refuse(&variables, &[], &["SLURM_NTASKS=8", "`--workers 8`"]);
            for workers in [1, 8] {
                let launch = detect_for(&variables, Some(workers))?;
                assert_eq!(launch.launcher, Launcher::Alone);
            }
            let two = [&[("SLURM_NNODES", "2")], &variables[..]].concat();
            assert!(detect_for(&two, Some(8)).is_err());
            assert_eq!(detect_for(&two, Some(1))?.launcher, Launcher::Alone);
        }
        // A task of srun has a place, also where it is the only one.
        let task = [&[("SLURM_STEP_ID", "3"), ("SLURM_STEP_NUM_TASKS", "1")], &script[..]].concat();
        let launch = detect(&task)?;
        assert_eq!((launch.launcher, launch.world_size), (Launcher::Slurm, 1));
        Ok(())
    }

    #[test]
    fn a_process_that_trains_alone_on_purpose_does_so_beside_any_variable_without_a_place()
    -> Result<()> {
        for variables in [
            &[("PET_NNODES", "2"), ("PET_NODE_RANK", "1")][..],
            &[("RANK", "1")],
            &[("WORLD_SIZE", "2")],
            &[("DMLC_NUM_WORKER", "2"), ("DMLC_TASK_ID", "1")],
            &[("PMIX_RANK", "3")],
            &[("SLURM_ARRAY_TASK_ID", "3")],
        ] {
            let message = detect(variables).expect_err("it is one of several").to_string();
            assert!(
                message.contains("`--workers 1`") && message.contains("World::single"),
                "{message}"
            );
            assert_eq!(detect_for(variables, Some(1))?.world_size, 1, "{variables:?}");
            // A launcher of one process is a word, too.
            let place = [&[("RANK", "0"), ("WORLD_SIZE", "1")], variables].concat();
            for workers in [None, Some(1), Some(4)] {
                assert_eq!(detect_for(&place, workers)?.world_size, 1, "{variables:?}");
            }
        }
        let place = [("RANK", "1"), ("WORLD_SIZE", "2"), ("PET_NNODES", "2")];
        assert_eq!(detect_for(&place, Some(1))?.world_size, 2, "a place counts");
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
    fn a_part_of_a_launchers_variables_is_refused_unless_it_may_mean_one_process() -> Result<()> {
        // What is set, and what the message must say is missing.
        let refused: [(&[(&str, &str)], &str); 16] = [
            (&[("RANK", "1")], "RANK is 1 in the environment|WORLD_SIZE must"),
            (&[("WORLD_SIZE", "2")], "WORLD_SIZE is 2|but RANK must"),
            (&[("WORLD_SIZE", "2"), ("MASTER_PORT", "29500")], "WORLD_SIZE is 2|but RANK must"),
            (&[("LOCAL_WORLD_SIZE", "2")], "LOCAL_WORLD_SIZE is 2|but RANK and WORLD_SIZE must"),
            (&[("CANDELABRUM_WORLD_SIZE", "2")], "but CANDELABRUM_RANK must"),
            (&[("OMPI_COMM_WORLD_SIZE", "2")], "but OMPI_COMM_WORLD_RANK must"),
            (&[("PMI_SIZE", "2")], "but PMI_RANK"),
            (&[("MPI_LOCALNRANKS", "2")], "but PMI_RANK"),
            (&[("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2")], "but SLURM_STEP_ID must"),
            (&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")], "but SLURM_PROCID must"),
            (
                &[("DMLC_NUM_WORKER", "2")],
                "but DMLC_ROLE and DMLC_NUM_SERVER and DMLC_TASK_ID must",
            ),
            (&[("DMLC_TASK_ID", "1"), ("DMLC_ROLE", "worker")], "DMLC_NUM_WORKER and DMLC_NUM"),
            (&[("RANK", "one")], "RANK is `one` in the environment, not a number"),
            (&[("WORLD_SIZE", "-2")], "WORLD_SIZE is `-2` in the environment, not a number"),
            (
                &[
                    ("RANK", "1"),
                    ("WORLD_SIZE", "4"),
                    ("LOCAL_RANK", "2"),
                    ("LOCAL_WORLD_SIZE", "2"),
                ],
                "number 2 of 2 on this host (LOCAL_RANK, LOCAL_WORLD_SIZE)",
            ),
            (
                &[
                    ("RANK", "1"),
                    ("WORLD_SIZE", "2"),
                    ("LOCAL_RANK", "1"),
                    ("LOCAL_WORLD_SIZE", "4"),
                ],
                "there are 2 in all",
            ),
        ];
        for (variables, parts) in refused {
            parts.split('|').for_each(|part| refuse(variables, &[], &[part]));
        }
        let alone: [&[(&str, &str)]; 8] = [
            &[("RANK", "0")],
            &[("WORLD_SIZE", "1")],
            &[("WORLD_SIZE", "")],
            &[("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")],
            &[("OMPI_COMM_WORLD_SIZE", "1")],
            &[("PMI_SIZE", "1")],
            &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("SLURM_LOCALID", "0")],
            &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")],
        ];
        for variables in alone {
            assert_eq!(detect(variables)?.launcher, Launcher::Alone, "{variables:?}");
        }
        // Another launcher's place counts, whatever is left over from an outer one.
        assert_eq!(detect(&[&OPEN_MPI[..], &[("WORLD_SIZE", "8")]].concat())?.world_size, 3);
        Ok(())
    }

    #[test]
    fn ranks_that_are_not_counted_per_host_are_told_which_variables_count_them() -> Result<()> {
        let place = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "29500")];
        for (more, missing) in [
            (
                [("LOCAL_RANK", ""), ("LOCAL_WORLD_SIZE", "")],
                "set LOCAL_RANK and LOCAL_WORLD_SIZE on",
            ),
            ([("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "")], "set LOCAL_WORLD_SIZE on"),
            ([("LOCAL_RANK", ""), ("LOCAL_WORLD_SIZE", "2")], "set LOCAL_RANK on"),
        ] {
            let launch = detect(&[&place[..], &more].concat())?;
            assert!(!launch.is_on_one_host());
            assert!(launch.why_mpi(true).contains(missing), "{}", launch.why_mpi(true));
        }
        let launch =
            detect(&[&place[..], &[("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")]].concat())?;
        assert!(launch.is_on_one_host());
        Ok(())
    }

    #[test]
    fn ranks_of_several_hosts_are_told_every_way_to_meet() -> Result<()> {
        let torchrun =
            [("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")];
        let srun = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "0"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_NUM_NODES", "2"),
            ("SLURM_GTIDS", "0"),
        ];
        let pmi = [&srun[..], &[("PMI_RANK", "0")]].concat();
        let (mpiexec, pmix) = ("start them by mpiexec", "start them by `srun --mpi=pmix`");
        let build = "build with `--features mpi`";
        for (variables, has_mpi, says, says_not) in [
            (&torchrun[..], true, mpiexec, build),
            (&torchrun, false, "build with `--features mpi` and start them by mpiexec", "srun"),
            (&srun, true, pmix, build),
            (&srun, false, "build with `--features mpi` and start them by `srun", "mpiexec"),
            (&pmi, false, build, "start them"),
        ] {
            let message = detect(variables)?.why_mpi(has_mpi);
            assert!(message.starts_with("2 ranks, 1 of them on this host"), "{message}");
            assert!(message.contains(says) && !message.contains(says_not), "{message}");
            for name in ["CANDELABRUM_BACKEND=tcp", "MASTER_ADDR", "CANDELABRUM_PORT"] {
                assert!(message.contains(name), "{message}");
            }
        }
        Ok(())
    }

    #[test]
    fn what_tells_jobs_apart_is_in_their_numbers() -> Result<()> {
        let id = |variables: &[(&str, &str)]| detect(variables)?.job_id();
        let torchrun = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "29500")];
        let other = |name, value| [&[(name, value)], &torchrun[..]].concat();
        assert_eq!(id(&torchrun)?, id(&[&torchrun[1..], &[("RANK", "1")]].concat())?);
        assert_eq!(id(&torchrun)?, id(&other("TORCHELASTIC_RUN_ID", "none"))?);
        // One rank may have the address of rank 0's host, and another one its name.
        for address in ["node7", "10.77.0.1"] {
            assert_eq!(id(&torchrun)?, id(&other("MASTER_ADDR", address))?);
        }
        for (name, value) in [
            ("MASTER_PORT", "29501"),
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
            for part in ["one of 2 ranks", "MASTER_PORT", "CANDELABRUM_JOB"] {
                assert!(message.contains(part), "{more:?}: {message}");
            }
        }
        let ours = detect(&[("CANDELABRUM_RANK", "0"), ("CANDELABRUM_WORLD_SIZE", "2")])?;
        assert!(ours.job_id().is_err());
        Ok(())
    }

    /// The variables of MXNet's tracker for one host, with 2 workers and 1 server.
    const TRACKER: [(&str, &str); 6] = [
        ("DMLC_ROLE", "worker"),
        ("DMLC_NUM_WORKER", "2"),
        ("DMLC_NUM_SERVER", "1"),
        ("DMLC_PS_ROOT_URI", "10.0.0.7"),
        ("DMLC_PS_ROOT_PORT", "9091"),
        ("DMLC_JOB_CLUSTER", "local"),
    ];

    const OPEN_MPI: [(&str, &str); 4] = [
        ("OMPI_COMM_WORLD_RANK", "2"),
        ("OMPI_COMM_WORLD_SIZE", "3"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "3"),
    ];

    /// [`detect`] with further variables, which replace those of the same name.
    fn detect_with(variables: &[(&str, &str)], more: &[(&str, &str)]) -> Result<Launch> {
        detect(&[more, variables].concat())
    }

    #[track_caller]
    fn refuse(variables: &[(&str, &str)], more: &[(&str, &str)], parts: &[&str]) {
        let message = detect_with(variables, more).unwrap_err().to_string();
        for part in parts {
            assert!(message.contains(part), "`{part}` is missing: {message}");
        }
    }

    #[test]
    fn mxnets_tracker_numbers_the_workers_and_then_the_servers() -> Result<()> {
        for (role, task, rank) in [("worker", "0", 0), ("worker", "1", 1), ("server", "2", 2)] {
            let launch = detect_with(&TRACKER, &[("DMLC_ROLE", role), ("DMLC_TASK_ID", task)])?;
            assert_eq!(launch.launcher, Launcher::Dmlc);
            let place = (launch.rank, launch.world_size, launch.local_rank, launch.local_size);
            assert_eq!(place, (rank, 3, rank, 3), "{role} {task}");
            assert_eq!(launch.servers, 1);
            assert_eq!(launch.job_id()?, job_id("10.0.0.7 9091 ", ""));
        }
        let again = [("DMLC_TASK_ID", "0"), ("DMLC_NUM_ATTEMPT", "1")];
        assert_eq!(detect_with(&TRACKER, &again)?.job_id()?, job_id("10.0.0.7 9091 1", ""));
        Ok(())
    }

    #[test]
    fn mxnets_tracker_says_whether_all_its_processes_are_on_one_host() -> Result<()> {
        for (cluster, host, local_size) in [
            ("local", "10.0.0.7", 3),
            ("yarn", "127.0.0.1", 1),
            ("", "127.0.0.1", 3),
            ("", "::1", 3),
            ("", "localhost", 3),
            ("", "10.0.0.7", 1),
            ("", "", 1),
        ] {
            let more =
                [("DMLC_TASK_ID", "1"), ("DMLC_JOB_CLUSTER", cluster), ("DMLC_PS_ROOT_URI", host)];
            let launch = detect_with(&TRACKER, &more)?;
            assert_eq!(launch.local_size, local_size, "{cluster} {host}");
            assert_eq!(launch.local_rank, if local_size == 1 { 0 } else { 1 });
        }
        Ok(())
    }

    #[test]
    fn a_process_without_a_place_in_mxnets_job_is_refused() {
        refuse(&TRACKER, &[("DMLC_ROLE", "scheduler")], &["scheduler", "DMLC_ROLE", "not a rank"]);
        refuse(&TRACKER, &[], &["DMLC_TASK_ID", "`ssh`", "CANDELABRUM_SERVERS"]);
        let with = |role, task| [("DMLC_ROLE", role), ("DMLC_TASK_ID", task)];
        refuse(&TRACKER, &with("boss", "0"), &["DMLC_ROLE is `boss`", "worker or server"]);
        refuse(&TRACKER, &with("worker", "one"), &["DMLC_TASK_ID is `one`"]);
        refuse(&TRACKER, &with("worker", "3"), &["DMLC_ROLE is `worker`", "DMLC_TASK_ID is 3"]);
        refuse(&TRACKER, &with("server", "0"), &["DMLC_ROLE is `server`", "DMLC_TASK_ID is 0"]);
        refuse(&TRACKER, &with("server", "3"), &["rank 3 of 3"]);
        let nobody = [("DMLC_ROLE", "server"), ("DMLC_TASK_ID", "0"), ("DMLC_NUM_WORKER", "0")];
        refuse(&TRACKER, &nobody, &["1 servers among 1 ranks"]);
    }

    #[test]
    fn mpi_has_the_numbers_where_mxnets_tracker_gives_none() -> Result<()> {
        let launch = detect_with(&TRACKER, &OPEN_MPI)?;
        let place = (launch.launcher, launch.rank, launch.world_size, launch.servers);
        assert_eq!(place, (Launcher::OpenMpi, 2, 3, 1));
        // Its tracker for one host gives numbers, also in a step of srun or mpiexec.
        let inside = [&OPEN_MPI[..], &[("DMLC_TASK_ID", "0")]].concat();
        assert_eq!(detect_with(&TRACKER, &inside)?.launcher, Launcher::Dmlc);
        // Its tracker for MPI starts two jobs.
        let workers = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        let parts = ["2 ranks", "DMLC_NUM_WORKER", "`mpi`", "CANDELABRUM_SERVERS=1"];
        refuse(&TRACKER, &workers, &parts);
        let ours = [("CANDELABRUM_RANK", "0"), ("CANDELABRUM_WORLD_SIZE", "3")];
        let scheduler = [&ours[..], &[("DMLC_ROLE", "scheduler")]].concat();
        assert_eq!(detect_with(&TRACKER, &scheduler)?.launcher, Launcher::Candelabrum);
        Ok(())
    }

    #[test]
    fn every_launcher_takes_the_number_of_servers_from_our_variable() -> Result<()> {
        let torchrun = [("RANK", "0"), ("WORLD_SIZE", "4")];
        assert_eq!(detect(&torchrun)?.servers, 0);
        assert_eq!(detect_with(&torchrun, &[("CANDELABRUM_SERVERS", "3")])?.servers, 3);
        assert_eq!(detect_with(&OPEN_MPI, &[("CANDELABRUM_SERVERS", "1")])?.servers, 1);
        assert_eq!(detect(&[("CANDELABRUM_SERVERS", "1")])?.servers, 0);
        let same = [("DMLC_TASK_ID", "0"), ("CANDELABRUM_SERVERS", "1")];
        assert_eq!(detect_with(&TRACKER, &same)?.servers, 1);
        refuse(&torchrun, &[("CANDELABRUM_SERVERS", "4")], &["4 servers among 4 ranks"]);
        refuse(&torchrun, &[("CANDELABRUM_SERVERS", "-1")], &["CANDELABRUM_SERVERS is `-1`"]);
        let other = [("DMLC_TASK_ID", "0"), ("CANDELABRUM_SERVERS", "2")];
        refuse(&TRACKER, &other, &["CANDELABRUM_SERVERS is 2", "DMLC_NUM_SERVER is 1"]);
        Ok(())
    }

    #[test]
    fn a_program_may_choose_the_servers_where_the_launcher_says_none() -> Result<()> {
        let silent = detect(&OPEN_MPI)?;
        assert_eq!(silent.clone().with_servers(2)?.servers, 2);
        assert!(silent.with_servers(3).is_err());
        let said = detect_with(&OPEN_MPI, &[("CANDELABRUM_SERVERS", "1")])?;
        assert_eq!(said.clone().with_servers(1)?, said);
        for other in [0, 2] {
            let message = said.clone().with_servers(other).unwrap_err().to_string();
            assert!(message.contains("1 of 3 ranks") && message.contains("--kvstore"), "{message}");
        }
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

    #[test]
    fn a_slurm_step_on_several_nodes_counts_the_tasks_of_this_one() -> Result<()> {
        let step = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "4"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_STEP_NUM_TASKS", "7"),
            ("SLURM_STEP_NUM_NODES", "3"),
        ];
        let place = |more: &[(&str, &str)]| -> Result<(usize, usize)> {
            let launch = detect(&[&step[..], more].concat())?;
            Ok((launch.local_rank, launch.local_size))
        };
        assert_eq!(place(&[("SLURM_GTIDS", "4,5")])?, (0, 2));
        for (node, tasks, size) in [
            ("0", "2(x3),1", 2),
            ("2", "2(x3),1", 2),
            ("3", "2(x3),1", 1),
            ("1", "3,4", 4),
            // What does not fit the step is not believed.
            ("4", "2(x3),1", 1),
            ("1", "3,x", 1),
            ("1", "3,40", 1),
        ] {
            let more = [("SLURM_NODEID", node), ("SLURM_STEP_TASKS_PER_NODE", tasks)];
            assert_eq!(place(&more)?, (0, size), "{node} of {tasks}");
        }
        Ok(())
    }
}
