//! The search for the launcher's process among this process's ancestors.
//!
//! A launcher may start a wrapper for every rank: a shell, numactl, perf, a script. Then the
//! parents of the ranks are different processes. A wrapper has inherited the variables that the
//! launcher sets for a rank, but the launcher itself does not have them.

use std::fs;

/// The nearest ancestor of this process whose environment does not contain `variable`. The result
/// is the ancestor's number and the time of its start, which together are unique on this host.
/// `None` if `/proc` does not show such an ancestor.
pub(super) fn nearest_without(variable: &str) -> Option<String> {
    let mut pid = parent_and_start("self")?.0;
    loop {
        let (parent, start) = parent_and_start(&pid)?;
        let environment = fs::read(format!("/proc/{pid}/environ"));
        // The environment of another user's process cannot be read. Such a wrapper is skipped.
        if environment.is_ok_and(|environment| !has(&environment, variable)) {
            return Some(format!("{pid}-{start}"));
        }
        pid = parent;
    }
}

/// Whether a process is this one's parent, or its parent's parent, and so on.
pub(super) fn has_ancestor(process: i32) -> bool {
    // The parent is asked for without `/proc`, which may not be there.
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let wanted = process.to_string();
    let mut pid = parent.to_string();
    while pid != wanted {
        match parent_and_start(&pid) {
            Some((parent, _)) => pid = parent,
            None => return false,
        }
    }
    true
}

fn has(environment: &[u8], variable: &str) -> bool {
    let name = |entry: &[u8]| entry.iter().position(|&byte| byte == b'=');
    let mut entries = environment.split(|&byte| byte == 0);
    entries.any(|entry| name(entry).is_some_and(|end| entry[..end] == *variable.as_bytes()))
}

/// The number of the parent, and the start of the process in clock ticks since the start of the
/// system.
fn parent_and_start(pid: &str) -> Option<(String, String)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may contain any character.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(((*fields.get(1)?).to_owned(), (*fields.get(19)?).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_lacks_what_nobody_has_and_no_ancestor_lacks_what_all_have() {
        let (parent, _) = parent_and_start("self").expect("/proc");
        let found = nearest_without("CANDELABRUM_NOBODY_SETS_THIS").expect("an ancestor");
        assert!(found.starts_with(&format!("{parent}-")), "{found}");
    }

    #[test]
    fn ancestors_are_told_from_other_processes() {
        let parent = parent_and_start("self").expect("/proc").0;
        let grandparent = parent_and_start(&parent).expect("/proc").0;
        for process in [parent, grandparent] {
            assert!(has_ancestor(process.parse().expect("a number")), "{process}");
        }
        let own = i32::try_from(std::process::id()).expect("a process number");
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let child_number = i32::try_from(child.id()).expect("a process number");
        assert!(!has_ancestor(own) && !has_ancestor(child_number) && !has_ancestor(-1));
        child.wait().expect("it ends");
    }

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environment = b"PMI_RANKS=2\0PMI_RANK=1\0HOME=/\0";
        assert!(has(environment, "PMI_RANK") && has(environment, "HOME"));
        assert!(!has(environment, "PMI") && !has(environment, "RANK"));
    }
}
