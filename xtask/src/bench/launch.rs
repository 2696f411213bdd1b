//! Ways to start a program to measure: one process, or the ranks of one world.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
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
    program: PathBuf,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
}

/// The processes of a call.
#[derive(Clone, Debug)]
pub(crate) enum Launch {
    One,
    /// So many ranks, which find each other by torchrun's variables.
    Ranks(usize),
    /// So many ranks, started by mpiexec.
    Mpi(usize),
    /// A rank on each of two hosts, by torchrun's variables.
    RanksOn(Rc<Hosts>),
    /// A rank on each of two hosts, started by mpiexec.
    MpiOn(Rc<Hosts>),
}

impl Call {
    pub(crate) fn new(program: &Path) -> Self {
        let variables = vec![("CANDELABRUM_TIMEOUT".to_owned(), STANDSTILL.to_owned())];
        Self { program: program.to_owned(), arguments: Vec::new(), variables }
    }

    /// The same call of another program.
    pub(crate) fn of(&self, program: &Path) -> Self {
        Self { program: program.to_owned(), ..self.clone() }
    }

    pub(crate) fn args<T: ToString>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.to_string()));
        self
    }

    /// An option and its value.
    pub(crate) fn option(self, name: &str, value: impl ToString + Copy) -> Self {
        self.args([name.to_owned(), value.to_string()])
    }

    pub(crate) fn env(mut self, name: &str, value: impl ToString + Copy) -> Self {
        self.variables.push((name.to_owned(), value.to_string()));
        self
    }

    /// Whether it has one thread that computes.
    pub(crate) fn is_serial(&self) -> bool {
        self.variables.iter().any(|(name, value)| name == "OMP_NUM_THREADS" && value == "1")
    }

    /// Limits the pools of threads of all libraries. Our player limits candle's second pool itself.
    pub(crate) fn threads(self, count: usize) -> Self {
        let variables = ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"];
        variables.into_iter().fold(self, |call, name| call.env(name, count))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        self.with_variables(command)
    }

    fn with_variables(&self, mut command: Command) -> Command {
        command.env_remove("CANDLE_NUM_THREADS");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

impl Launch {
    pub(crate) fn commands(&self, call: &Call) -> Result<Vec<Command>> {
        match self {
            Self::One => Ok(vec![call.command()]),
            Self::Ranks(ranks) => {
                let port = free_port()?;
                let of = |rank| {
                    // All ranks are on this host, whatever its name is.
                    let mut call = call.clone().env("GLOO_SOCKET_IFNAME", "lo");
                    let world = torchrun(rank, *ranks, *ranks, "127.0.0.1", port);
                    call.variables.extend(world.map(|(name, value)| (name.to_owned(), value)));
                    call.command()
                };
                Ok((0..*ranks).map(of).collect())
            }
            Self::Mpi(ranks) => {
                let mut mpiexec = Command::new("mpiexec");
                mpiexec.args(["--bind-to", "none", "-n", &ranks.to_string()]);
                mpiexec.arg(&call.program).args(&call.arguments);
                // As variables, because the mpiexec of another MPI would refuse the options.
                for variable in [
                    "OMPI_ALLOW_RUN_AS_ROOT",
                    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                    "OMPI_MCA_rmaps_base_oversubscribe",
                ] {
                    mpiexec.env(variable, "1");
                }
                Ok(vec![call.with_variables(mpiexec)])
            }
            Self::MpiOn(hosts) => {
                Ok(vec![call.with_variables(hosts.mpiexec(&call.program, &call.arguments))])
            }
            Self::RanksOn(hosts) => {
                let of = |rank| {
                    let mut words = vec!["env".to_owned(), format!("GLOO_SOCKET_IFNAME={DEVICE}")];
                    let own =
                        call.variables.iter().map(|(name, value)| (name.as_str(), value.clone()));
                    let world = torchrun(rank, 2, 1, ADDRESSES[0], 29500);
                    words.extend(own.chain(world).map(|(name, value)| format!("{name}={value}")));
                    words.push(call.program.display().to_string());
                    words.extend(call.arguments.iter().cloned());
                    hosts.command(rank, &words.join(" "))
                };
                Ok(vec![of(0), of(1)])
            }
        }
    }
}

/// The variables of a rank, of whose world so many ranks are on its host.
fn torchrun(
    rank: usize,
    world: usize,
    local: usize,
    address: &str,
    port: u16,
) -> [(&'static str, String); 6] {
    [
        ("RANK", rank.to_string()),
        ("LOCAL_RANK", (rank % local).to_string()),
        ("WORLD_SIZE", world.to_string()),
        ("LOCAL_WORLD_SIZE", local.to_string()),
        ("MASTER_ADDR", address.to_owned()),
        ("MASTER_PORT", port.to_string()),
    ]
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
        let ranks = shown(&Launch::Ranks(2));
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
        let [one, mpi] = [Launch::One, Launch::Mpi(3)].map(|launch| shown(&launch));
        assert!(one.len() == 1 && !one[0].contains("RANK="), "{one:?}");
        assert!(mpi[0].contains("mpiexec --bind-to none -n 3 rank --batch-size 64"), "{mpi:?}");
    }
}
