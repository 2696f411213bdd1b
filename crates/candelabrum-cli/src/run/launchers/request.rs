//! What mpiexec or srun is asked to start.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::run::hostfile::HostSlots;

/// The ranks of one attempt.
#[derive(Clone, Debug)]
pub(in crate::run) struct StartRequest<'a> {
    pub(in crate::run) ranks: usize,
    /// The hosts that the user named. `None`: the launcher knows them.
    pub(in crate::run) hosts: Option<&'a [HostSlots]>,
    pub(in crate::run) oversubscribe: bool,
    /// Whether each line begins with its rank.
    pub(in crate::run) labels: bool,
    /// The folder of the ranks' output, instead of this program's output.
    pub(in crate::run) folder: Option<PathBuf>,
    /// The names of the variables that the ranks of all hosts must get.
    pub(in crate::run) exported: Vec<String>,
    /// srun's `--mpi`.
    pub(in crate::run) mpi: &'a str,
    /// Further arguments of the user.
    pub(in crate::run) more: &'a [OsString],
    /// The program and its arguments.
    pub(in crate::run) command: &'a [OsString],
}

impl StartRequest<'_> {
    /// The hosts with their slots, such as `node1:4,node2:4`.
    pub(super) fn host_list(&self) -> Option<String> {
        let pairs = self.hosts?.iter().map(|HostSlots { name, slots }| format!("{name}:{slots}"));
        Some(pairs.collect::<Vec<_>>().join(","))
    }

    /// A path in the folder of the ranks' output.
    pub(super) fn in_folder(&self, name: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(name))
    }
}

/// The arguments of a launcher, one by one.
#[derive(Debug, Default)]
pub(super) struct Arguments(pub(super) Vec<OsString>);

impl Arguments {
    pub(super) fn add(&mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) {
        self.0.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
    }

    /// `NAME=VALUE` in one argument.
    pub(super) fn add_pair(&mut self, name: &str, value: impl AsRef<OsStr>) {
        let mut argument = OsString::from(name);
        argument.push("=");
        argument.push(value);
        self.0.push(argument);
    }
}
