//! Sockets that a job has left on this machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Asserts that every socket of this user with a name of ours belongs to a living process. Jobs of
/// other tests may open and close sockets during a check, so the check is repeated for a second.
///
/// # Panics
/// If a socket is left.
#[track_caller]
pub fn assert_no_socket_without_a_process() {
    let end = Instant::now() + Duration::from_secs(1);
    loop {
        let left = without_a_process();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "sockets {left:?} are left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The numbers of named sockets of ours that no process has open.
fn without_a_process() -> BTreeSet<String> {
    let user = fs::metadata("/proc/self").expect("this process").uid();
    let ours = format!("@candelabrum/{user}/");
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let lines = sockets.lines().filter(|line| line.contains(&ours));
    let number = |line: &str| line.split_whitespace().nth(6).map(str::to_owned);
    // A connection that has not been accepted yet has no number.
    let mut left: BTreeSet<String> = lines.filter_map(number).filter(|n| n != "0").collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let files = processes.flat_map(|process| fs::read_dir(process.path().join("fd")));
    for file in files.flatten().flatten() {
        let target = fs::read_link(file.path()).unwrap_or_default();
        let target = target.to_string_lossy();
        if let Some(number) = target.strip_prefix("socket:[").and_then(|n| n.strip_suffix(']')) {
            left.remove(number);
        }
    }
    left
}
