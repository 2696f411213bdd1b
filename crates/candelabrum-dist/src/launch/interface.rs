//! The network interface between ranks on several hosts, and its address.
//!
//! Hosts have more than one interface, and a host's name seldom leads to the fast one.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use crate::{Error, Result};

/// An interface of this host that is up, and one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interface {
    name: String,
    address: IpAddr,
}

/// The address of this host's interface `name`: its IPv4 address, or its IPv6 address that works
/// beyond the link if it has no IPv4 address.
///
/// # Errors
/// No such interface, or an interface without an address. The message lists the host's interfaces.
pub fn interface_address(name: &str) -> Result<IpAddr> {
    choose(name, &interfaces()?)
}

/// All addresses of all interfaces that are up.
fn interfaces() -> Result<Vec<Interface>> {
    let all = getifaddrs().map_err(|error| Error::io("list the network interfaces", error))?;
    let address = |storage: nix::sys::socket::SockaddrStorage| {
        let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    let up = all.filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP));
    let known = up.filter_map(|interface| {
        let address = interface.address.and_then(address)?;
        Some(Interface { name: interface.interface_name, address })
    });
    Ok(known.collect())
}

fn choose(name: &str, interfaces: &[Interface]) -> Result<IpAddr> {
    let beyond_the_link = |address: &IpAddr| match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    };
    let of_name = interfaces.iter().filter(|interface| interface.name == name);
    let usable = of_name.map(|interface| interface.address).filter(beyond_the_link);
    usable.min_by_key(IpAddr::is_ipv6).ok_or_else(|| {
        let known: Vec<String> = interfaces
            .iter()
            .filter(|interface| beyond_the_link(&interface.address))
            .map(|Interface { name, address }| format!("{name} ({address})"))
            .collect();
        let what = format!(
            "this host has no network interface `{name}` with an address; it has {}",
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        );
        Error::Launch { what }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str) -> Interface {
        Interface { name: name.to_owned(), address: address.parse().expect("an address") }
    }

    #[test]
    fn the_ipv4_address_is_preferred_and_link_local_ones_are_not_taken() -> Result<()> {
        let all = [
            interface("lo", "127.0.0.1"),
            interface("ib0", "fe80::1"),
            interface("ib0", "2001:db8::7"),
            interface("ib0", "10.0.0.7"),
            interface("ib1", "fe80::2"),
            interface("ib1", "2001:db8::8"),
        ];
        assert_eq!(choose("ib0", &all)?.to_string(), "10.0.0.7");
        assert_eq!(choose("ib1", &all)?.to_string(), "2001:db8::8");
        Ok(())
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let all = [interface("lo", "127.0.0.1"), interface("ib0", "fe80::1")];
        for name in ["eth0", "ib0"] {
            let message = choose(name, &all).unwrap_err().to_string();
            assert!(message.contains(&format!("`{name}`")), "{message}");
            assert!(message.contains("lo (127.0.0.1)"), "{message}");
        }
    }

    #[test]
    fn this_host_has_a_loopback_interface() -> Result<()> {
        let all = interfaces()?;
        let loopback = all.iter().find(|interface| interface.address.is_loopback());
        let loopback = loopback.expect("a loopback interface");
        assert!(interface_address(&loopback.name)?.is_loopback());
        Ok(())
    }
}
