//! Other processes: signals to them, and waits for what happens in them.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything takes on a busy machine, where a test says nothing else.
pub const LIMIT: Duration = Duration::from_secs(240);

/// How often a test looks again.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `look` finds something.
///
/// # Panics
/// If [`LIMIT`] passes before.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited for {what} for {LIMIT:?}");
        thread::sleep(PAUSE);
    }
}

/// The process number that a program has written into a file, with an end of line.
///
/// # Panics
/// If [`LIMIT`] passes before.
#[track_caller]
pub fn process_in(file: &Path) -> Pid {
    until(&format!("{}", file.display()), || {
        let text = fs::read_to_string(file).ok()?;
        Pid::from_raw(text.strip_suffix('\n')?.parse().ok()?)
    })
}

/// Sends a signal to a process, as `kill` does.
///
/// # Panics
/// If the process is not there.
#[track_caller]
pub fn kill(process: Pid, signal: Signal) {
    kill_process(process, signal).expect("the process is there");
}

/// Whether a process is there and not a corpse.
pub fn lives(process: Pid) -> bool {
    let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
    let stat = fs::read_to_string(stat).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

/// Waits until a thread of a process waits, for another process or for time to pass: it sleeps, and sleeps in the
/// same wait a moment later.
///
/// # Panics
/// If [`LIMIT`] passes before.
#[track_caller]
pub fn until_asleep(process: Pid, thread: Pid) {
    let mut earlier = None;
    until("a thread to wait", || {
        let waits = waits_of(process, thread);
        let is_asleep = waits.is_some() && waits == earlier;
        earlier = waits;
        is_asleep.then_some(())
    });
}

/// How often a thread has waited, if it waits now.
fn waits_of(process: Pid, thread: Pid) -> Option<String> {
    let [process, thread] = [process, thread].map(Pid::as_raw_nonzero);
    let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let waits = field("voluntary_ctxt_switches:")?.to_owned();
    field("State:")?.starts_with('S').then_some(waits)
}
