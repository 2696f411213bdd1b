//! The command line of MPICH's mpiexec (Hydra). It passes the whole environment on.

use std::ffi::OsString;

use super::request::{Arguments, StartRequest};

pub(super) fn arguments(request: &StartRequest<'_>) -> Vec<OsString> {
    let mut all = Arguments::default();
    if let Some(hosts) = request.host_list() {
        all.add(["-hosts", &hosts]);
    }
    all.add(["-n", &request.ranks.to_string(), "-bind-to", "none", "-genvall"]);
    match (request.in_folder("rank-%r.log"), request.in_folder("rank-%r.err")) {
        (Some(log), Some(err)) => {
            all.add(["-outfile-pattern".as_ref(), log.as_os_str()]);
            all.add(["-errfile-pattern".as_ref(), err.as_os_str()]);
        }
        _ if request.labels => all.add(["-prepend-rank"]),
        _ => {}
    }
    all.add(request.more);
    all.add(request.command);
    all.0
}
