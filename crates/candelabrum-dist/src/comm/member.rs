//! A rank's place in a job.

use std::net::IpAddr;
use std::time::Duration;

/// A number that every rank of a job knows, and no other process.
pub(crate) type JobId = [u8; 32];

/// A rank's place in a job, and the deadline of every wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobMember {
    pub(crate) job: JobId,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) deadline: Duration,
}

/// A rank's place in a job over TCP, and the meeting point.
#[derive(Clone, Debug)]
pub(crate) struct TcpConfig {
    pub(crate) member: JobMember,
    /// Rank 0's host: a name or an address.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The only address at which rank 0 listens, if there is one.
    pub(crate) interface: Option<IpAddr>,
}
