//! The place of a rank as its own program says it, for programs that have a launcher of their own.

use super::DeviceChoice;
use crate::{Error, Result};

/// This process's place in a world, which [`World::join`](crate::World::join) joins.
///
/// `rank`, `local_rank` and `device` are this rank's own. All ranks have the same `world_size`, `job_id`,
/// `master_addr` and `master_port`, and the ranks of a host have the same `local_size`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorldConfig {
    /// This process's number, counted from 0. This is SINGA's `global_rank`.
    pub rank: usize,
    /// The number of processes.
    pub world_size: usize,
    /// This process's number on its host, counted from 0. A GPU is chosen by it.
    pub local_rank: usize,
    /// The number of processes on this host.
    pub local_size: usize,
    /// A text that all ranks of this job have, and no rank of another job. SINGA's `nccl_id` serves this purpose. A
    /// text that nobody can guess keeps other users away (`CANDELABRUM_SECRET` does so, too).
    pub job_id: String,
    /// The host of rank 0, a name or an address. It may be empty if all ranks are on one host.
    pub master_addr: String,
    /// The port at which rank 0 listens for the ranks of other hosts. It may be 0 if all ranks are on one host.
    pub master_port: u16,
    /// The device on which this rank computes.
    pub device: DeviceChoice,
}

impl WorldConfig {
    /// A rank of a world on one host: SINGA's `DistOpt(nccl_id, local_rank, world_size)`.
    pub fn on_one_host(job_id: impl Into<String>, local_rank: usize, world_size: usize) -> Self {
        Self {
            rank: local_rank,
            world_size,
            local_rank,
            local_size: world_size,
            job_id: job_id.into(),
            master_addr: String::new(),
            master_port: 0,
            device: DeviceChoice::Auto,
        }
    }

    /// Refuses what no world can be.
    ///
    /// # Errors
    /// [`Error::Setting`], which names the first field that does not fit.
    pub(super) fn check(&self) -> Result<()> {
        let &Self { rank, world_size, local_rank, local_size, .. } = self;
        let of = |number: usize, size: usize| format!("{number} of {size}");
        let is_named = world_size == 1 || !self.job_id.is_empty();
        let rules = [
            (world_size > 0, "world_size", "0".to_owned(), "at least 1"),
            (rank < world_size, "rank", of(rank, world_size), "below `world_size`"),
            (
                (1..=world_size).contains(&local_size),
                "local_size",
                of(local_size, world_size),
                "from 1 to `world_size`",
            ),
            (
                local_rank < local_size,
                "local_rank",
                of(local_rank, local_size),
                "below `local_size`",
            ),
            (
                is_named,
                "job_id",
                "empty".to_owned(),
                "a text that all ranks of this job have, and no rank of another job",
            ),
        ];
        match rules.into_iter().find(|(is_kept, ..)| !is_kept) {
            Some((_, setting, value, range)) => Err(Error::Setting { setting, value, range }),
            None if local_size < world_size => self.check_master(),
            None => Ok(()),
        }
    }

    /// Refuses an address of rank 0 at which no rank can call.
    pub(super) fn check_master(&self) -> Result<()> {
        let refuse = |setting, value: &str, range| {
            Err(Error::Setting { setting, value: value.to_owned(), range })
        };
        if self.master_addr.is_empty() {
            return refuse(
                "master_addr",
                "empty",
                "the host of rank 0, because other hosts call it",
            );
        }
        if self.master_port == 0 {
            return refuse("master_port", "0", "a port that is free on the host of rank 0");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_no_world_has_is_refused_by_its_field() {
        let good = WorldConfig::on_one_host("a job", 1, 4);
        good.check().unwrap();
        WorldConfig::on_one_host("", 0, 1).check().unwrap();
        let apart = WorldConfig {
            rank: 3,
            local_size: 2,
            master_addr: "node7".to_owned(),
            master_port: 29_500,
            ..good.clone()
        };
        apart.check().unwrap();
        for (config, words) in [
            (
                WorldConfig { world_size: 0, ..good.clone() },
                "world_size is 0: it must be at least 1",
            ),
            (
                WorldConfig { rank: 4, ..good.clone() },
                "rank is 4 of 4: it must be below `world_size`",
            ),
            (WorldConfig { local_size: 0, ..good.clone() }, "local_size is 0 of 4"),
            (WorldConfig { local_size: 5, ..good.clone() }, "local_size is 5 of 4"),
            (WorldConfig { local_rank: 4, ..good.clone() }, "local_rank is 4 of 4"),
            (WorldConfig { local_rank: 2, ..apart.clone() }, "local_rank is 2 of 2"),
            (WorldConfig { job_id: String::new(), ..good }, "job_id is empty"),
            (WorldConfig { master_addr: String::new(), ..apart.clone() }, "master_addr is empty"),
            (WorldConfig { master_port: 0, ..apart }, "master_port is 0"),
        ] {
            let error = config.check().unwrap_err();
            assert!(matches!(error, Error::Setting { .. }), "{error:?}");
            assert!(error.to_string().starts_with(words), "{words}: {error}");
        }
    }
}
