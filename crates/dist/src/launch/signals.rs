//! The actions of signals while a launcher watches its ranks.
//!
//! The handler of SIGINT and SIGTERM records the signal instead of ending the process. SIGCHLD has
//! its default action: if a process inherits that SIGCHLD is ignored, the kernel does not keep the
//! exit codes of its children. When the last launcher of the process has finished, the earlier
//! actions are restored.
//!
//! **Invariant (handler)** The handler only stores to an atomic.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::{Error, Result};

/// The last signal that asked this process to stop; 0 if there was none.
static CAUGHT: AtomicI32 = AtomicI32::new(0);

/// The number of active launchers, and the actions before the first of them.
static WATCHES: Mutex<(usize, Vec<(Signal, SigAction)>)> = Mutex::new((0, Vec::new()));

extern "C" fn note(signal: c_int) {
    CAUGHT.store(signal, Ordering::Relaxed);
}

/// The changed actions. Dropping the last value restores the earlier ones.
#[derive(Debug)]
pub(super) struct Signals(());

impl Signals {
    pub(super) fn watch() -> Result<Self> {
        let mut watches = WATCHES.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, before) = &mut *watches;
        *count += 1;
        // An early return drops this value, which restores the actions changed so far.
        let watch = Self(());
        if *count > 1 {
            return Ok(watch);
        }
        CAUGHT.store(0, Ordering::Relaxed);
        let wanted = [
            (Signal::SIGINT, SigHandler::Handler(note)),
            (Signal::SIGTERM, SigHandler::Handler(note)),
            (Signal::SIGCHLD, SigHandler::SigDfl),
        ];
        let mut result = Ok(());
        for (signal, handler) in wanted {
            match set(signal, &SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty())) {
                Ok(old) => before.push((signal, old)),
                Err(error) => result = Err(error),
            }
        }
        drop(watches);
        result.map(|()| watch)
    }

    /// The signal that asked this process to stop, if one did.
    pub(super) fn caught(&self) -> Option<i32> {
        Some(CAUGHT.load(Ordering::Relaxed)).filter(|&signal| signal != 0)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The bit masks of the signals that are caught and ignored.
    fn actions() -> Vec<String> {
        let status = std::fs::read_to_string("/proc/self/status").expect("this process's state");
        let lines = status.lines().filter(|line| line.starts_with("Sig"));
        lines.filter(|line| !line.starts_with("SigQ")).map(str::to_owned).collect()
    }

    #[test]
    fn actions_are_those_from_before_once_nobody_watches() -> Result<()> {
        let ignored = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        let old = set(Signal::SIGTERM, &ignored)?;
        let before = actions();
        let (first, second) = (Signals::watch()?, Signals::watch()?);
        assert_ne!(actions(), before);
        drop(first);
        assert_ne!(actions(), before);
        drop(second);
        assert_eq!(actions(), before);
        set(Signal::SIGTERM, &old)?;
        Ok(())
    }
}
