//! The environment variables that a rank's libraries read at their first use.
//!
//! candle keeps a pool of threads of its own beside rayon's. Its threads spin between operations,
//! and only an environment variable, read at candle's first use, sets their number. On two cores a
//! second rank trained at 0.6 of its speed because of them.
//!
//! glibc's allocator and mimalloc return the memory of large tensors to the system and ask for it again in
//! the next step, so a program spends its time in page faults. Their variables make them keep this memory
//! (figures: docs/log/2026-11-23-candle-operations.md and docs/log/2026-11-24-memory.md). Huge pages of 2 MB save up to 11%
//! of the time (docs/log/2026-11-29-amx.md). mimalloc asks for such pages by itself, and glibc's allocator by a tunable.
//!
//! Changing the environment of a running process is a race. So the process starts itself again,
//! once, with the right environment ([`prepare`]). Ranks that [`super::spawn()`] starts have it
//! from the beginning.

use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::interface::interface_address;
use super::signals::ignore_file_size_signal;
use super::variables::Variables;
use super::vars;
use crate::{Error, Result};

/// The threads of rayon and of candle's matrix products.
const RAYON_THREADS: &str = "RAYON_NUM_THREADS";

/// candle's spinning pool. With one thread, the caller itself, no thread spins.
const CANDLE_THREADS: &str = "CANDLE_NUM_THREADS";

/// The variable by which each library learns the network interface, and the prefix of the
/// interface's name in it. The last column has variables that contradict the first one, or mean the
/// same more exactly. If the user has set one of these, or the variable itself, it is left as it
/// is.
///
/// UCX's UCX_NET_DEVICES is not in the table, because the name of an IPoIB interface would keep UCX
/// from the InfiniBand device below. HYDRA_IFACE is not, because mpiexec reads it before there are
/// ranks.
const LIBRARIES: [(&str, &str, &[&str]); 3] = [
    // Open MPI's TCP transport.
    ("OMPI_MCA_btl_tcp_if_include", "", &["OMPI_MCA_btl_tcp_if_exclude"]),
    // libfabric, through which MPICH and Intel MPI use TCP.
    ("FI_TCP_IFACE", "", &[]),
    // Without `=` NCCL takes all interfaces whose names begin with the given one.
    ("NCCL_SOCKET_IFNAME", "=", &[]),
];

/// The settings of glibc's allocator: blocks of up to 32 MiB, the most that it allows, come from its heap,
/// the heap never shrinks, and it asks for huge pages (from glibc 2.35 on). Other allocators do not read them.
const GLIBC: [(&str, &str); 3] = [
    ("MALLOC_MMAP_THRESHOLD_", "33554432"),
    ("MALLOC_TRIM_THRESHOLD_", "1099511627776"),
    (TUNABLES, "glibc.malloc.hugetlb=1"),
];

/// Settings of several parts of glibc, with colons between them.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// The variables by which a user sets up this allocator. If there is one of them, or a tunable of the allocator, [`GLIBC`]
/// is not set.
const GLIBC_IS_SET: [&str; 5] = [
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_MMAP_MAX_",
    "MALLOC_ARENA_MAX",
];

/// The setting of mimalloc: it never returns memory. Other allocators do not read the setting.
const MIMALLOC: (&str, &str) = ("MIMALLOC_PURGE_DELAY", "-1");

/// The resources that ranks use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankEnvironment {
    /// Compute threads of each rank.
    pub threads: usize,
    /// The network interface between ranks on several hosts. With `None` the libraries choose one.
    pub interface: Option<String>,
    /// The number of ranks that are servers of the key-value store: those with the highest numbers.
    pub servers: usize,
}

impl RankEnvironment {
    /// `threads` compute threads, the interface in `CANDELABRUM_INTERFACE`, if it is set, and no
    /// servers.
    pub fn new(threads: usize) -> Self {
        let interface = Variables::of_process().get(vars::INTERFACE);
        Self { threads, interface, servers: 0 }
    }

    /// Replaces the interface by `name`, unless `name` is `None`.
    #[must_use]
    pub fn interface(mut self, name: Option<&str>) -> Self {
        self.interface = name.map(str::to_owned).or(self.interface);
        self
    }

    /// Makes the last `servers` ranks servers of the key-value store.
    #[must_use]
    pub fn servers(mut self, servers: usize) -> Self {
        self.servers = servers;
        self
    }

    /// The variables that pass the threads and the interface to all libraries, and those of the
    /// allocators. The servers are not among them: they are a matter of the launcher, and no library
    /// reads them.
    ///
    /// # Errors
    /// An interface that this host does not have.
    pub(super) fn variables(&self) -> Result<Vec<(&'static str, String)>> {
        let candle = env::var(CANDLE_THREADS).unwrap_or_else(|_| "1".to_owned());
        let mut variables =
            vec![(RAYON_THREADS, self.threads.to_string()), (CANDLE_THREADS, candle)];
        variables.extend(for_allocators(|variable| {
            env::var_os(variable).map(|value| value.to_string_lossy().into_owned())
        }));
        if let Some(name) = &self.interface {
            interface_address(name)?;
            variables.push((vars::INTERFACE, name.clone()));
            variables.extend(for_libraries(name, |variable| env::var_os(variable).is_some()));
        }
        Ok(variables)
    }
}

/// The libraries' variables that the user has not set.
fn for_libraries(name: &str, is_set: impl Fn(&str) -> bool) -> Vec<(&'static str, String)> {
    let free = LIBRARIES
        .iter()
        .filter(|(variable, _, others)| !is_set(variable) && !others.iter().any(|o| is_set(o)));
    free.map(|(variable, sign, _)| (*variable, format!("{sign}{name}"))).collect()
}

/// The variables of each allocator that the user has not set up.
fn for_allocators(get: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, String)> {
    let tunables = get(TUNABLES).unwrap_or_default();
    let glibc_is_set = tunables.contains("glibc.malloc.")
        || GLIBC_IS_SET.iter().any(|variable| get(variable).is_some());
    let glibc = GLIBC.iter().filter(|_| !glibc_is_set);
    let mimalloc = get(MIMALLOC.0).is_none().then_some(&MIMALLOC);
    let beside_the_users = |&(variable, value): &(&'static str, &str)| match variable {
        TUNABLES if !tunables.is_empty() => (variable, format!("{tunables}:{value}")),
        _ => (variable, value.to_owned()),
    };
    glibc.chain(mimalloc).map(beside_the_users).collect()
}

/// Gives this process the environment `wanted`. If it has another one, the program is started again
/// in its place. Call this first in `main`, because what stands before it happens twice. Ranks that
/// [`super::spawn()`] started have the environment already.
///
/// # Errors
/// No threads, an interface that this host does not have (the message lists the host's interfaces), a
/// second call that asks for something else, or a program that cannot be started again.
pub fn prepare(wanted: &RankEnvironment) -> Result<()> {
    if wanted.threads == 0 {
        return Err(Error::Launch {
            what: "0 compute threads: a rank needs at least one".to_owned(),
        });
    }
    ignore_file_size_signal();
    let variables = wanted.variables()?;
    let is_set = |(name, value): &(&str, String)| env::var(name).is_ok_and(|v| v == *value);
    if variables.iter().all(is_set) {
        return Ok(());
    }
    let process = std::process::id().to_string();
    if env::var(vars::STARTED_AGAIN).is_ok_and(|again| again == process) {
        // Two calls that disagree would start the program again for ever.
        let names: Vec<&str> = variables.iter().map(|(name, _)| *name).collect();
        let what = format!(
            "{} threads are asked for, but this program has been started again for another \
             environment already: call `limit_threads` or `prepare` once, and leave {} as it is",
            wanted.threads,
            names.join(", ")
        );
        return Err(Error::Launch { what });
    }
    let what = "start the program again with the right environment";
    let program = env::current_exe().map_err(|error| Error::io(what, error))?;
    let arguments = env::args_os().skip(1);
    // `exec` returns only if it failed.
    let mut command = Command::new(program);
    command.args(arguments).envs(variables).env(vars::STARTED_AGAIN, process);
    Err(Error::io(what, command.exec()))
}

/// Limits this process to `threads` compute threads. If it was started with another number, the program is
/// started again in its place, see [`prepare`]. glibc's allocator and mimalloc keep the memory of a step for
/// the next one, and glibc's asks for huge pages, unless the user has set them up in another way.
///
/// # Errors
/// Those of [`prepare`].
pub fn limit_threads(threads: usize) -> Result<()> {
    prepare(&RankEnvironment::new(threads))
}

/// A name that all processes of this host have, and no other host: the value of `CANDELABRUM_HOST`,
/// or the host's name and the number of its last start. Containers of one host may have different
/// names, and are then different hosts, because they need not share memory.
pub(crate) fn host() -> String {
    if let Some(name) = Variables::of_process().get(vars::HOST) {
        return name;
    }
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (name, boot) = (read("/proc/sys/kernel/hostname"), read("/proc/sys/kernel/random/boot_id"));
    format!("{} {}", name.trim(), boot.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_has_set_stays() {
        let named = |set: &[&str]| {
            let variables = for_libraries("ib0", |variable| set.contains(&variable));
            variables.into_iter().map(|(variable, name)| format!("{variable}:{name}")).collect()
        };
        let all: Vec<String> = named(&[]);
        assert_eq!(
            all,
            ["OMPI_MCA_btl_tcp_if_include:ib0", "FI_TCP_IFACE:ib0", "NCCL_SOCKET_IFNAME:=ib0"]
        );
        let some: Vec<String> = named(&["OMPI_MCA_btl_tcp_if_exclude", "NCCL_SOCKET_IFNAME"]);
        assert_eq!(some, ["FI_TCP_IFACE:ib0"]);

        let allocators = |set: &[(&str, &str)]| {
            let value = |variable: &str| set.iter().find(|(name, _)| *name == variable);
            for_allocators(|variable| value(variable).map(|(_, value)| (*value).to_owned()))
        };
        let owned = |(name, value): (&'static str, &str)| (name, value.to_owned());
        let all = [&GLIBC[..], &[MIMALLOC]].concat();
        assert_eq!(allocators(&[]), all.iter().copied().map(owned).collect::<Vec<_>>());
        assert_eq!(allocators(&[("MALLOC_ARENA_MAX", "1")]), [owned(MIMALLOC)]);
        assert_eq!(allocators(&[(TUNABLES, "glibc.malloc.check=3")]), [owned(MIMALLOC)]);
        assert_eq!(allocators(&[MIMALLOC]), GLIBC.map(owned));
        let others = allocators(&[(TUNABLES, "glibc.pthread.rseq=0")]);
        assert_eq!(others[2].1, "glibc.pthread.rseq=0:glibc.malloc.hugetlb=1");
        // A process that has been started again has these variables, and is not started once more.
        assert_eq!(allocators(&all), []);
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_error_that_names_those_that_are() {
        let wanted = RankEnvironment::new(1).interface(Some("wire7"));
        let error = wanted.variables().unwrap_err().to_string();
        assert!(error.contains("`wire7`") && error.contains("lo"), "{error}");
    }
}
