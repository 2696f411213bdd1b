//! A rank's place in a job over TCP.

use std::net::IpAddr;

use crate::comm::rendezvous::JobMember;

/// A rank's place in its job, and the meeting point.
#[derive(Clone, Debug)]
pub(crate) struct TcpConfig {
    pub(crate) member: JobMember,
    /// Rank 0's host: a name or an address.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The only address at which rank 0 listens, if there is one.
    pub(crate) interface: Option<IpAddr>,
}
