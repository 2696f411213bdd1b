//! The command line of Slurm's srun, for a step inside an allocation. It passes the whole environment
//! on.

use std::ffi::OsString;

use super::request::{Arguments, StartRequest};
use crate::run::hostfile::place;

pub(super) fn arguments(request: &StartRequest<'_>) -> Vec<OsString> {
    let mut all = Arguments::default();
    all.add_pair("--ntasks", request.ranks.to_string());
    if let Some(hosts) = request.hosts {
        let placed = place(hosts, request.ranks);
        let used = hosts.iter().zip(placed).filter(|(_, ranks)| *ranks > 0);
        // `node1*2` stands for `node1,node1`, and `arbitrary` keeps this order.
        let list: Vec<String> =
            used.map(|(host, ranks)| format!("{}*{ranks}", host.name)).collect();
        all.add_pair("--nodes", list.len().to_string());
        all.add_pair("--nodelist", list.join(","));
        all.add(["--distribution=arbitrary"]);
    }
    if request.oversubscribe {
        all.add(["--overcommit"]);
    }
    all.add_pair("--mpi", request.mpi);
    all.add(["--cpu-bind=none", "--kill-on-bad-exit=1", "--export=ALL"]);
    match (request.in_folder("rank-%t.log"), request.in_folder("rank-%t.err")) {
        (Some(log), Some(err)) => {
            all.add_pair("--output", log);
            all.add_pair("--error", err);
            all.add(["--open-mode=append"]);
        }
        _ if request.labels => all.add(["--label"]),
        _ => {}
    }
    all.add(request.more);
    all.add(request.command);
    all.0
}
