//! The command line of Open MPI's mpiexec, versions 4 and 5.
//!
//! Its own option for files of the ranks' output has another layout in each version, and in 5.0.11 it
//! loses standard error. So a shell on the rank's host, which then becomes the program, opens the
//! files.

use std::ffi::OsString;
use std::time::Duration;

use super::request::{Arguments, StartRequest};

/// `$0` is the folder, the arguments are the program's.
const TO_FILES: &str =
    r#"r="$0/rank-$OMPI_COMM_WORLD_RANK"; mkdir -p "$0" && exec "$@" >>"$r.log" 2>>"$r.err""#;

/// The settings by which mpiexec of version 4 notices that a host is lost, within less than half of the ranks' `deadline`.
/// Without them its connection to that host stays, mpiexec does not end, and no restart can begin. The same holds once a
/// rank has given up, because then mpiexec has sent something to that host, and waits for its arrival. Other versions do
/// not read them.
pub(super) fn keepalive(deadline: Duration) -> Vec<(&'static str, String)> {
    let part = |part: u64, most: u64| (deadline.as_secs() / part).clamp(1, most).to_string();
    vec![
        ("OMPI_MCA_oob_tcp_keepalive_time", part(5, 60)),
        ("OMPI_MCA_oob_tcp_keepalive_intvl", part(20, 15)),
        ("OMPI_MCA_oob_tcp_keepalive_probes", "4".to_owned()),
    ]
}

pub(super) fn arguments(request: &StartRequest<'_>) -> Vec<OsString> {
    let mut all = Arguments::default();
    if let Some(hosts) = request.host_list() {
        all.add(["--host", &hosts]);
    }
    all.add(["-n", &request.ranks.to_string(), "--bind-to", "none"]);
    // With --map-by slot, rank 0 is on the first host. The other ranks may look for rank 0 there.
    all.add(["--map-by", if request.oversubscribe { "slot:oversubscribe" } else { "slot" }]);
    if request.labels && request.folder.is_none() {
        all.add(["--tag-output"]);
    }
    for name in &request.exported {
        all.add(["-x", name]);
    }
    all.add(request.more);
    if let Some(folder) = &request.folder {
        all.add(["sh", "-c", TO_FILES]);
        all.add([folder]);
    }
    all.add(request.command);
    all.0
}
