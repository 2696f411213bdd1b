//! Which host this is.

use std::fs;

use super::vars;

/// A name that the processes of this host share, and no other host has: what `CANDELABRUM_HOST` says,
/// or the host's name and the number of its last start. Containers of one host may have names of
/// their own: they cannot be counted on to share memory.
pub(crate) fn host() -> String {
    if let Ok(name) = std::env::var(vars::HOST) {
        return name;
    }
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (name, boot) = (read("/proc/sys/kernel/hostname"), read("/proc/sys/kernel/random/boot_id"));
    format!("{} {}", name.trim(), boot.trim())
}
