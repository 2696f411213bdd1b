//! The actions of signals while a launcher watches its ranks.
//!
//! The handler of a watched signal counts it instead of ending the process. SIGCHLD has its default
//! action: if a process inherits that SIGCHLD is ignored, the kernel does not keep the exit codes of
//! its children. SIGTTOU is ignored, and the children inherit that: they are in the background of a
//! terminal, and some terminals stop what writes from there. SIGXFSZ is ignored, too: then a write beyond the limit of
//! a file's size is an error of that write, as on a full disk, and not the end of the process. When the last launcher of the process has
//! finished, the earlier actions are restored.
//!
//! **Invariant (handler)** The handler only adds to an atomic.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::{Error, Result};

/// SIGINT asks a program to stop. A terminal sends it for Ctrl-C.
pub(super) const INT: i32 = Signal::SIGINT as i32;
/// SIGTERM asks a program to stop.
pub(super) const TERM: i32 = Signal::SIGTERM as i32;
/// SIGHUP says that the terminal has gone.
pub(super) const HUP: i32 = Signal::SIGHUP as i32;
/// SIGTSTP asks a program to pause. A terminal sends it for Ctrl-Z.
pub(super) const TSTP: i32 = Signal::SIGTSTP as i32;

/// SIGKILL ends a program at once. The kernel sends it where memory is short.
pub(super) const KILL: i32 = Signal::SIGKILL as i32;
/// SIGXCPU says that the limit of processor time is reached.
pub(super) const XCPU: i32 = Signal::SIGXCPU as i32;

/// The signals that ask a job to save its work and end.
pub const ENDING: [i32; 3] = [INT, TERM, HUP];

/// The signals that a launcher passes on to its ranks.
pub(super) const PASSED_ON: [i32; 6] =
    [Signal::SIGUSR1 as i32, Signal::SIGUSR2 as i32, TSTP, INT, TERM, HUP];

/// One more than the highest number of a signal on Linux.
const NUMBERS: usize = 65;

/// How often each signal has arrived.
static COUNTS: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];

/// The number of active watches, and the actions before the first of them.
static WATCHES: Mutex<(usize, Vec<(Signal, SigAction)>)> = Mutex::new((0, Vec::new()));

extern "C" fn note(signal: c_int) {
    if let Some(count) = usize::try_from(signal).ok().and_then(|number| COUNTS.get(number)) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Signals that this process counts instead of obeying them. Dropping the last watch of a process
/// restores the earlier actions.
#[derive(Debug)]
pub struct Signals {
    /// The watched signals, and how many of each this watch has given.
    given: Vec<(i32, u32)>,
}

impl Signals {
    /// Watches the signals that a [`Job`](super::Job) passes on to its processes, from now on.
    ///
    /// # Errors
    /// A system that refuses it.
    pub fn for_jobs() -> Result<Self> {
        Self::watch(&PASSED_ON)
    }

    /// Watches these signals from now on. SIGHUP stays ignored where it is ignored, as under nohup.
    ///
    /// # Errors
    /// A number that is not a signal's, or a signal that cannot be caught.
    pub fn watch(signals: &[i32]) -> Result<Self> {
        let mut watches = WATCHES.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, before) = &mut *watches;
        *count += 1;
        // An early return drops this value, which restores the actions changed so far.
        let watch =
            Self { given: signals.iter().map(|&signal| (signal, arrived(signal))).collect() };
        let mut result = Ok(());
        let caught = signals.iter().map(|&signal| (signal, SigHandler::Handler(note)));
        let others = [
            (Signal::SIGCHLD as i32, SigHandler::SigDfl),
            (Signal::SIGTTOU as i32, SigHandler::SigIgn),
            (Signal::SIGXFSZ as i32, SigHandler::SigIgn),
        ];
        for (number, handler) in caught.chain(others) {
            if before.iter().any(|(known, _)| *known as i32 == number) {
                continue;
            }
            let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
            let changed = Signal::try_from(number)
                .map_err(|error| Error::io(format!("find signal {number}"), error))
                .and_then(|signal| Ok((signal, set(signal, &action)?)));
            match changed {
                Ok((Signal::SIGHUP, old)) if matches!(old.handler(), SigHandler::SigIgn) => {
                    result = result.and(set(Signal::SIGHUP, &old).map(drop));
                }
                Ok(old) => before.push(old),
                Err(error) => result = Err(error),
            }
        }
        drop(watches);
        result.map(|()| watch)
    }

    /// The next signal that has arrived and that this watch has not given yet. Signals that have
    /// arrived since the last call come in the order of [`Self::watch`].
    pub fn next_arrived(&mut self) -> Option<i32> {
        let (signal, given) =
            self.given.iter_mut().find(|(signal, given)| arrived(*signal) != *given)?;
        *given = given.wrapping_add(1);
        Some(*signal)
    }
}

fn arrived(signal: i32) -> u32 {
    let count = usize::try_from(signal).ok().and_then(|number| COUNTS.get(number));
    count.map_or(0, |count| count.load(Ordering::Relaxed))
}

impl Drop for Signals {
    fn drop(&mut self) {
        let mut watches = WATCHES.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, before) = &mut *watches;
        *count -= 1;
        if *count == 0 {
            for (signal, action) in before.drain(..) {
                // The system accepted this action before.
                drop(set(signal, &action));
            }
        }
    }
}

/// Sets a signal's action. Returns the earlier action.
fn set(signal: Signal, action: &SigAction) -> Result<SigAction> {
    // SAFETY: the action runs nothing, or what ran before for this signal, or `note`, which may run
    // at any point: invariant (handler).
    let before = unsafe { sigaction(signal, action) };
    before.map_err(|error| Error::io(format!("set the action of {signal}"), error))
}

/// Makes a write beyond the limit of a file's size (`ulimit -f`) an error, from now on.
pub(crate) fn ignore_file_size_signal() {
    let ignored = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // Without this the kernel ends the process, as it has always done.
    drop(set(Signal::SIGXFSZ, &ignored));
}

/// The signals that ask this process to end. SIGHUP is not one of them where it is ignored, as under nohup.
pub fn ending_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let is_ignored = ignored >> (HUP - 1) & 1 == 1;
    ENDING.into_iter().filter(|&signal| signal != HUP || !is_ignored).collect()
}

/// The reason of an end by a signal.
pub fn interrupted_by(signal: i32) -> String {
    format!("interrupted by {}", signal_name(signal))
}

/// A signal's name, or its number where it has none.
pub(super) fn signal_name(signal: i32) -> String {
    let named = Signal::try_from(signal);
    named.map_or_else(|_| format!("signal {signal}"), |named| named.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::MutexGuard;

    use nix::sys::signal::raise;

    use super::*;

    /// The tests of this file change the process, one after the other.
    fn alone() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bit masks of the signals that are caught and ignored.
    fn actions() -> Vec<String> {
        let status = std::fs::read_to_string("/proc/self/status").expect("this process's state");
        let lines = status.lines().filter(|line| line.starts_with("Sig"));
        lines.filter(|line| !line.starts_with("SigQ")).map(str::to_owned).collect()
    }

    #[test]
    fn actions_are_those_from_before_once_nobody_watches() -> Result<()> {
        let _turn = alone();
        let ignored = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        let old = set(Signal::SIGTERM, &ignored)?;
        let before = actions();
        let (first, second) = (Signals::watch(&[INT, TERM])?, Signals::watch(&[TERM, HUP])?);
        assert_ne!(actions(), before);
        drop(first);
        assert_ne!(actions(), before);
        drop(second);
        assert_eq!(actions(), before);
        set(Signal::SIGTERM, &old)?;
        Ok(())
    }

    #[test]
    fn each_watch_gives_every_signal_once() -> Result<()> {
        let _turn = alone();
        let usr1 = Signal::SIGUSR1 as i32;
        let mut first = Signals::watch(&[usr1, TERM])?;
        raise(Signal::SIGUSR1).expect("a signal");
        raise(Signal::SIGUSR1).expect("a signal");
        let mut second = Signals::watch(&[usr1])?;
        raise(Signal::SIGTERM).expect("a signal");
        raise(Signal::SIGUSR1).expect("a signal");
        let all = |watch: &mut Signals| -> Vec<i32> {
            std::iter::from_fn(|| watch.next_arrived()).collect()
        };
        assert_eq!(all(&mut first), [usr1, usr1, usr1, TERM]);
        assert_eq!(all(&mut second), [usr1]);
        assert!(all(&mut first).is_empty());
        Ok(())
    }

    #[test]
    fn a_hang_up_that_is_ignored_stays_ignored() -> Result<()> {
        let _turn = alone();
        let ignored = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        let old = set(Signal::SIGHUP, &ignored)?;
        let mut watch = Signals::watch(&[HUP])?;
        raise(Signal::SIGHUP).expect("a signal");
        assert_eq!(watch.next_arrived(), None);
        assert_eq!(ending_signals(), [INT, TERM]);
        drop(watch);
        set(
            Signal::SIGHUP,
            &SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty()),
        )?;
        assert_eq!(ending_signals(), ENDING);
        set(Signal::SIGHUP, &old)?;
        Ok(())
    }

    #[test]
    fn what_is_no_signal_is_an_error() {
        let _turn = alone();
        for number in [-1, 0, 1000, Signal::SIGKILL as i32] {
            assert!(Signals::watch(&[number]).is_err(), "{number}");
        }
    }
}
