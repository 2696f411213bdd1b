//! The memory use of this process.

/// The resident memory of this process in bytes, including its pages of shared memory.
///
/// # Panics
/// If the system has no `/proc`.
pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("this process's status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    let kib = line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number");
    kib * 1024
}
