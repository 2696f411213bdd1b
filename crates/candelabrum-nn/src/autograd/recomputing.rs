//! What a second forward pass of a block must repeat, and what it must leave out.
//!
//! The seeds of noise that the first pass has drawn are noted, and the second pass gets the same ones, so dropout
//! drops the same elements. Running statistics change in the first pass alone ([`is_active`]).

use std::cell::RefCell;
use std::mem;

thread_local! {
    static TAPE: RefCell<Tape> = RefCell::default();
}

/// The seeds of this thread's passes through blocks. One block may be inside another one.
#[derive(Debug, Default)]
struct Tape {
    /// The first passes under way.
    recordings: usize,
    /// What they have drawn.
    drawn: Vec<u64>,
    /// The second pass under way.
    replay: Option<Replay>,
}

#[derive(Debug)]
struct Replay {
    seeds: Vec<u64>,
    /// The number of seeds that were asked for.
    asked: usize,
}

/// Whether this thread computes a block for the second time.
pub(crate) fn is_active() -> bool {
    TAPE.with_borrow(|tape| tape.replay.is_some())
}

/// The next seed: that of the first pass in a second one, and otherwise a new one.
pub(crate) fn seed(draw: impl FnOnce() -> u64) -> u64 {
    let again = TAPE.with_borrow_mut(|tape| {
        let replay = tape.replay.as_mut()?;
        replay.asked += 1;
        replay.seeds.get(replay.asked - 1).copied()
    });
    let seed = again.unwrap_or_else(draw);
    TAPE.with_borrow_mut(|tape| {
        if tape.recordings > 0 {
            tape.drawn.push(seed);
        }
    });
    seed
}

/// Computes a block, and returns the seeds that it has drawn.
pub(crate) fn record<R>(block: impl FnOnce() -> R) -> (R, Vec<u64>) {
    struct Recording(usize);
    impl Recording {
        fn seeds(&self) -> Vec<u64> {
            TAPE.with_borrow(|tape| tape.drawn[self.0..].to_vec())
        }
    }
    impl Drop for Recording {
        fn drop(&mut self) {
            TAPE.with_borrow_mut(|tape| {
                tape.recordings -= 1;
                if tape.recordings == 0 {
                    tape.drawn.clear();
                }
            });
        }
    }
    let recording = TAPE.with_borrow_mut(|tape| {
        tape.recordings += 1;
        Recording(tape.drawn.len())
    });
    let result = block();
    let seeds = recording.seeds();
    (result, seeds)
}

/// Computes a block again with these seeds. Returns also how many it has asked for.
pub(crate) fn replay<R>(seeds: Vec<u64>, block: impl FnOnce() -> R) -> (R, usize) {
    /// The second pass of the block around this one, which goes on afterwards.
    struct Outer(Option<Replay>);
    impl Drop for Outer {
        fn drop(&mut self) {
            TAPE.with_borrow_mut(|tape| tape.replay = self.0.take());
        }
    }
    let replay = Some(Replay { seeds, asked: 0 });
    let _outer = Outer(TAPE.with_borrow_mut(|tape| mem::replace(&mut tape.replay, replay)));
    let result = block();
    let asked = TAPE.with_borrow(|tape| tape.replay.as_ref().map_or(0, |replay| replay.asked));
    (result, asked)
}
