//! What a job has left on this machine: processes, sockets, names in /dev/shm.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, test_kill_process};

/// Asserts that no process with this environment variable is left, and no socket and no shared memory of ours. Ranks
/// may notice a little later that their launcher has ended.
///
/// # Panics
/// If something is left.
#[track_caller]
pub fn assert_nothing_is_left(variable: &str, value: &str) {
    let end = Instant::now() + Duration::from_secs(5);
    while let Some((process, _)) = processes_with(variable, value).first() {
        assert!(Instant::now() < end, "process {process:?} still lives");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_no_socket_without_a_process();
    assert_no_shared_memory_of_ours();
}

/// Asserts that no shared memory of ours has a name.
///
/// # Panics
/// If there is such a name in /dev/shm.
#[track_caller]
pub fn assert_no_shared_memory_of_ours() {
    let shared_memory = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    for name in shared_memory.map(|entry| entry.file_name().to_string_lossy().into_owned()) {
        assert!(!name.contains("candelabrum"), "/dev/shm/{name} is left");
    }
}

/// The living processes of this user with this environment variable, and their environments.
pub fn processes_with(variable: &str, value: &str) -> Vec<(Pid, Vec<String>)> {
    let wanted = format!("{variable}={value}");
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let process = |name: String| {
        let process = Pid::from_raw(name.parse().ok()?)?;
        let environment = fs::read(format!("/proc/{name}/environ")).ok()?;
        let environment = String::from_utf8_lossy(&environment);
        let environment: Vec<String> = environment.split('\0').map(str::to_owned).collect();
        let has = environment.contains(&wanted) && test_kill_process(process).is_ok();
        has.then_some((process, environment))
    };
    names.filter_map(|entry| process(entry.file_name().to_string_lossy().into_owned())).collect()
}
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
