//! The command line of Open MPI's mpiexec, versions 4 and 5.
//!
//! Its own option for files of the ranks' output has another layout in each version, and in 5.0.11 it
//! loses standard error. So a shell on the rank's host, which then becomes the program, opens the
//! files.

use std::ffi::OsString;

use super::request::{Arguments, Request};

/// `$0` is the folder, the arguments are the program's.
const TO_FILES: &str =
    r#"r="$0/rank-$OMPI_COMM_WORLD_RANK"; mkdir -p "$0" && exec "$@" >>"$r.log" 2>>"$r.err""#;

pub(super) fn arguments(request: &Request<'_>) -> Vec<OsString> {
    let mut all = Arguments::default();
    if let Some(hosts) = request.host_list() {
        all.add(["--host", &hosts]);
    }
    all.add(["-n", &request.ranks.to_string(), "--bind-to", "none"]);
    // By slot, rank 0 is on the first host, where the others may have to find it.
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
