//! The teams of this process. A thread has a team for the time of one loop.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::available_parallelism;

use super::crew::Crew;
use super::job::Work;
use super::mark;

/// The teams that nobody has, and the threads of those that somebody has.
struct Teams {
    idle: Vec<Crew>,
    busy: usize,
}

static TEAMS: Mutex<Teams> = Mutex::new(Teams { idle: Vec::new(), busy: 0 });

/// Calls `work` with the number of each part, on a team of `members`. If another thread has a team, and
/// there are not enough cores for both, this thread works alone.
///
/// # Panics
/// If a call panicked.
pub(super) fn run(members: usize, parts: usize, work: Work<'_>) {
    Loan::new(members).run(parts, work);
}

/// The most teams that nobody has. A program with teams of many sizes ends the oldest ones.
const MOST_IDLE: usize = 4;

/// A team for the time of one loop, or none, and the mark that this thread works on parts.
struct Loan(Option<Crew>);

impl Loan {
    fn new(members: usize) -> Self {
        mark::set(true);
        let mut teams = TEAMS.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = members - 1;
        if teams.busy > 0 && teams.busy + threads >= cores() {
            return Self(None);
        }
        teams.busy += threads;
        // The team that was given back last, whose threads are the most awake.
        let place = teams.idle.iter().rposition(|crew| crew.members() == members);
        let crew = place.map(|place| teams.idle.remove(place));
        drop(teams);
        Self(Some(crew.unwrap_or_else(|| Crew::new(members, cores()))))
    }

    fn run(&mut self, parts: usize, work: Work<'_>) {
        match &mut self.0 {
            Some(crew) => crew.run(parts, work),
            None => (0..parts).for_each(work),
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        mark::set(false);
        if let Some(crew) = self.0.take() {
            let mut teams = TEAMS.lock().unwrap_or_else(PoisonError::into_inner);
            teams.busy -= crew.members() - 1;
            if crew.is_complete() {
                teams.idle.push(crew);
            }
            if teams.idle.len() > MOST_IDLE {
                teams.idle.remove(0);
            }
        }
    }
}

/// The cores of this process. The standard library reads files to find them, so this is done once.
pub(super) fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| available_parallelism().map_or(1, usize::from))
}
