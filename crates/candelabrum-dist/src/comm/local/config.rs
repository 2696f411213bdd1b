//! A rank's place in a job on one host.

use std::time::Duration;

use crate::comm::rendezvous::JobId;

/// This rank's place in a job, and the deadline of every wait.
#[derive(Clone, Debug)]
pub(crate) struct LocalConfig {
    pub(crate) job: JobId,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) deadline: Duration,
}
