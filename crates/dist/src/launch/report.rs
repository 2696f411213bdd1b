//! How a failing rank tells its launcher why, so that one line is printed and not one per rank.
//!
//! The launcher listens on an abstract Unix socket named after the job; a rank that fails calls it
//! and leaves one line of JSON.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::vars;
use crate::{Error, Result};

/// The longest report that is read.
const LONGEST: u64 = 64 * 1024;

/// What a failing rank says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) rank: usize,
    pub(super) message: String,
    /// Whether it only passes on what another rank did.
    pub(super) echo: bool,
}

fn address(job: &str) -> std::io::Result<SocketAddr> {
    let user = rustix::process::getuid().as_raw();
    SocketAddr::from_abstract_name(format!("candelabrum/{user}/{job}/launcher"))
}

/// Tells the launcher that this rank has failed. False where there is none to tell: then the caller
/// prints its error itself.
pub fn report_failure(message: &str, echo: bool) -> bool {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (Some(rank), Ok(job)) = (number(vars::RANK), std::env::var(vars::JOB)) else {
        return false;
    };
    let send = || -> std::io::Result<()> {
        let mut socket = UnixStream::connect_addr(&address(&job)?)?;
        let report = Report { rank, message: message.to_owned(), echo };
        socket.write_all(&serde_json::to_vec(&report)?)
    };
    send().is_ok()
}

/// The launcher's ear.
pub(super) struct Ear(UnixListener);

impl Ear {
    pub(super) fn open(job: &str) -> Result<Self> {
        let open = || -> std::io::Result<UnixListener> {
            let listener = UnixListener::bind_addr(&address(job)?)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        open().map(Self).map_err(|error| Error::io("listen for the workers", error))
    }

    /// What has been said since the last look.
    pub(super) fn reports(&self) -> Vec<Report> {
        let mut reports = Vec::new();
        while let Ok((socket, _)) = self.0.accept() {
            let mut text = Vec::new();
            let prepared = socket
                .set_nonblocking(false)
                .and_then(|()| socket.set_read_timeout(Some(Duration::from_millis(500))));
            if prepared.is_ok() && socket.take(LONGEST).read_to_end(&mut text).is_ok() {
                reports.extend(serde_json::from_slice::<Report>(&text));
            }
        }
        reports
    }
}
