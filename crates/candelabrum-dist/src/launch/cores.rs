//! The cores on which a rank computes.
//!
//! The ranks of a host share the cores of their launcher. A launcher may bind each rank to cores of its own (srun, Open MPI).
//! Then a rank sees only these, and dividing them once more among the ranks would leave most of them idle.

use std::fs;
use std::thread::available_parallelism;

use super::ancestors::nearest_without;
use super::launchers::{LAUNCHERS, Launcher};
use super::variables::Variables;

/// The compute threads of one of `local_size` ranks that `launcher` has started on this host, this one.
pub(super) fn threads(launcher: Launcher, local_size: usize) -> usize {
    let cores = CoreCounts {
        available: available_parallelism().map_or(1, usize::from),
        own: allowed("self"),
        of_launcher: match launcher {
            Launcher::Slurm => {
                Variables::of_process().number(&["SLURM_CPUS_ON_NODE"]).ok().flatten()
            }
            _ => allowed_of_launcher(launcher),
        },
    };
    cores.share(local_size)
}

/// Numbers of cores.
struct CoreCounts {
    /// Those that this rank may use, as far as its control group gives them the time.
    available: usize,
    /// Those that this rank may use.
    own: Option<usize>,
    /// Those that the launcher has for all ranks of this host.
    of_launcher: Option<usize>,
}

impl CoreCounts {
    /// The cores of one of `ranks` ranks.
    fn share(&self, ranks: usize) -> usize {
        let &Self { available, own, of_launcher } = self;
        // A limit of processor time holds for all ranks together.
        let is_limited = own.is_some_and(|own| available < own);
        let all = of_launcher.filter(|_| !is_limited).unwrap_or(available);
        (all / ranks.max(1)).clamp(1, available)
    }
}

/// The cores that the launcher's process on this host may use.
fn allowed_of_launcher(launcher: Launcher) -> Option<usize> {
    let variables = LAUNCHERS.iter().find(|variables| variables.launcher == launcher)?;
    let process = nearest_without(variables.rank)?;
    allowed(process.split_once('-')?.0)
}

/// The cores that a process may use.
fn allowed(process: &str) -> Option<usize> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:"))?;
    let cores =
        mask.chars().filter_map(|digit| digit.to_digit(16)).map(u32::count_ones).sum::<u32>();
    usize::try_from(cores).ok().filter(|&cores| cores > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_divided_once() {
        for (available, own, of_launcher, ranks, threads) in [
            // Nothing is known of a launcher, or it binds nothing.
            (8, Some(8), None, 2, 4),
            (8, None, None, 16, 1),
            (32, Some(32), Some(32), 4, 8),
            // Each rank has cores of its own, as with srun -n4 -c8 or mpiexec --map-by slot:PE=8.
            (8, Some(8), Some(32), 4, 8),
            (2, Some(2), Some(2), 2, 1),
            // The ranks of a socket share its cores.
            (16, Some(16), Some(32), 8, 4),
            // Ranks that nobody bound see the cores of other jobs, too.
            (64, Some(64), Some(32), 4, 8),
            // A container has the time of 8 of 64 cores.
            (8, Some(64), Some(64), 4, 2),
            (1, Some(1), Some(64), 4, 1),
        ] {
            let cores = CoreCounts { available, own, of_launcher };
            assert_eq!(cores.share(ranks), threads, "{available} {own:?} {of_launcher:?} {ranks}");
        }
    }

    #[test]
    fn a_process_that_nobody_has_bound_has_the_cores_of_its_parent() {
        let own = allowed("self").expect("this process's cores");
        assert!(own >= available_parallelism().map_or(1, usize::from));
        let parent = nearest_without("CANDELABRUM_NOBODY_SETS_THIS").expect("a parent");
        let (parent, _) = parent.split_once('-').expect("its number");
        assert_eq!(allowed(parent), Some(own));
        assert_eq!(allowed_of_launcher(Launcher::Alone), None);
    }
}
