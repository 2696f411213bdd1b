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

    /// What a process of this environment detects, in which `A=1 B=` sets two variables. Of two values of a variable
    /// the first one counts.
    fn detect(environment: &str) -> Result<Launch> {
        detect_for(environment, None)
    }

    fn detect_for(environment: &str, workers: Option<usize>) -> Result<Launch> {
        let variables: Vec<(&str, &str)> =
            environment.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        let variable = |name: &str| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        };
        let names = || variables.iter().map(|(name, _)| (*name).to_owned()).collect();
        let started_by = |_: &str| Some("7-99".to_owned());
        let env = Variables { variable: &variable, names: &names, started_by: &started_by };
        launch(&env, workers)
    }

    /// Rank, number of ranks, and the same two on this host.
    fn place(environment: &str) -> Result<[usize; 4]> {
        let Launch { rank, world_size, local_rank, local_size, .. } = detect(environment)?;
        Ok([rank, world_size, local_rank, local_size])
    }

    fn job(environment: &str) -> Result<[u8; 32]> {
        detect(environment)?.job_id()
    }

    /// The environment is refused by a message with these parts, which `|` divides.
    #[track_caller]
    fn refuse(environment: &str, parts: &str) {
        says(environment, &detect(environment).unwrap_err().to_string(), parts);
    }

    #[track_caller]
    fn says(environment: &str, message: &str, parts: &str) {
        for part in parts.split('|') {
            assert!(message.contains(part), "{environment}: `{part}` is missing: {message}");
        }
    }

    /// The variables of MXNet's tracker for one host, with 2 workers and 1 server.
    const TRACKER: &str = "DMLC_ROLE=worker DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=1 \
        DMLC_PS_ROOT_URI=10.0.0.7 DMLC_PS_ROOT_PORT=9091 DMLC_JOB_CLUSTER=local";
    const OPEN_MPI: &str = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 \
        OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=3";

    #[test]
    fn each_launcher_is_recognised() -> Result<()> {
        let alone = detect("")?;
        assert_eq!((alone.launcher, place("")?), (Launcher::Alone, [0, 1, 0, 1]));
        for (launcher, environment) in [
            (
                Launcher::Candelabrum,
                "CANDELABRUM_RANK=1 CANDELABRUM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0",
            ),
            (
                Launcher::OpenMpi,
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                 OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_RANK=1",
            ),
            (Launcher::Hydra, "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4"),
            (
                Launcher::Torchrun,
                "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=localhost \
                 MASTER_PORT=29500",
            ),
            (
                Launcher::Slurm,
                "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_NNODES=1",
            ),
        ] {
            assert_eq!(detect(environment)?.launcher, launcher);
            assert_eq!(place(environment)?, [1, 4, 1, 4], "{launcher:?}");
        }
        Ok(())
    }

    #[test]
    fn srun_speaks_mpi_where_it_serves_pmi() -> Result<()> {
        let step = "SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4";
        for (pmi, speaks_mpi) in [("", false), ("PMIX_RANK=3", true), ("PMI_RANK=3", true)] {
            let launch = detect(&format!("{step} {pmi}"))?;
            assert_eq!((launch.launcher, launch.rank), (Launcher::Slurm, 3));
            assert_eq!(launch.speaks_mpi(), speaks_mpi, "{pmi}");
        }
        Ok(())
    }

    #[test]
    fn an_sbatch_script_and_a_shell_of_salloc_are_no_ranks() -> Result<()> {
        let script = "SLURM_JOB_ID=77 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=8 SLURM_NNODES=1";
        let shell = format!("{script} SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1");
        for environment in [script, &shell] {
            refuse(environment, "SLURM_NTASKS=8|`--workers 8`");
            for workers in [1, 8] {
                assert_eq!(detect_for(environment, Some(workers))?.launcher, Launcher::Alone);
            }
            let two = format!("SLURM_NNODES=2 {environment}");
            assert!(detect_for(&two, Some(8)).is_err());
            assert_eq!(detect_for(&two, Some(1))?.launcher, Launcher::Alone);
        }
        // A task of srun has a place, also where it is the only one.
        let launch = detect(&format!("SLURM_STEP_ID=3 SLURM_STEP_NUM_TASKS=1 {script}"))?;
        assert_eq!((launch.launcher, launch.world_size), (Launcher::Slurm, 1));
        Ok(())
    }

    #[test]
    fn a_process_that_trains_alone_on_purpose_does_so_beside_any_variable_without_a_place()
    -> Result<()> {
        for environment in [
            "PET_NNODES=2 PET_NODE_RANK=1",
            "RANK=1",
            "WORLD_SIZE=2",
            "DMLC_NUM_WORKER=2 DMLC_TASK_ID=1",
            "PMIX_RANK=3",
            "SLURM_ARRAY_TASK_ID=3",
        ] {
            refuse(environment, "`--workers 1`|World::single");
            assert_eq!(detect_for(environment, Some(1))?.world_size, 1, "{environment}");
            // A launcher of one process is a word, too.
            let place = format!("RANK=0 WORLD_SIZE=1 {environment}");
            for workers in [None, Some(1), Some(4)] {
                assert_eq!(detect_for(&place, workers)?.world_size, 1, "{place}");
            }
        }
        let place = "RANK=1 WORLD_SIZE=2 PET_NNODES=2";
        assert_eq!(detect_for(place, Some(1))?.world_size, 2, "a place counts");
        Ok(())
    }

    #[test]
    fn nonsense_and_a_part_of_a_launchers_variables_are_refused_by_name() {
        for (environment, parts) in [
            ("RANK=one WORLD_SIZE=2", "RANK is `one`"),
            ("RANK=2 WORLD_SIZE=2", "rank 2 of 2"),
            ("CANDELABRUM_RANK=0", "CANDELABRUM_WORLD_SIZE"),
            ("RANK=1", "RANK is 1 in the environment|WORLD_SIZE must"),
            ("WORLD_SIZE=2", "WORLD_SIZE is 2|but RANK must"),
            ("WORLD_SIZE=2 MASTER_PORT=29500", "WORLD_SIZE is 2|but RANK must"),
            ("LOCAL_WORLD_SIZE=2", "LOCAL_WORLD_SIZE is 2|but RANK and WORLD_SIZE must"),
            ("CANDELABRUM_WORLD_SIZE=2", "but CANDELABRUM_RANK must"),
            ("OMPI_COMM_WORLD_SIZE=2", "but OMPI_COMM_WORLD_RANK must"),
            ("PMI_SIZE=2", "but PMI_RANK"),
            ("MPI_LOCALNRANKS=2", "but PMI_RANK"),
            ("SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2", "but SLURM_STEP_ID must"),
            ("SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2", "but SLURM_PROCID must"),
            ("DMLC_NUM_WORKER=2", "but DMLC_ROLE and DMLC_NUM_SERVER and DMLC_TASK_ID must"),
            ("DMLC_TASK_ID=1 DMLC_ROLE=worker", "DMLC_NUM_WORKER and DMLC_NUM"),
            ("RANK=one", "RANK is `one` in the environment, not a number"),
            ("WORLD_SIZE=-2", "WORLD_SIZE is `-2` in the environment, not a number"),
            (
                "RANK=1 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2",
                "number 2 of 2 on this host (LOCAL_RANK, LOCAL_WORLD_SIZE)",
            ),
            ("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", "there are 2 in all"),
        ] {
            refuse(environment, parts);
        }
    }

    #[test]
    fn a_part_of_a_launchers_variables_may_mean_one_process() -> Result<()> {
        for environment in [
            "RANK=0",
            "WORLD_SIZE=1",
            "WORLD_SIZE=",
            "LOCAL_RANK=0 LOCAL_WORLD_SIZE=1",
            "OMPI_COMM_WORLD_SIZE=1",
            "PMI_SIZE=1",
            "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0",
            "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1",
        ] {
            assert_eq!(detect(environment)?.launcher, Launcher::Alone, "{environment}");
        }
        // Another launcher's place counts, whatever is left over from an outer one.
        assert_eq!(detect(&format!("{OPEN_MPI} WORLD_SIZE=8"))?.world_size, 3);
        Ok(())
    }

    #[test]
    fn ranks_that_are_not_counted_per_host_are_told_which_variables_count_them() -> Result<()> {
        for (more, missing) in [
            ("LOCAL_RANK= LOCAL_WORLD_SIZE=", Some("set LOCAL_RANK and LOCAL_WORLD_SIZE on")),
            ("LOCAL_RANK=1 LOCAL_WORLD_SIZE=", Some("set LOCAL_WORLD_SIZE on")),
            ("LOCAL_RANK= LOCAL_WORLD_SIZE=2", Some("set LOCAL_RANK on")),
            ("LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", None),
        ] {
            let launch = detect(&format!("RANK=1 WORLD_SIZE=2 MASTER_PORT=29500 {more}"))?;
            assert_eq!(launch.is_on_one_host(), missing.is_none());
            says(more, &launch.why_mpi(true), missing.unwrap_or_default());
        }
        Ok(())
    }

    #[test]
    fn ranks_of_several_hosts_are_told_every_way_to_meet() -> Result<()> {
        let torchrun = "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1";
        let srun = "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=2 \
                    SLURM_STEP_NUM_NODES=2 SLURM_GTIDS=0";
        let pmi = format!("{srun} PMI_RANK=0");
        let (mpiexec, pmix) = ("start them by mpiexec", "start them by `srun --mpi=pmix`");
        let build = "build with `--features mpi`";
        for (environment, has_mpi, part, no_part) in [
            (torchrun, true, mpiexec, build),
            (torchrun, false, "build with `--features mpi` and start them by mpiexec", "srun"),
            (srun, true, pmix, build),
            (srun, false, "build with `--features mpi` and start them by `srun", "mpiexec"),
            (&pmi, false, build, "start them"),
        ] {
            let message = detect(environment)?.why_mpi(has_mpi);
            assert!(message.starts_with("2 ranks, 1 of them on this host"), "{message}");
            assert!(!message.contains(no_part), "{message}");
            says(environment, &message, part);
            says(environment, &message, "CANDELABRUM_BACKEND=tcp|MASTER_ADDR|CANDELABRUM_PORT");
        }
        Ok(())
    }

    #[test]
    fn what_tells_jobs_apart_is_in_their_numbers() -> Result<()> {
        let torchrun = "RANK=0 WORLD_SIZE=2 MASTER_PORT=29500";
        let other = |more: &str| job(&format!("{more} {torchrun}"));
        // One rank may have the address of rank 0's host, and another one its name.
        for same in
            ["RANK=1", "TORCHELASTIC_RUN_ID=none", "MASTER_ADDR=node7", "MASTER_ADDR=10.77.0.1"]
        {
            assert_eq!(job(torchrun)?, other(same)?, "{same}");
        }
        for different in [
            "MASTER_PORT=29501",
            "TORCHELASTIC_RUN_ID=mine",
            "TORCHELASTIC_RESTART_COUNT=1",
            "CANDELABRUM_JOB=mine",
            "CANDELABRUM_SECRET=mine",
        ] {
            assert_ne!(job(torchrun)?, other(different)?, "{different}");
        }
        assert_eq!(job("PMI_RANK=0 PMI_SIZE=2")?, job_id("7-99", ""));
        let step = "SLURM_STEP_ID=3 SLURM_PROCID=0 SLURM_NTASKS=2";
        assert_eq!(detect(step)?.job, None);
        assert_eq!(job(&format!("{step} SLURM_JOB_ID=12"))?, job_id("12.3", ""));
        assert_ne!(job_id("ab", "c"), job_id("a", "bc"), "a secret is no part of the word");
        Ok(())
    }

    #[test]
    fn ranks_without_a_word_for_their_job_are_refused() -> Result<()> {
        for more in ["LOCAL_WORLD_SIZE=2", "TORCHELASTIC_RUN_ID=none", "MASTER_PORT="] {
            let launch = detect(&format!("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 {more}"))?;
            let message = launch.job_id().unwrap_err().to_string();
            says(more, &message, "one of 2 ranks|MASTER_PORT|CANDELABRUM_JOB");
        }
        assert!(job("CANDELABRUM_RANK=0 CANDELABRUM_WORLD_SIZE=2").is_err());
        Ok(())
    }

    #[test]
    fn mxnets_tracker_numbers_the_workers_and_then_the_servers() -> Result<()> {
        for (role, task, rank) in [("worker", 0, 0), ("worker", 1, 1), ("server", 2, 2)] {
            let environment = format!("DMLC_ROLE={role} DMLC_TASK_ID={task} {TRACKER}");
            let launch = detect(&environment)?;
            assert_eq!((launch.launcher, launch.servers), (Launcher::Dmlc, 1));
            assert_eq!(place(&environment)?, [rank, 3, rank, 3], "{role} {task}");
            assert_eq!(launch.job_id()?, job_id("10.0.0.7 9091 ", ""));
        }
        let again = job(&format!("DMLC_TASK_ID=0 DMLC_NUM_ATTEMPT=1 {TRACKER}"))?;
        assert_eq!(again, job_id("10.0.0.7 9091 1", ""));
        Ok(())
    }

    #[test]
    fn mxnets_tracker_says_whether_all_its_processes_are_on_one_host() -> Result<()> {
        for (cluster, host, is_one) in [
            ("local", "10.0.0.7", true),
            ("yarn", "127.0.0.1", false),
            ("", "127.0.0.1", true),
            ("", "::1", true),
            ("", "localhost", true),
            ("", "10.0.0.7", false),
            ("", "", false),
        ] {
            let more = format!("DMLC_TASK_ID=1 DMLC_JOB_CLUSTER={cluster} DMLC_PS_ROOT_URI={host}");
            let expected = if is_one { [1, 3, 1, 3] } else { [1, 3, 0, 1] };
            assert_eq!(place(&format!("{more} {TRACKER}"))?, expected, "{cluster} {host}");
        }
        Ok(())
    }

    #[test]
    fn a_process_without_a_place_in_mxnets_job_is_refused() {
        for (more, parts) in [
            ("DMLC_ROLE=scheduler", "scheduler|DMLC_ROLE|not a rank"),
            ("", "DMLC_TASK_ID|`ssh`|CANDELABRUM_SERVERS"),
            ("DMLC_ROLE=boss DMLC_TASK_ID=0", "DMLC_ROLE is `boss`|worker or server"),
            ("DMLC_ROLE=worker DMLC_TASK_ID=one", "DMLC_TASK_ID is `one`"),
            ("DMLC_ROLE=worker DMLC_TASK_ID=3", "DMLC_ROLE is `worker`|DMLC_TASK_ID is 3"),
            ("DMLC_ROLE=server DMLC_TASK_ID=0", "DMLC_ROLE is `server`|DMLC_TASK_ID is 0"),
            ("DMLC_ROLE=server DMLC_TASK_ID=3", "rank 3 of 3"),
            ("DMLC_ROLE=server DMLC_TASK_ID=0 DMLC_NUM_WORKER=0", "1 servers among 1 ranks"),
            // Its tracker for MPI starts two jobs.
            (
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2",
                "2 ranks|DMLC_NUM_WORKER|`mpi`|CANDELABRUM_SERVERS=1",
            ),
        ] {
            refuse(&format!("{more} {TRACKER}"), parts);
        }
    }

    #[test]
    fn mpi_has_the_numbers_where_mxnets_tracker_gives_none() -> Result<()> {
        let launch = detect(&format!("{OPEN_MPI} {TRACKER}"))?;
        let place = (launch.launcher, launch.rank, launch.world_size, launch.servers);
        assert_eq!(place, (Launcher::OpenMpi, 2, 3, 1));
        // Its tracker for one host gives numbers, also in a step of srun or mpiexec.
        let inside = detect(&format!("{OPEN_MPI} DMLC_TASK_ID=0 {TRACKER}"))?;
        assert_eq!(inside.launcher, Launcher::Dmlc);
        let ours = "CANDELABRUM_RANK=0 CANDELABRUM_WORLD_SIZE=3 DMLC_ROLE=scheduler";
        assert_eq!(detect(&format!("{ours} {TRACKER}"))?.launcher, Launcher::Candelabrum);
        Ok(())
    }

    #[test]
    fn every_launcher_takes_the_number_of_servers_from_our_variable() -> Result<()> {
        let torchrun = "RANK=0 WORLD_SIZE=4";
        for (more, of, servers) in [
            ("", torchrun, 0),
            ("CANDELABRUM_SERVERS=3", torchrun, 3),
            ("CANDELABRUM_SERVERS=1", OPEN_MPI, 1),
            ("CANDELABRUM_SERVERS=1", "", 0),
            ("DMLC_TASK_ID=0 CANDELABRUM_SERVERS=1", TRACKER, 1),
        ] {
            assert_eq!(detect(&format!("{more} {of}"))?.servers, servers, "{more} {of}");
        }
        for (more, of, parts) in [
            ("CANDELABRUM_SERVERS=4", torchrun, "4 servers among 4 ranks"),
            ("CANDELABRUM_SERVERS=-1", torchrun, "CANDELABRUM_SERVERS is `-1`"),
            (
                "DMLC_TASK_ID=0 CANDELABRUM_SERVERS=2",
                TRACKER,
                "CANDELABRUM_SERVERS is 2|DMLC_NUM_SERVER is 1",
            ),
        ] {
            refuse(&format!("{more} {of}"), parts);
        }
        Ok(())
    }

    #[test]
    fn a_program_may_choose_the_servers_where_the_launcher_says_none() -> Result<()> {
        let silent = detect(OPEN_MPI)?;
        assert_eq!(silent.clone().with_servers(2)?.servers, 2);
        assert!(silent.with_servers(3).is_err());
        let said = detect(&format!("{OPEN_MPI} CANDELABRUM_SERVERS=1"))?;
        assert_eq!(said.clone().with_servers(1)?, said);
        for other in [0, 2] {
            let message = said.clone().with_servers(other).unwrap_err().to_string();
            says(OPEN_MPI, &message, "1 of 3 ranks|--kvstore");
        }
        Ok(())
    }

    #[test]
    fn a_slurm_step_counts_the_tasks_of_this_node() -> Result<()> {
        let one =
            "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=4 SLURM_NNODES=2";
        let several = "SLURM_STEP_ID=0 SLURM_PROCID=4 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=7 \
                       SLURM_STEP_NUM_NODES=3";
        for (step, more, local_size) in [
            // A step on one node of a larger allocation is on one host.
            (one, "SLURM_STEP_NUM_NODES=1", 4),
            (one, "SLURM_STEP_NUM_NODES=2", 2),
            (one, "", 2),
            (several, "SLURM_GTIDS=4,5", 2),
            (several, "SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=2(x3),1", 2),
            (several, "SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=2(x3),1", 2),
            (several, "SLURM_NODEID=3 SLURM_STEP_TASKS_PER_NODE=2(x3),1", 1),
            (several, "SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=3,4", 4),
            // What does not fit the step is not believed.
            (several, "SLURM_NODEID=4 SLURM_STEP_TASKS_PER_NODE=2(x3),1", 1),
            (several, "SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=3,x", 1),
            (several, "SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=3,40", 1),
        ] {
            let [_, _, local_rank, size] = place(&format!("{step} {more}"))?;
            assert_eq!((local_rank, size), (usize::from(step == one), local_size), "{more}");
        }
        Ok(())
    }
}
