//! The processes of a job that are workers, and those that are servers.

use std::ops::Range;

use candelabrum_dist::World;

use crate::{Error, Result};

/// The division of a job's processes: the first ones are workers, the last ones servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoleAssignment {
    rank: usize,
    workers: usize,
    servers: usize,
}

/// What a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessRole {
    /// It trains. The number counts workers from 0.
    Worker(usize),
    /// It holds values and updates them. The number counts servers from 0.
    Server(usize),
}

impl RoleAssignment {
    /// The roles of all processes of a job.
    ///
    /// # Errors
    /// [`Error::RoleAssignment`] if there is no server.
    pub(crate) fn new(world: &World) -> Result<Self> {
        let everyone = world.everyone();
        Self::from_sizes(everyone.rank(), everyone.world_size(), world.servers())
    }

    fn from_sizes(rank: usize, world_size: usize, servers: usize) -> Result<Self> {
        if servers == 0 {
            let what = format!(
                "a distributed store needs servers, and none of the {world_size} rank(s) is one: \
                 start the program with `--servers S`, or set CANDELABRUM_SERVERS"
            );
            return Err(Error::Roles { what });
        }
        match world_size.checked_sub(servers) {
            Some(workers) if workers > 0 => Ok(Self { rank, workers, servers }),
            _ => {
                let what = format!(
                    "{servers} of {world_size} rank(s) are to be servers, so no worker is left"
                );
                Err(Error::Roles { what })
            }
        }
    }

    /// This rank's role.
    pub(crate) fn role(&self) -> ProcessRole {
        match self.rank.checked_sub(self.workers) {
            None => ProcessRole::Worker(self.rank),
            Some(server) => ProcessRole::Server(server),
        }
    }

    /// The workers' ranks.
    pub(crate) fn workers(&self) -> Range<usize> {
        0..self.workers
    }

    /// The servers' ranks.
    pub(crate) fn servers(&self) -> Range<usize> {
        self.workers..self.workers + self.servers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ranks_are_servers() {
        let role = |rank| RoleAssignment::from_sizes(rank, 5, 2).unwrap().role();
        let expected = [
            ProcessRole::Worker(0),
            ProcessRole::Worker(1),
            ProcessRole::Worker(2),
            ProcessRole::Server(0),
            ProcessRole::Server(1),
        ];
        assert_eq!([role(0), role(1), role(2), role(3), role(4)], expected);
        assert!(RoleAssignment::from_sizes(0, 2, 2).unwrap_err().to_string().contains("2 of 2"));
        assert!(RoleAssignment::from_sizes(0, 2, 0).unwrap_err().to_string().contains("--servers"));
    }
}
