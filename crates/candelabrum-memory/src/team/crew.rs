//! The threads of one team, and how they divide a loop among themselves.
//!
//! A loop has a number, its *generation*. The parts of a loop are divided into one range for each member.
//! A range is one atomic word: the generation, and the number of parts that nobody has taken. To take a
//! part is to reduce this number, which fails if the range belongs to another generation. So a thread that
//! comes late takes nothing, and whoever has taken a part knows that the caller waits for it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{hint, mem, thread};

use super::job::{Place, Work};
use super::mark;

/// The time for which a thread waits actively for the next loop, or for the last parts of a loop. Between
/// the loops of a training step there are some tens of microseconds at most. In a team of more threads than
/// there are cores nobody waits actively, because another member needs the core.
pub(super) const ACTIVE: Duration = Duration::from_micros(200);

/// The pauses of a processor, some tens of nanoseconds each, between two offers to let another thread
/// run. The communication of a rank is such a thread.
const PAUSES: u32 = 64;

/// A word that shares its cache line with no other one. Processors fetch two lines of 64 bytes at once.
#[repr(align(128))]
#[derive(Default)]
struct Line<T>(T);

/// What the members of a team share.
struct Shared {
    /// The number of the present loop.
    generation: Line<AtomicU32>,
    place: Place,
    /// For each member the generation in the upper half, and the parts left in the lower half.
    ranges: Box<[Line<AtomicU64>]>,
    /// The parts of the present loop whose work has not returned.
    unfinished: Line<AtomicUsize>,
    /// The payloads of the panics of the present loop.
    panics: Mutex<Vec<Box<dyn Any + Send>>>,
    active: Duration,
    sleepers: Line<AtomicUsize>,
    /// Held while a thread decides to sleep.
    bed: Mutex<()>,
    alarm: Condvar,
    /// Whether the caller sleeps until all parts are finished.
    caller_sleeps: Line<AtomicBool>,
    finished: Condvar,
    /// Whether the threads are to end instead of working on the next generation.
    ends: AtomicBool,
}

/// The threads of a team. Its owner is their caller.
pub(super) struct Crew {
    shared: Arc<Shared>,
    threads: usize,
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        self.shared.begin(self.shared.generation.0.load(Ordering::Relaxed).wrapping_add(1));
    }
}

impl Crew {
    /// Starts the threads for a team of `members`, the caller among them. If the system refuses to start
    /// one, the team has fewer threads, and the others do its parts.
    pub(super) fn new(members: usize, cores: usize) -> Self {
        let shared = Arc::new(Shared {
            generation: Line::default(),
            place: Place::new(),
            ranges: (0..members).map(|_| Line::default()).collect(),
            unfinished: Line::default(),
            panics: Mutex::new(Vec::new()),
            active: if members > cores { Duration::ZERO } else { ACTIVE },
            sleepers: Line::default(),
            bed: Mutex::new(()),
            alarm: Condvar::new(),
            caller_sleeps: Line::default(),
            finished: Condvar::new(),
            ends: AtomicBool::new(false),
        });
        let mut threads = 0;
        for member in 1..members {
            let shared = Arc::clone(&shared);
            let name = format!("team-{member}");
            let begun = thread::Builder::new().name(name).spawn(move || shared.serve(member));
            if begun.is_err() {
                break;
            }
            threads += 1;
        }
        Self { shared, threads }
    }

    /// Whether the system has started all threads.
    pub(super) fn is_complete(&self) -> bool {
        self.threads + 1 == self.members()
    }

    /// The number of members, the caller among them.
    pub(super) fn members(&self) -> usize {
        self.shared.ranges.len()
    }

    /// Calls `work` with the number of each part and returns when all calls have returned.
    ///
    /// # Panics
    /// If a call panicked.
    pub(super) fn run(&mut self, parts: usize, work: Work<'_>) {
        let shared = &*self.shared;
        let generation = shared.generation.0.load(Ordering::Relaxed).wrapping_add(1);
        // SAFETY: a thread calls `get`, and uses the job, only between taking a part and reporting it as
        // finished. All parts of the loop before have been reported, `&mut self` keeps other callers
        // away, and this function returns only when all parts of this loop have been reported.
        unsafe { shared.place.set(work, parts) };
        shared.unfinished.0.store(parts, Ordering::Relaxed);
        for (member, range) in shared.ranges.iter().enumerate() {
            let (start, end) = range_of(member, self.members(), parts);
            let word = u64::from(generation) << 32 | (end - start) as u64;
            range.0.store(word, Ordering::Release);
        }
        shared.begin(generation);
        shared.work(0, generation);
        if !shared.wait_actively(|| shared.unfinished.0.load(Ordering::SeqCst) == 0) {
            shared.sleep_until_finished();
        }
        let panics = mem::take(&mut *shared.panics.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(first) = panics.into_iter().next() {
            resume_unwind(first);
        }
    }
}

impl Shared {
    /// The life of a thread of the team.
    fn serve(&self, member: usize) {
        mark::set(true);
        let mut seen = 0;
        loop {
            seen = self.next_generation(seen);
            if self.ends.load(Ordering::Relaxed) {
                return;
            }
            self.work(member, seen);
        }
    }

    /// Shows a generation to all threads.
    fn begin(&self, generation: u32) {
        // A thread that goes to sleep counts itself before it looks at the generation, in the same order
        // of all threads. So it sees the new generation, or it is seen here.
        self.generation.0.store(generation, Ordering::SeqCst);
        if self.sleepers.0.load(Ordering::SeqCst) > 0 {
            drop(self.bed.lock().unwrap_or_else(PoisonError::into_inner));
            self.alarm.notify_all();
        }
    }

    /// Waits for another generation than `seen`.
    fn next_generation(&self, seen: u32) -> u32 {
        let generation = || self.generation.0.load(Ordering::Acquire);
        match self.wait_actively(|| generation() != seen) {
            true => generation(),
            false => self.sleep(seen),
        }
    }

    /// Waits for a condition without sleeping, but not for long. Returns whether it holds.
    fn wait_actively(&self, holds: impl Fn() -> bool) -> bool {
        let mut since = None;
        loop {
            for _ in 0..PAUSES {
                if holds() {
                    return true;
                }
                hint::spin_loop();
            }
            if since.get_or_insert_with(Instant::now).elapsed() >= self.active {
                return false;
            }
            thread::yield_now();
        }
    }

    /// The caller sleeps until all parts of the present loop have been reported.
    fn sleep_until_finished(&self) {
        let mut bed = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
        // The thread that reports the last part sees this, or its report is seen here.
        self.caller_sleeps.0.store(true, Ordering::SeqCst);
        while self.unfinished.0.load(Ordering::SeqCst) > 0 {
            bed = self.finished.wait(bed).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.0.store(false, Ordering::Relaxed);
    }

    /// Reports a part of the present loop as finished.
    fn report(&self) {
        let is_last = self.unfinished.0.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_last && self.caller_sleeps.0.load(Ordering::SeqCst) {
            drop(self.bed.lock().unwrap_or_else(PoisonError::into_inner));
            self.finished.notify_one();
        }
    }

    fn sleep(&self, seen: u32) -> u32 {
        let mut bed = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        let generation = loop {
            let generation = self.generation.0.load(Ordering::SeqCst);
            if generation != seen {
                break generation;
            }
            bed = self.alarm.wait(bed).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
        generation
    }

    /// Works on parts of a loop, those of this member first, until nobody has any left.
    fn work(&self, member: usize, generation: u32) {
        let members = self.ranges.len();
        for number in (member..members).chain(0..member) {
            while let Some(left) = self.take(number, generation) {
                // SAFETY: a part has been taken and not been reported, so `run` waits and sets no job.
                let job = unsafe { self.place.get() };
                let (_, end) = range_of(number, members, job.parts());
                let result = catch_unwind(AssertUnwindSafe(|| job.work_on(end - left)));
                if let Err(payload) = result {
                    // Dropped by the caller, because to drop a payload may panic, too.
                    self.panics.lock().unwrap_or_else(PoisonError::into_inner).push(payload);
                }
                self.report();
            }
        }
    }

    /// Takes a part of a member's range. Returns how many were left, this one among them.
    fn take(&self, member: usize, generation: u32) -> Option<usize> {
        let range = &self.ranges[member].0;
        let mut word = range.load(Ordering::Acquire);
        loop {
            let left = word & u64::from(u32::MAX);
            if word >> 32 != u64::from(generation) || left == 0 {
                return None;
            }
            match range.compare_exchange_weak(word, word - 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(left as usize),
                Err(now) => word = now,
            }
        }
    }
}

/// The parts of a member: from the first, to before the second.
fn range_of(member: usize, members: usize, parts: usize) -> (usize, usize) {
    (member * parts / members, (member + 1) * parts / members)
}
