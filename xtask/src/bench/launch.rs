//! Ways to start a program to measure: one process, or the ranks of one world.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result};

use super::hosts::{ADDRESSES, DEVICE, Hosts};

/// The seconds for which our ranks may be stopped while other players are measured, without a
/// timeout.
const STANDSTILL: &str = "86400";

/// A program with its arguments and variables, from which commands are made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    /// The program, then its arguments.
    words: Vec<String>,
    variables: Vec<(String, String)>,
}

/// The processes of a call.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) ranks: usize,
    /// mpiexec starts the ranks. Others find each other by torchrun's variables.
    pub(crate) by_mpi: bool,
    /// Two hosts with a rank each.
    pub(crate) hosts: Option<Rc<Hosts>>,
}

impl Call {
    pub(crate) fn new(program: &Path) -> Self {
        let variables = vec![("CANDELABRUM_TIMEOUT".to_owned(), STANDSTILL.to_owned())];
        Self { words: vec![program.display().to_string()], variables }
    }

    /// The same call of another program.
    pub(crate) fn of(&self, program: &Path) -> Self {
        let words = [&Self::new(program).words, &self.words[1..]].concat();
        Self { words, ..self.clone() }
    }

    pub(crate) fn args<T: ToString>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.words.extend(arguments.into_iter().map(|argument| argument.to_string()));
        self
    }

    /// An option and its value.
    pub(crate) fn option(self, name: &str, value: impl ToString + Copy) -> Self {
        self.args([name.to_owned(), value.to_string()])
    }

    /// Limits the pools of threads of all libraries. Our player limits candle's second pool itself.
    pub(crate) fn threads(mut self, count: usize) -> Self {
        let names = ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"];
        self.variables.extend(names.map(|name| (name.to_owned(), count.to_string())));
        self
    }

    /// Whether it has one thread that computes.
    pub(crate) fn is_serial(&self) -> bool {
        self.variables.iter().any(|(name, value)| name == "OMP_NUM_THREADS" && value == "1")
    }
}

impl Launch {
    /// So many ranks on this host, or one process that is no rank.
    pub(crate) fn here(ranks: usize, by_mpi: bool) -> Self {
        Self { ranks, by_mpi, hosts: None }
    }

    pub(crate) fn commands(&self, call: &Call) -> Result<Vec<Command>> {
        let Self { ranks, by_mpi, hosts } = self;
        let start = |rank: usize, words: &[String]| {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            if let Some(hosts) = hosts {
                command = hosts.command(rank, &words.join(" "));
            }
            command.env_remove("CANDLE_NUM_THREADS");
            command.envs(call.variables.iter().map(|(name, value)| (name, value)));
            command
        };
        if *by_mpi {
            let mut words = ["mpiexec", "--bind-to", "none", "-n"].map(str::to_owned).to_vec();
            words.push(ranks.to_string());
            words.extend(hosts.iter().flat_map(|hosts| hosts.options_of_mpiexec()));
            words.extend(call.words.iter().cloned());
            let mut mpiexec = start(0, &words);
            // As variables, because the mpiexec of another MPI would refuse the options.
            let root = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
            let names = root.into_iter().chain(["OMPI_MCA_rmaps_base_oversubscribe"]);
            mpiexec.envs(names.map(|name| (name, "1")));
            return Ok(vec![mpiexec]);
        }
        if *ranks == 1 {
            return Ok(vec![start(0, &call.words)]);
        }
        let (local_ranks, address, port, device) = match hosts {
            Some(_) => (1, ADDRESSES[0], 29500, DEVICE),
            // Whatever the name of this host is.
            None => (*ranks, "127.0.0.1", free_port()?, "lo"),
        };
        let of = |rank: usize| {
            let mut command = start(rank, &call.words);
            let numbers = [
                ("RANK", rank),
                ("LOCAL_RANK", rank % local_ranks),
                ("WORLD_SIZE", *ranks),
                ("LOCAL_WORLD_SIZE", local_ranks),
                ("MASTER_PORT", port.into()),
            ];
            command.envs(numbers.map(|(name, value)| (name, value.to_string())));
            command.env("MASTER_ADDR", address).env("GLOO_SOCKET_IFNAME", device);
            command
        };
        Ok((0..*ranks).map(of).collect())
    }
}

/// A port on which no program listens now.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::display;

    fn shown(launch: &Launch) -> Vec<String> {
        let call = Call::new(Path::new("rank")).option("--batch-size", 64).threads(1);
        launch.commands(&call).unwrap().iter().map(display).collect()
    }

    #[test]
    fn every_rank_knows_its_place() {
        let ranks = shown(&Launch::here(2, false));
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
        let [one, mpi] =
            [(1, false), (3, true)].map(|(ranks, by_mpi)| shown(&Launch::here(ranks, by_mpi)));
        assert!(one.len() == 1 && !one[0].contains("RANK="), "{one:?}");
        assert!(mpi[0].contains("mpiexec --bind-to none -n 3 rank --batch-size 64"), "{mpi:?}");
    }
}
