//! Groups of ranks: real processes with a time limit. No process survives its test.

use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use candelabrum_dist::{Error, World};
use candelabrum_testkit::leftovers::assert_nothing_is_left;
pub(crate) use candelabrum_testkit::ranks::Backend;
use candelabrum_testkit::ranks::RanksOf;
use candelabrum_testkit::{mpiexec, until};
use tempfile::TempDir;

/// The variable that names the case of a process.
const CASE: &str = "CANDELABRUM_CONFORMANCE_CASE";

/// The variable that marks the processes of one group, so that a test finds those that are left.
const MARK: &str = "CANDELABRUM_CONFORMANCE_GROUP";

/// The variable with a folder in which ranks leave notes for each other, whatever becomes of their group.
const NOTES: &str = "CANDELABRUM_CONFORMANCE_NOTES";

/// Exit status of a rank that got an error.
const FAILED: i32 = 3;

/// The case that this process was started for, if it is a rank.
pub(crate) fn case_to_run() -> Option<String> {
    std::env::var(CASE).ok()
}

/// Ends a rank as an error ends a program: prints it, reports it to the other ranks, and exits.
pub(crate) fn fail(world: Option<World>, error: &Error) -> ! {
    let rank = world.as_ref().map_or("?".to_owned(), |world| world.rank().to_string());
    // In one write, because mpiexec mixes the pieces that several ranks write.
    let line = format!("error of rank {rank}: {error}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error");
    if let Some(world) = world.filter(|_| !error.is_echo()) {
        world.abort(&error.to_string());
    }
    std::process::exit(FAILED);
}

fn note_of(rank: usize) -> PathBuf {
    PathBuf::from(std::env::var_os(NOTES).expect("the test sets it")).join(rank.to_string())
}

/// Leaves a note that this rank has come so far.
pub(crate) fn leave_note(rank: usize) {
    std::fs::write(note_of(rank), "").expect("a note");
}

/// Waits for the notes of other ranks.
pub(crate) fn wait_for_notes(ranks: &[usize]) {
    until("the notes of all ranks", || {
        ranks.iter().all(|&rank| note_of(rank).exists()).then_some(())
    });
}

/// Whether mpiexec is installed. Prints a line if not.
pub(crate) fn has_mpiexec() -> bool {
    mpiexec().is_some()
}

/// Whether ranks under mpiexec use MPI. Prints a line if not.
pub(crate) fn has_mpi() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    has_mpiexec()
        && *FOUND.get_or_init(|| {
            let there = Group::new(Backend::Mpi, 1, "backend").run().output().contains("over mpi");
            if !there {
                println!("left out: this is a build without the feature `mpi`");
            }
            there
        })
}

/// Whether there is a GPU and a backend for it. If not, prints a line, or fails with
/// `REQUIRE_GPUS=1`.
pub(crate) fn has_gpu() -> bool {
    let required = std::env::var("REQUIRE_GPUS").is_ok_and(|count| !matches!(&*count, "" | "0"));
    let ended = Group::new(Backend::Nccl, 2, "backend").run();
    let there = ended.output().contains("over nccl");
    assert!(there || !required, "REQUIRE_GPUS is set, and there is none: {}", ended.output());
    if !there {
        println!("left out: no GPU here, or a build without the feature `cuda`");
    }
    there
}

/// Ranks of a case, to be started.
pub(crate) struct Group {
    ranks: RanksOf,
    size: usize,
    job: String,
    notes: TempDir,
}

impl Group {
    pub(crate) fn new(backend: Backend, size: usize, case: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let job = format!("conformance-{}-{count}", std::process::id());
        let notes = tempfile::tempdir().expect("a folder");
        // A visible GPU must not change the backend that a test is about.
        let device = if backend == Backend::Nccl { "cuda:0" } else { "cpu" };
        let ranks = RanksOf::test("rank_main").over(backend).limit(Duration::from_secs(240));
        let ranks = ranks.env(CASE, case).env(MARK, &job).env(NOTES, notes.path().display());
        let ranks = ranks.env("CANDELABRUM_TIMEOUT", 40).env("CANDELABRUM_DEVICE", device);
        Self { ranks, size, job, notes }
    }

    /// Sets the time after which all ranks are killed and the test fails.
    pub(crate) fn limit(self, limit: Duration) -> Self {
        Self { ranks: self.ranks.limit(limit), ..self }
    }

    pub(crate) fn variable(self, name: &str, value: &str) -> Self {
        Self { ranks: self.ranks.env(name, value), ..self }
    }

    /// Sets an environment variable of one rank.
    pub(crate) fn variable_of(self, rank: usize, name: &str, value: &str) -> Self {
        Self { ranks: self.ranks.env_of(rank, name, value), ..self }
    }

    /// Sets the pretended host of each rank: one letter for each.
    pub(crate) fn hosts(self, hosts: &str) -> Self {
        let host = |group: Self, (rank, host)| group.variable_of(rank, "CANDELABRUM_HOST", host);
        hosts.split("").filter(|host| !host.is_empty()).enumerate().fold(self, host)
    }

    /// Starts the ranks and waits for their end.
    pub(crate) fn run(self) -> EndedProgram {
        let ranks = self.ranks.run(self.size);
        drop(self.notes);
        EndedProgram { job: self.job, ranks }
    }
}

/// A group whose processes have all ended.
pub(crate) struct EndedProgram {
    job: String,
    /// By rank; under mpiexec all ranks together.
    pub(crate) ranks: Vec<candelabrum_testkit::EndedProgram>,
}

impl EndedProgram {
    pub(crate) fn output(&self) -> String {
        let of = |rank: &candelabrum_testkit::EndedProgram| {
            format!("--- {:?}\n{}", rank.code, rank.text)
        };
        self.ranks.iter().map(of).collect()
    }

    pub(crate) fn all_succeeded(&self) -> bool {
        self.ranks.iter().all(candelabrum_testkit::EndedProgram::succeeded)
    }

    /// The longest time that a rank took.
    pub(crate) fn took(&self) -> Duration {
        self.ranks.iter().map(|rank| rank.took).max().unwrap_or_default()
    }

    /// The digests that the ranks printed after they had completed all cases.
    pub(crate) fn digests(&self) -> Vec<String> {
        let all = self.output();
        let after = all.split(" finished: digest ").skip(1);
        after.map(|text| text.chars().take(16).collect()).collect()
    }

    /// The milliseconds that each rank's last operation took to fail.
    pub(crate) fn noticed_ms(&self) -> Vec<u64> {
        let all = self.output();
        let after = all.split("noticed within ").skip(1);
        after.filter_map(|text| text.split(' ').next()?.parse().ok()).collect()
    }

    /// Asserts that so many ranks have noticed a fault, each within this time.
    #[track_caller]
    pub(crate) fn assert_noticed(&self, ranks: usize, limit_ms: u64) {
        let noticed = self.noticed_ms();
        assert!(
            noticed.len() == ranks && noticed.iter().all(|&ms| ms < limit_ms),
            "{noticed:?} ms"
        );
    }

    /// Whether a rank exited with an error, not by a signal.
    pub(crate) fn failed(&self, rank: usize) -> bool {
        self.ranks[rank].code == Some(FAILED)
    }

    /// Asserts that no process, socket or shared memory of the group is left on this machine.
    #[track_caller]
    pub(crate) fn assert_nothing_is_left(&self) {
        assert_nothing_is_left(MARK, &self.job);
    }
}
