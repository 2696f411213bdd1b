//! The variables of dmlc, which is MXNet's tracker (`tools/launch.py`), and their meaning for ranks.
//!
//! The tracker starts workers and servers and numbers them together, the workers first. A rank has
//! the same number. With servers the tracker starts one more process, the scheduler, which is no
//! rank.

use std::net::IpAddr;

use super::variables::Variables;
use super::vars;
use crate::{Error, Result};

/// `worker`, `server` or `scheduler`.
pub(super) const ROLE: &str = "DMLC_ROLE";

/// The number of workers.
pub(super) const WORKERS: &str = "DMLC_NUM_WORKER";

/// The number of servers.
pub(super) const SERVERS: &str = "DMLC_NUM_SERVER";

/// The number of a worker or a server.
pub(super) const TASK: &str = "DMLC_TASK_ID";

/// The kind of the tracker: local, ssh, mpi, slurm, sge, yarn.
const CLUSTER: &str = "DMLC_JOB_CLUSTER";

/// The scheduler's host.
const ROOT_HOST: &str = "DMLC_PS_ROOT_URI";

/// The scheduler's port.
const ROOT_PORT: &str = "DMLC_PS_ROOT_PORT";

/// The number of the attempt, where the tracker starts a failed job again.
const ATTEMPT: &str = "DMLC_NUM_ATTEMPT";

/// Whether this process is the tracker's scheduler.
pub(super) fn is_scheduler(env: &Variables<'_>) -> bool {
    env.get(ROLE).as_deref() == Some("scheduler")
        && env.get(WORKERS).is_some()
        && env.get(SERVERS).is_some()
        && env.get(vars::RANK).is_none()
}

/// The number of workers and servers.
///
/// # Errors
/// A number that is missing or none.
pub(super) fn ranks(env: &Variables<'_>) -> Result<usize> {
    Ok(env.need(&[WORKERS])?.saturating_add(env.need(&[SERVERS])?))
}

/// The scheduler's host and port.
///
/// # Errors
/// An address that is missing, or a port that is none.
pub(super) fn root(env: &Variables<'_>) -> Result<(String, u16)> {
    let port = env.need(&[ROOT_PORT])?;
    let port = u16::try_from(port).map_err(|_| Error::Launch {
        what: format!("{ROOT_PORT} is {port} in the environment, not a port"),
    })?;
    let host = env.get(ROOT_HOST).ok_or_else(|| Error::Launch {
        what: format!("{ROOT_PORT} is set in the environment, but {ROOT_HOST} is not"),
    })?;
    Ok((host, port))
}

/// Whether the tracker starts all processes on one host.
pub(super) fn is_on_one_host(env: &Variables<'_>) -> bool {
    let is_loopback = |host: String| {
        host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    };
    match env.get(CLUSTER) {
        Some(cluster) => cluster == "local",
        None => env.get(ROOT_HOST).is_some_and(is_loopback),
    }
}

/// The scheduler's address, which together with the number of the attempt identifies a job.
pub(super) fn job(env: &Variables<'_>) -> Option<String> {
    let attempt = env.get(ATTEMPT).unwrap_or_default();
    Some([env.get(ROOT_HOST)?, env.get(ROOT_PORT)?, attempt].join(" "))
}

/// Refuses a process that the tracker has not given a place among the ranks.
///
/// # Errors
/// No number, another role than `worker` and `server`, or a number that is not the role's.
pub(super) fn check_place(env: &Variables<'_>) -> Result<()> {
    let role = env.get(ROLE).unwrap_or_default();
    let is_server = match role.as_str() {
        "worker" => false,
        "server" => true,
        _ => {
            let what = format!("{ROLE} is `{role}` in the environment, not worker or server");
            return Err(Error::Launch { what });
        }
    };
    let task = env.number(&[TASK])?.ok_or_else(|| Error::Launch {
        what: format!(
            "MXNet's tracker has started this process without {TASK}, so it has no number: the \
             launcher `ssh` sets none; start all ranks by one mpiexec or srun, and set {} to the \
             number of servers",
            vars::SERVERS
        ),
    })?;
    let workers = env.need(&[WORKERS])?;
    if is_server != (task >= workers) {
        let what = format!(
            "{ROLE} is `{role}` in the environment and {TASK} is {task}: 0 to {WORKERS} - 1 are \
             workers, and {WORKERS} is {workers}"
        );
        return Err(Error::Launch { what });
    }
    Ok(())
}

/// The number of servers in the tracker's job of `world_size` ranks. `None` if the tracker has not
/// started this process.
///
/// # Errors
/// A world that does not consist of the tracker's workers and servers.
pub(super) fn servers(env: &Variables<'_>, world_size: usize) -> Result<Option<usize>> {
    if env.get(ROLE).is_none() {
        return Ok(None);
    }
    let (Some(workers), Some(servers)) = (env.number(&[WORKERS])?, env.number(&[SERVERS])?) else {
        return Ok(None);
    };
    if workers.checked_add(servers) == Some(world_size) {
        return Ok(Some(servers));
    }
    Err(Error::Launch {
        what: format!(
            "the launcher has started {world_size} ranks, but {WORKERS} and {SERVERS} say {workers} \
             and {servers}: MXNet's launchers `mpi` and `slurm` start workers and servers as two \
             jobs, which cannot form one world; start all of them by one mpiexec or srun, with \
             {}={servers} instead of these variables",
            vars::SERVERS
        ),
    })
}

/// The variables by which a script for MXNet learns the role of a rank, of which the last `servers`
/// are servers. They are none without servers.
pub(super) fn of_rank(rank: usize, ranks: usize, servers: usize) -> Vec<(&'static str, String)> {
    if servers == 0 {
        return Vec::new();
    }
    let workers = ranks - servers;
    let role = if rank < workers { "worker" } else { "server" };
    vec![(ROLE, role.to_owned()), (WORKERS, workers.to_string()), (SERVERS, servers.to_string())]
}
