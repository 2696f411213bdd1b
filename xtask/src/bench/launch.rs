//! Ways to start a program to measure: one process, or the ranks of one world.

use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use anyhow::Result;

use super::hosts::{DEVICE, SimulatedHosts, address};
use super::sample::{SettingValues, values};
use crate::checkout::repo_root;
use crate::machine::{OPEN_MPI, free_port};

/// The seconds for which our ranks may be stopped while other players are measured, without a
/// timeout.
const STANDSTILL: &str = "86400";

/// A program to measure, of one process or of several ranks, of which the first talks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Player {
    /// The program, then its arguments.
    words: Vec<String>,
    variables: Vec<(String, String)>,
    ranks: usize,
    /// mpiexec starts the ranks. Others find each other by torchrun's variables.
    by_mpi: bool,
    /// Hosts with a rank each.
    hosts: Option<Rc<SimulatedHosts>>,
    /// Whether another commit's build of it is compared with this one.
    pub(crate) is_ours: bool,
    /// Facts that it must say when it is ready. Ranks that do not find each other would each be a
    /// world of one.
    pub(crate) expects: SettingValues,
}

impl Player {
    /// One process of ours.
    pub(crate) fn new(program: &Path) -> Self {
        Self {
            words: vec![program.display().to_string()],
            variables: vec![("CANDELABRUM_TIMEOUT".to_owned(), STANDSTILL.to_owned())],
            ranks: 1,
            by_mpi: false,
            hosts: None,
            is_ours: true,
            expects: values([("ranks", 1)]),
        }
    }

    /// A script of the repository, which is not ours in a comparison.
    pub(crate) fn script(python: &Path, name: &str) -> Self {
        Self::new(python).args([repo_root().join("scripts").join(name).display()]).other()
    }

    pub(crate) fn args<T: ToString>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.words.extend(arguments.into_iter().map(|argument| argument.to_string()));
        self
    }

    /// Limits the pools of threads of all libraries. Our player limits candle's second pool itself.
    pub(crate) fn threads(mut self, count: usize) -> Self {
        let names = ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"];
        self.variables.extend(names.map(|name| (name.to_owned(), count.to_string())));
        self
    }

    /// So many ranks, which must find each other over this backend.
    pub(crate) fn ranks(mut self, count: usize, backend: &str) -> Self {
        (self.ranks, self.by_mpi) = (count, count > 1 && backend == "mpi");
        self.expects = values([("ranks", count)]);
        self.expects.extend((count > 1).then(|| ("backend".to_owned(), backend.into())));
        self
    }

    /// With the last ones of its ranks as servers of a key-value store.
    pub(crate) fn servers(mut self, count: usize) -> Self {
        let servers = ("CANDELABRUM_SERVERS".to_owned(), count.to_string());
        self.variables.extend((count > 0).then_some(servers));
        self
    }

    /// With its ranks on the first ones of these hosts, if there are any.
    pub(crate) fn on(self, hosts: Option<&Rc<SimulatedHosts>>) -> Self {
        Self { hosts: hosts.cloned(), ..self }
    }

    /// The same, which no other commit's build is compared with.
    pub(crate) fn other(self) -> Self {
        Self { is_ours: false, ..self }
    }

    /// The same player in another program.
    pub(crate) fn in_program(&self, program: &Path) -> Self {
        let mut twin = self.clone();
        twin.words[0] = program.display().to_string();
        twin
    }

    /// Whether it is one process with one thread that computes.
    pub(crate) fn is_serial(&self) -> bool {
        let one = ("OMP_NUM_THREADS".to_owned(), "1".to_owned());
        self.ranks == 1 && self.variables.contains(&one)
    }

    pub(crate) fn commands(&self) -> Result<Vec<Command>> {
        let Self { ranks, by_mpi, hosts, .. } = self;
        let start = |rank: usize, words: &[String]| {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            if let Some(hosts) = hosts {
                command = hosts.command(rank, &words.join(" "));
            }
            command.env_remove("CANDLE_NUM_THREADS");
            command.envs(self.variables.iter().map(|(name, value)| (name, value)));
            command
        };
        if *by_mpi {
            let mut words = ["mpiexec", "--bind-to", "none", "-n"].map(str::to_owned).to_vec();
            words.push(ranks.to_string());
            words.extend(hosts.iter().flat_map(|hosts| hosts.options_of_mpiexec(*ranks)));
            words.extend(self.words.iter().cloned());
            let mut mpiexec = start(0, &words);
            mpiexec.envs(OPEN_MPI);
            return Ok(vec![mpiexec]);
        }
        if *ranks == 1 {
            return Ok(vec![start(0, &self.words)]);
        }
        let (local_ranks, master, port, device) = match hosts {
            Some(_) => (1, address(0), 29500, DEVICE),
            // Whatever the name of this host is.
            None => (*ranks, "127.0.0.1".to_owned(), free_port()?, "lo"),
        };
        let of = |rank: usize| {
            let mut command = start(rank, &self.words);
            let numbers = [
                ("RANK", rank),
                ("LOCAL_RANK", rank % local_ranks),
                ("WORLD_SIZE", *ranks),
                ("LOCAL_WORLD_SIZE", local_ranks),
                ("MASTER_PORT", port.into()),
            ];
            command.envs(numbers.map(|(name, value)| (name, value.to_string())));
            command.env("MASTER_ADDR", &master).env("GLOO_SOCKET_IFNAME", device);
            command
        };
        Ok((0..*ranks).map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::display;

    fn shown(ranks: usize, backend: &str) -> Vec<String> {
        let player = Player::new(Path::new("rank")).args(["--batch-size", "64"]).threads(1);
        player.ranks(ranks, backend).commands().unwrap().iter().map(display).collect()
    }

    #[test]
    fn every_rank_knows_its_place() {
        let ranks = shown(2, "local");
        for word in ["LOCAL_RANK=1", "WORLD_SIZE=2", "OMP_NUM_THREADS=1", "rank --batch-size 64"] {
            assert!(ranks[1].contains(word), "{word}: {ranks:?}");
        }
        let port = |text: &str| {
            text.split("MASTER_PORT=").nth(1).unwrap().split(' ').next().map(str::to_owned)
        };
        assert_eq!(port(&ranks[0]), port(&ranks[1]));
    }

    #[test]
    fn one_process_and_mpiexec_are_one_command() {
        let (one, mpi) = (shown(1, "local"), shown(3, "mpi"));
        assert!(one.len() == 1 && !one[0].contains("RANK="), "{one:?}");
        assert!(mpi[0].contains("mpiexec --bind-to none -n 3 rank --batch-size 64"), "{mpi:?}");
    }
}
