//! What a second forward pass of a block must repeat, and what it must leave out.
//!
//! The seeds of noise that the first pass has drawn are noted, and the second pass gets the same ones, so dropout
//! drops the same elements. Running statistics change in the first pass alone ([`is_active`]). The result of the block is
//! known, so the last operation need not compute it again ([`begin_operation`]).

use std::cell::{Cell, RefCell};
use std::mem;

use crate::kernels::thread_switch::with_switch;

thread_local! {
    static TAPE: RefCell<Tape> = RefCell::default();
    /// Whether nobody reads the result of the operation that is being computed.
    static IS_UNREAD: Cell<bool> = const { Cell::new(false) };
}

/// What this thread's passes through blocks draw and compute. One block may be inside another one.
#[derive(Debug, Default)]
struct Tape {
    /// The first passes under way.
    recordings: usize,
    /// The seeds that they have drawn.
    drawn: Vec<u64>,
    /// The operations that they have computed.
    operations: usize,
    /// The second pass under way.
    replay: Option<Replay>,
}

/// What a first pass has drawn and computed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    seeds: Vec<u64>,
    operations: usize,
    /// What the last operation, counted from the first one, need not compute again.
    pub(crate) unread: Option<Unread>,
}

/// What need not be computed of an operation whose result is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unread {
    /// The result. What the operation saves for its backward pass is needed.
    Result,
    /// Anything: it saves nothing.
    All,
}

#[derive(Debug)]
struct Replay {
    script: Script,
    /// The seeds that were asked for.
    seeds: usize,
    /// The operations that were begun.
    operations: usize,
}

/// Whether this thread computes a block for the second time.
pub(crate) fn is_active() -> bool {
    TAPE.with_borrow(|tape| tape.replay.is_some())
}

/// The next seed: that of the first pass in a second one, and otherwise a new one.
pub(crate) fn seed(draw: impl FnOnce() -> u64) -> u64 {
    let again = TAPE.with_borrow_mut(|tape| {
        let replay = tape.replay.as_mut()?;
        replay.seeds += 1;
        replay.script.seeds.get(replay.seeds - 1).copied()
    });
    let seed = again.unwrap_or_else(draw);
    TAPE.with_borrow_mut(|tape| {
        if tape.recordings > 0 {
            tape.drawn.push(seed);
        }
    });
    seed
}

/// Counts an operation. Returns what it need not compute.
pub(crate) fn begin_operation() -> Option<Unread> {
    TAPE.with_borrow_mut(|tape| {
        if tape.recordings > 0 {
            tape.operations += 1;
        }
        let replay = tape.replay.as_mut()?;
        replay.operations += 1;
        replay.script.unread.filter(|_| replay.operations == replay.script.operations)
    })
}

/// Runs the forward of an operation whose result nobody reads.
pub(crate) fn with_result_unread<R>(forward: impl FnOnce() -> R) -> R {
    with_switch(&IS_UNREAD, forward)
}

/// Whether nobody reads the result of the operation that this thread computes.
pub(crate) fn result_is_unread() -> bool {
    IS_UNREAD.get()
}

/// Computes a block, and returns what it has drawn and computed.
pub(crate) fn record<R>(block: impl FnOnce() -> R) -> (R, Script) {
    struct Recording {
        drawn: usize,
        operations: usize,
    }
    impl Recording {
        fn script(&self) -> Script {
            TAPE.with_borrow(|tape| Script {
                seeds: tape.drawn[self.drawn..].to_vec(),
                operations: tape.operations - self.operations,
                unread: None,
            })
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
        Recording { drawn: tape.drawn.len(), operations: tape.operations }
    });
    let result = block();
    let script = recording.script();
    (result, script)
}

/// Computes a block again. Returns also what was different from the first pass.
pub(crate) fn replay<R>(script: &Script, block: impl FnOnce() -> R) -> (R, Option<String>) {
    /// The second pass of the block around this one, which goes on afterwards.
    struct OuterBlock(Option<Replay>);
    impl Drop for OuterBlock {
        fn drop(&mut self) {
            TAPE.with_borrow_mut(|tape| tape.replay = self.0.take());
        }
    }
    let replay = Some(Replay { script: script.clone(), seeds: 0, operations: 0 });
    let _outer = OuterBlock(TAPE.with_borrow_mut(|tape| mem::replace(&mut tape.replay, replay)));
    let result = block();
    let found = TAPE.with_borrow(|tape| {
        tape.replay.as_ref().map_or((0, 0), |replay| (replay.seeds, replay.operations))
    });
    let Script { seeds, operations, .. } = script;
    let then = "in the forward pass, and";
    let difference = if found.0 != seeds.len() {
        Some(format!(
            "it drew {} seeds of noise {then} {} when it was computed again",
            seeds.len(),
            found.0
        ))
    } else if found.1 != *operations {
        Some(format!(
            "it had {operations} operations {then} {} when it was computed again",
            found.1
        ))
    } else {
        None
    };
    (result, difference)
}
