//! The address and port at which rank 0 listens for the ranks of other hosts.

use std::net::IpAddr;

use super::variables::Variables;
use super::{interface_address, vars};
use crate::{Error, Result};

/// The variable in which torchrun and compatible launchers pass rank 0's host.
const HOST: &str = "MASTER_ADDR";

/// The variable with the port of torchrun's own agent. Our port is the next one.
const AGENT_PORT: &str = "MASTER_PORT";

/// Rank 0's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MeetingPoint {
    /// A name or an address.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The only address at which rank 0 listens, if the user chose an interface.
    pub(crate) interface: Option<IpAddr>,
}

impl MeetingPoint {
    /// Reads the environment. The host is in `MASTER_ADDR`. The port is in `CANDELABRUM_PORT`,
    /// otherwise it is the one after `MASTER_PORT`.
    ///
    /// # Errors
    /// [`Error::Launch`] if a variable is missing, a port is not a port number, or the interface does
    /// not exist.
    pub(super) fn from_env() -> Result<Self> {
        let (host, port) = address(|name| Variables::of_process().get(name))?;
        Self::at(host, port)
    }

    /// This address, on the interface that the user chose, if any.
    ///
    /// # Errors
    /// [`Error::Launch`] if the interface does not exist.
    pub(super) fn at(host: String, port: u16) -> Result<Self> {
        let interface = interface_name().map(|name| interface_address(&name)).transpose()?;
        Ok(Self { host, port, interface })
    }
}

/// The network interface that the user chose, if any.
fn interface_name() -> Option<String> {
    Variables::of_process().get(vars::INTERFACE)
}

/// Whether the user wants ranks on the CPU to communicate over TCP through rank 0.
///
/// # Errors
/// A value other than `auto` and `tcp`.
pub(crate) fn wants_tcp() -> Result<bool> {
    match Variables::of_process().get(vars::BACKEND).as_deref().map(str::trim) {
        None | Some("" | "auto") => Ok(false),
        Some("tcp") => Ok(true),
        Some(other) => Err(Error::Setting {
            setting: vars::BACKEND,
            value: other.to_owned(),
            range: "auto or tcp",
        }),
    }
}

fn address(read: impl Fn(&str) -> Option<String>) -> Result<(String, u16)> {
    let host = read(HOST).ok_or_else(|| Error::Launch {
        what: format!(
            "ranks on several hosts meet at rank 0's: set {HOST} to its name or address, and \
             {} to a free port there",
            vars::PORT
        ),
    })?;
    let number = |name: &str| -> Result<Option<u16>> {
        let Some(text) = read(name) else { return Ok(None) };
        let port = text.trim().parse().ok().filter(|&port| port != 0);
        port.map(Some).ok_or_else(|| Error::Launch {
            what: format!("{name} is `{text}` in the environment, not a port (1 to 65535)"),
        })
    };
    if let Some(port) = number(vars::PORT)? {
        return Ok((host, port));
    }
    let agent = number(AGENT_PORT)?.ok_or_else(|| Error::Launch {
        what: format!("{HOST} is set, but neither {} nor {AGENT_PORT}", vars::PORT),
    })?;
    let port = agent.checked_add(1).ok_or_else(|| Error::Launch {
        what: format!("there is no port after {AGENT_PORT} {agent}: set {}", vars::PORT),
    })?;
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<(String, u16)> {
        address(|name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_port_after_the_agents_is_taken_unless_another_is_set() -> Result<()> {
        let torchrun = [("MASTER_ADDR", "node7"), ("MASTER_PORT", "29500")];
        assert_eq!(of(&torchrun)?, ("node7".to_owned(), 29501));
        let set = [&torchrun[..], &[("CANDELABRUM_PORT", "4000")]].concat();
        assert_eq!(of(&set)?, ("node7".to_owned(), 4000));
        Ok(())
    }

    #[test]
    fn what_is_missing_or_no_port_is_named() {
        let cases: [(&[(&str, &str)], &str); 5] = [
            (&[], "set MASTER_ADDR"),
            (&[("MASTER_ADDR", "a")], "neither CANDELABRUM_PORT nor MASTER_PORT"),
            (&[("MASTER_ADDR", "a"), ("MASTER_PORT", "http")], "MASTER_PORT is `http`"),
            (&[("MASTER_ADDR", "a"), ("CANDELABRUM_PORT", "0")], "CANDELABRUM_PORT is `0`"),
            (&[("MASTER_ADDR", "a"), ("MASTER_PORT", "65535")], "no port after MASTER_PORT 65535"),
        ];
        for (variables, part) in cases {
            let message = of(variables).unwrap_err().to_string();
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}
