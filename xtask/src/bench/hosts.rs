//! Hosts on one machine: network namespaces connected by wires whose rate can be set. Two hosts share a wire. More
//! hosts have a wire each to a switch, a bridge in a namespace of its own.
//!
//! Dropping [`SimulatedHosts`] removes the hosts, after errors and interrupts too. If a run is killed, the
//! next run removes its hosts.

use std::fmt::Display;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, geteuid};

use super::host::{family, send};
use crate::machine;
use crate::shell::{display, find_program, output};

/// The beginning of our namespaces' names. The id of the process that made them and the number of the host, or
/// `switch`, follow.
const PREFIX: &str = "candelabrum";

/// Their only network device besides the loopback, and the folder in which `ip netns` keeps names.
pub(crate) const DEVICE: &str = "wire";
const BRIDGE: &str = "bridge";
const NAMES: &str = "/run/netns";

/// The most hosts that a run may have.
const MOST_HOSTS: usize = 64;

/// A host's address, in a private network that is not visible elsewhere.
pub(crate) fn address(host: usize) -> String {
    format!("10.77.0.{}", host + 1)
}

/// All hosts, as long as this value lives.
#[derive(Debug, PartialEq)]
pub(crate) struct SimulatedHosts {
    names: Vec<String>,
    /// The namespace of the switch. Two hosts have none.
    switch: Option<String>,
    /// Starts a command on a host, as ssh would.
    shell: PathBuf,
}

impl SimulatedHosts {
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

    /// Makes `count` hosts after a [`check`](Self::check), with wires as fast as the machine. Their
    /// shell is a file in this folder.
    pub(crate) fn make(folder: &Path, count: usize) -> Result<Self> {
        ensure!(count <= MOST_HOSTS, "there are at most {MOST_HOSTS} hosts, not {count}");
        remove_leftovers();
        let name = |host: &dyn Display| format!("{PREFIX}-{}-{host}", process::id());
        let names: Vec<String> = (0..count).map(|host| name(&host)).collect();
        let switch = (count > 2).then(|| name(&"switch"));
        let hosts = Self { shell: folder.join("shell-of-hosts"), names, switch };
        for name in hosts.names.iter().chain(&hosts.switch) {
            call("ip", &["netns", "add", name])?;
            call("ip", &["-n", name, "link", "set", "lo", "up"])?;
        }
        hosts.connect()?;
        for (host, name) in hosts.names.iter().enumerate() {
            let address = format!("{}/24", address(host));
            call("ip", &["-n", name, "addr", "add", &address, "dev", DEVICE])?;
        }
        hosts.write_shell()?;
        Ok(hosts)
    }

    /// Puts both ends of every wire into place.
    fn connect(&self) -> Result<()> {
        if let Some(switch) = &self.switch {
            call("ip", &["-n", switch, "link", "add", BRIDGE, "type", "bridge"])?;
            call("ip", &["-n", switch, "link", "set", BRIDGE, "up"])?;
        }
        let ends = self.ends();
        for [(a, end), (b, other)] in &ends {
            let wire: [&str; 12] =
                ["link", "add", end, "netns", a, "type", "veth", "peer", "name", other, "netns", b];
            call("ip", &wire)?;
            if self.switch.is_some() {
                call("ip", &["-n", b, "link", "set", other, "master", BRIDGE])?;
            }
        }
        for (name, end) in ends.as_flattened() {
            call("ip", &["-n", name, "link", "set", end, "up"])?;
        }
        Ok(())
    }

    /// The ends of each wire: a namespace and its device.
    fn ends(&self) -> Vec<[(&str, String); 2]> {
        match (&*self.names, &self.switch) {
            (names, Some(switch)) => {
                let ports = (0..).map(|port| (&**switch, format!("port{port}")));
                names.iter().zip(ports).map(|(name, port)| [end(name), port]).collect()
            }
            ([a, b], None) => vec![[end(a), end(b)]],
            _ => Vec::new(),
        }
    }

    /// The arguments of the shell are those with which mpiexec calls a remote one: the host, then the words
    /// of a command. Each host has its own name, by which MPI sees that there are several.
    fn write_shell(&self) -> Result<()> {
        let cases: String = (self.names.iter().enumerate())
            .map(|(host, name)| format!("{}) name={name} ;;\n", address(host)))
            .collect();
        let script = format!(
            "#!/bin/sh\nhost=$1\nshift\ncase $host in\n{cases}*) echo no host $host >&2; exit 1 ;;\nesac\n\
             exec ip netns exec $name unshare -u sh -c \"hostname $name; $*\"\n"
        );
        fs::write(&self.shell, script)
            .and_then(|()| fs::set_permissions(&self.shell, fs::Permissions::from_mode(0o755)))
            .with_context(|| format!("cannot write {}", self.shell.display()))
    }

    /// Sets the rate of the wires, in each direction.
    pub(crate) fn set_rate(&self, megabits: f64) -> Result<()> {
        let rate = format!("{}kbit", (1000.0 * megabits).round().max(1.0));
        for (name, end) in self.ends().as_flattened() {
            let bucket = ["tbf", "rate", &rate, "burst", "128kb", "latency", "20ms"];
            let place = ["-n", name, "qdisc", "replace", "dev", end, "root"];
            call("tc", &[&place[..], &bucket].concat())?;
        }
        Ok(())
    }

    /// The options with which mpiexec, on the first host, puts a rank on each of the first `ranks` hosts. It calls
    /// all of them itself, because they do not call each other.
    pub(crate) fn options_of_mpiexec(&self, ranks: usize) -> Vec<String> {
        let slots: Vec<String> = (0..ranks).map(|host| format!("{}:1", address(host))).collect();
        let (shell, slots) = (self.shell.display().to_string(), slots.join(","));
        let words = ["--leave-session-attached", "--mca", "plm_rsh_agent", &shell];
        let more = ["--mca", "plm_rsh_no_tree_spawn", "1", "--host", &slots];
        words.iter().chain(&more).map(|&word| word.to_owned()).collect()
    }

    /// A command on one of them; `line` needs no quotes.
    pub(crate) fn command(&self, host: usize, line: &str) -> Command {
        let mut command = Command::new(&self.shell);
        command.args([address(host), format!("exec {line}")]);
        command
    }
}

impl Drop for SimulatedHosts {
    fn drop(&mut self) {
        self.names.iter().chain(&self.switch).for_each(|name| remove(name));
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

/// A host's end of its wire.
fn end(host: &str) -> (&str, String) {
    (host, DEVICE.to_owned())
}

/// Ends all processes on a host and removes the host with its ends of wires.
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
        for ours in ["candelabrum-42-0", "candelabrum-42-switch"] {
            assert_eq!(maker(ours), Some(42));
        }
        for other in ["candelabrum", "candelabrum-a", "other-42-0"] {
            assert_eq!(maker(other), None);
        }
    }

    #[test]
    fn two_hosts_share_a_wire_and_more_have_one_each_to_a_switch() {
        let ends = |count: usize| {
            let names = (0..count).map(|host| format!("h{host}")).collect();
            let switch = (count > 2).then(|| "s".to_owned());
            let hosts = SimulatedHosts { names, switch, shell: PathBuf::from("/no/such/shell") };
            let ends = hosts.ends();
            let ends = ends.as_flattened().iter().map(|(name, end)| format!("{name} {end}"));
            (ends.collect::<Vec<_>>().join(", "), hosts.options_of_mpiexec(2).pop())
        };
        let slots = Some("10.77.0.1:1,10.77.0.2:1".to_owned());
        assert_eq!(ends(2), ("h0 wire, h1 wire".to_owned(), slots.clone()));
        let star = "h0 wire, s port0, h1 wire, s port1, h2 wire, s port2";
        assert_eq!(ends(3), (star.to_owned(), slots));
        assert_eq!(ends(1).0, "");
    }

    /// Whether this machine lets this process make namespaces.
    fn can_make_hosts() -> bool {
        let trial = format!("{PREFIX}-{}-trial", process::id());
        let made = SimulatedHosts::check().and_then(|()| call("ip", &["netns", "add", &trial]));
        if let Err(error) = &made {
            println!("left out: {error}");
        }
        remove(&trial);
        made.is_ok()
    }

    #[test]
    fn mpiexec_starts_a_rank_on_each_host() {
        if !can_make_hosts() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        for count in [2, 3] {
            let hosts = SimulatedHosts::make(folder.path(), count).unwrap();
            hosts.set_rate(100.0).unwrap();
            let start = ["timeout", "60", "mpiexec", "-n", &count.to_string()];
            let mut words: Vec<String> = start.iter().map(|&word| word.to_owned()).collect();
            words.extend(hosts.options_of_mpiexec(count));
            let mut command = hosts.command(0, &format!("{} hostname", words.join(" ")));
            let text = output(command.envs(machine::OPEN_MPI)).unwrap();
            let mut ran: Vec<&str> = text.lines().collect();
            ran.sort_unstable();
            assert_eq!(ran, hosts.names);
            let all: Vec<String> = hosts.names.iter().chain(&hosts.switch).cloned().collect();
            drop(hosts);
            assert!(!all.iter().any(|name| Path::new(NAMES).join(name).exists()), "{all:?}");
        }
    }
}
