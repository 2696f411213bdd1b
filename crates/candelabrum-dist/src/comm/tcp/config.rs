//! A rank's place in a job over TCP.

use std::net::IpAddr;
use std::time::Duration;

use crate::comm::rendezvous::JobId;

/// The job, its meeting point and its deadline.
#[derive(Clone, Debug)]
pub(crate) struct TcpConfig {
    pub(crate) job: JobId,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) deadline: Duration,
    /// Rank 0's host: a name or an address.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The only address at which rank 0 listens, if there is one.
    pub(crate) interface: Option<IpAddr>,
}
