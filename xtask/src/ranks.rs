//! Ways to start the ranks of one world on this machine.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// The seconds for which our ranks may be stopped while other contenders are measured, without a
/// timeout. The value of the variable CANDELABRUM_TIMEOUT.
pub(crate) const STANDSTILL: &str = "86400";

/// One command that starts all ranks, by mpiexec.
pub(crate) fn mpiexec(ranks: usize, program: &Path) -> Command {
    let mut mpiexec = Command::new("mpiexec");
    mpiexec.args(["--bind-to", "none", "-n", &ranks.to_string()]).arg(program);
    // As variables, because the mpiexec of another MPI would refuse the options.
    for variable in [
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
        "OMPI_MCA_rmaps_base_oversubscribe",
    ] {
        mpiexec.env(variable, "1");
    }
    mpiexec
}

/// A command for each rank. The ranks find each other by torchrun's variables.
pub(crate) fn side_by_side(
    ranks: usize,
    command: impl Fn() -> Result<Command>,
) -> Result<Vec<Command>> {
    let port = free_port()?.to_string();
    let start = |rank: usize| {
        let mut command = command()?;
        for (name, value) in [("RANK", rank), ("LOCAL_RANK", rank)] {
            command.env(name, value.to_string());
        }
        for name in ["WORLD_SIZE", "LOCAL_WORLD_SIZE"] {
            command.env(name, ranks.to_string());
        }
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        Ok(command)
    };
    (0..ranks).map(start).collect()
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

    #[test]
    fn every_rank_knows_its_place() {
        let ranks = side_by_side(2, || Ok(Command::new("rank"))).unwrap();
        let shown: Vec<String> = ranks.iter().map(display).collect();
        assert!(
            shown[1].contains("LOCAL_RANK=1") && shown[1].contains("WORLD_SIZE=2"),
            "{shown:?}"
        );
        let port = |text: &str| text.split("MASTER_PORT=").nth(1).unwrap().to_owned();
        assert_eq!(port(&shown[0]).split(' ').next(), port(&shown[1]).split(' ').next());
    }
}
