//! The end of this process in the middle of its work.

use std::io::{Write, stdout};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// Another thread may hold standard output, for instance while it waits for a slow reader.
const TO_FLUSH: Duration = Duration::from_millis(200);

/// Ends this process with `status`, without its exit handlers: those of CUDA's libraries would take down what other
/// threads still use, and the process would end by a signal.
pub fn exit_at_once(status: i32) -> ! {
    let (flushed, done) = channel();
    let flush = move || {
        // An unfinished line. Without standard output nothing is lost.
        let _ = stdout().flush();
        let _ = flushed.send(());
    };
    if thread::Builder::new().spawn(flush).is_ok() {
        let _ = done.recv_timeout(TO_FLUSH);
    }
    signal_hook::low_level::exit(status)
}
