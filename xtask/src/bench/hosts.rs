//! Two hosts on one machine: network namespaces connected by a wire whose rate can be set.
//!
//! Dropping [`Hosts`] removes the hosts, after errors and interrupts too. If a run is killed, the
//! next run removes its hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, geteuid};

use super::host::{family, send};
use crate::machine;
use crate::shell::{display, find_program, output};

/// The beginning of our namespaces' names. The id of the process that made them and `a` or `b`
/// follow.
const PREFIX: &str = "candelabrum";

/// Their only network device besides the loopback, and the folder in which `ip netns` keeps names.
pub(crate) const DEVICE: &str = "wire";
const NAMES: &str = "/run/netns";

/// Both hosts' addresses, in a private network that is not visible elsewhere.
pub(crate) const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// Both hosts, as long as this value lives.
#[derive(Debug)]
pub(crate) struct Hosts {
    names: [String; 2],
    /// Starts a command on a host, as ssh would.
    shell: PathBuf,
}

impl Hosts {
    /// Refuses a machine on which no hosts can be made.
    pub(crate) fn check() -> Result<()> {
        let mut lacks = machine::lacks_for_mpi();
        let needed =
            [("ip", "ip (Debian: iproute2)"), ("tc", "tc (iproute2)"), ("unshare", "unshare")];
        let missing = needed.into_iter().filter(|(program, _)| find_program(program).is_none());
        lacks.extend(missing.map(|(_, package)| package));
        if !geteuid().is_root() {
            lacks.push("right to make network namespaces (run it as root)");
        }
        ensure!(lacks.is_empty(), "no hosts can be made here: no {}", lacks.join(", no "));
        Ok(())
    }

    /// Makes the hosts after a [`check`](Self::check), with a wire as fast as the machine. Their
    /// shell is a file in this folder.
    pub(crate) fn make(folder: &Path) -> Result<Self> {
        remove_leftovers();
        let names = ["a", "b"].map(|host| format!("{PREFIX}-{}-{host}", process::id()));
        let hosts = Self { shell: folder.join("shell-of-hosts"), names };
        let [a, b] = &hosts.names;
        for name in [a, b] {
            call("ip", &["netns", "add", name])?;
        }
        let peer = ["type", "veth", "peer", "name", DEVICE, "netns", b];
        call("ip", &[&["link", "add", DEVICE, "netns", a][..], &peer].concat())?;
        for (name, address) in hosts.names.iter().zip(ADDRESSES) {
            let address = format!("{address}/24");
            call("ip", &["-n", name, "addr", "add", &address, "dev", DEVICE])?;
            call("ip", &["-n", name, "link", "set", "lo", "up"])?;
            call("ip", &["-n", name, "link", "set", DEVICE, "up"])?;
        }
        // The arguments are those with which mpiexec calls a remote shell: the host, then the words
        // of a command. Each host has its own name, by which MPI sees that there are two.
        let script = format!(
            "#!/bin/sh\nhost=$1\nshift\ncase $host in\n{}) name={a} ;;\n*) name={b} ;;\nesac\n\
             exec ip netns exec $name unshare -u sh -c \"hostname $name; $*\"\n",
            ADDRESSES[0]
        );
        fs::write(&hosts.shell, script)
            .and_then(|()| fs::set_permissions(&hosts.shell, fs::Permissions::from_mode(0o755)))
            .with_context(|| format!("cannot write {}", hosts.shell.display()))?;
        Ok(hosts)
    }

    /// Sets the rate of the wire, in each direction.
    pub(crate) fn set_rate(&self, megabits: f64) -> Result<()> {
        let rate = format!("{}kbit", (1000.0 * megabits).round().max(1.0));
        for name in &self.names {
            let bucket = ["tbf", "rate", &rate, "burst", "128kb", "latency", "20ms"];
            let place = ["-n", name, "qdisc", "replace", "dev", DEVICE, "root"];
            call("tc", &[&place[..], &bucket].concat())?;
        }
        Ok(())
    }

    /// The options with which mpiexec puts a rank on each host.
    pub(crate) fn options_of_mpiexec(&self) -> [String; 6] {
        let ranks = ADDRESSES.map(|address| format!("{address}:1")).join(",");
        let shell = self.shell.display().to_string();
        let words =
            ["--leave-session-attached", "--mca", "plm_rsh_agent", &shell, "--host", &ranks];
        words.map(str::to_owned)
    }

    /// A command on one of them; `line` needs no quotes.
    pub(crate) fn command(&self, host: usize, line: &str) -> Command {
        let mut command = Command::new(&self.shell);
        command.args([ADDRESSES[host], &format!("exec {line}")]);
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| remove(name));
        drop(fs::remove_file(&self.shell));
    }
}

fn call(program: &str, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments);
    let shown = display(&command);
    let output = command.output().with_context(|| format!("cannot start `{shown}`"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{shown}`: {}", said.trim());
    Ok(())
}

/// Ends all processes on a host and removes the host with its end of the wire.
fn remove(name: &str) {
    if !Path::new(NAMES).join(name).exists() {
        return;
    }
    let ids = output(Command::new("ip").args(["netns", "pids", name])).unwrap_or_default();
    let ids = ids.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?));
    send(Signal::KILL, &family(&ids.collect::<Vec<_>>()));
    // If the removal fails now, the next run tries again.
    drop(call("ip", &["netns", "del", name]));
}

/// Removes the hosts of runs that have ended.
fn remove_leftovers() {
    let names = fs::read_dir(NAMES).into_iter().flatten().flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        if maker(&name).is_some_and(|maker| !Path::new(&format!("/proc/{maker}")).exists()) {
            remove(&name);
        }
    }
}

/// The process that made one of our hosts.
fn maker(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.strip_prefix('-')?.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hosts_of_ours_have_a_maker() {
        assert_eq!(maker("candelabrum-42-a"), Some(42));
        for other in ["candelabrum", "candelabrum-a", "other-42-a"] {
            assert_eq!(maker(other), None);
        }
    }

    #[test]
    fn a_command_that_fails_says_why() {
        let message = call("ip-that-is-not-here", &["x"]).unwrap_err().to_string();
        assert!(message.starts_with("cannot start"), "{message}");
        let message = call("sh", &["-c", "echo no >&2; exit 2"]).unwrap_err().to_string();
        assert!(message.ends_with(": no"), "{message}");
    }
}
