//! A barrier of all ranks by names that the launcher keeps, without the network of MPI.
//!
//! `MPI_Finalize` of MPICH 4.0.2 over UCX 1.13 can wait for ever. A rank closes its connections, and each
//! rank on another host has to answer, from within a call of MPI. After the last answer the rank waits for the
//! launcher, and gives no answers any more. So a rank hangs if it polls MPI while another rank is in
//! `MPI_Finalize`: the other rank gets its answer too early. Pull request 6596 of MPICH (2023) has
//! removed the wait. After this barrier no rank polls, and then the first rank calls `MPI_Finalize`.

use std::thread;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// The longest pause between two questions to the launcher.
const LONGEST: Duration = Duration::from_millis(50);

/// The shortest pause, about the time of a question and its answer.
const SHORTEST: Duration = Duration::from_millis(1);

/// Names that every rank of a job can publish and see.
pub(super) trait NameService {
    /// # Errors
    /// A launcher that keeps no names.
    fn publish(&self, name: &str) -> Result<()>;

    fn is_published(&self, name: &str) -> bool;
}

/// Whether ranks need this barrier before `MPI_Finalize` of the library with this text
/// (`MPI_Get_library_version`).
pub(super) fn is_needed(library: &str) -> bool {
    library.starts_with("MPICH") && library.contains("ch4:ucx")
}

/// Waits until all ranks wait here. `job` is a number that only this job has.
///
/// # Errors
/// [`Error::Mpi`] on all ranks if the launcher keeps no names, or a rank that does not come until
/// the deadline.
pub(super) fn wait(
    names: &impl NameService,
    job: u64,
    rank: usize,
    world_size: usize,
    deadline: Duration,
) -> Result<()> {
    let start = Instant::now();
    let here = |rank: usize| format!("candelabrum-{job:x}-rank-{rank}");
    let all = format!("candelabrum-{job:x}-all");
    let until_published = |name: &str, missing: usize| {
        while !names.is_published(name) {
            let waited = start.elapsed();
            if waited > deadline {
                let (during, missing) = ("the end of the MPI job".to_owned(), missing.to_string());
                return Err(Error::Timeout { rank, during, missing, waited });
            }
            thread::sleep((waited / 8).clamp(SHORTEST, LONGEST));
        }
        Ok(())
    };
    names.publish(&here(rank))?;
    if rank > 0 {
        return until_published(&all, 0);
    }
    (1..world_size).try_for_each(|other| until_published(&here(other), other))?;
    names.publish(&all)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use parking_lot::Mutex;

    use super::*;

    /// Names of one process.
    #[derive(Default)]
    struct LocalNames(Mutex<BTreeSet<String>>);

    impl NameService for LocalNames {
        fn publish(&self, name: &str) -> Result<()> {
            self.0.lock().insert(name.to_owned());
            Ok(())
        }

        fn is_published(&self, name: &str) -> bool {
            self.0.lock().contains(name)
        }
    }

    #[test]
    fn no_rank_passes_before_all_ranks_have_come() {
        let (names, come) = (LocalNames::default(), AtomicUsize::new(0));
        for job in 0..20 {
            come.store(0, Ordering::SeqCst);
            thread::scope(|scope| {
                for rank in 0..4 {
                    let (names, come) = (&names, &come);
                    scope.spawn(move || {
                        come.fetch_add(1, Ordering::SeqCst);
                        wait(names, job, rank, 4, Duration::from_secs(60)).expect("all ranks come");
                        assert_eq!(come.load(Ordering::SeqCst), 4, "rank {rank} of job {job}");
                    });
                }
            });
        }
    }

    #[test]
    fn a_rank_that_does_not_come_is_named_at_the_deadline() {
        let names = LocalNames::default();
        names.publish("candelabrum-7-rank-1").expect("a name");
        let error = wait(&names, 7, 0, 3, Duration::ZERO).expect_err("rank 2 is missing");
        let named = matches!(&error, Error::Timeout { rank: 0, missing, .. } if missing == "2");
        assert!(named, "{error}");
    }

    #[test]
    fn only_mpich_over_ucx_needs_the_barrier() {
        let mpich = "MPICH Version:\t4.0.2\nMPICH Device:\tch4:ucx\n";
        assert!(is_needed(mpich));
        assert!(!is_needed(&mpich.replace("ucx", "ofi")));
        assert!(!is_needed("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4"));
        assert!(!is_needed("Intel(R) MPI Library 2021.12 for Linux* OS"));
    }
}
