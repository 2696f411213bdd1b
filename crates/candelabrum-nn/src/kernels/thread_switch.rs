//! A switch of a thread that is on during a call.

use std::cell::Cell;
use std::thread::LocalKey;

/// Runs `f` with `switch` on, and restores the switch afterwards, also if `f` panics.
pub(crate) fn with_switch<R>(switch: &'static LocalKey<Cell<bool>>, f: impl FnOnce() -> R) -> R {
    struct Restored(&'static LocalKey<Cell<bool>>, bool);
    impl Drop for Restored {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    let _restored = Restored(switch, switch.replace(true));
    f()
}
