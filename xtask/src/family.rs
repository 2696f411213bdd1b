//! Descendants of processes: the processes that a program started, and those that these started.

use std::fs;

/// These processes and all their descendants, parents before children.
pub(crate) fn family(roots: &[u32]) -> Vec<u32> {
    let parents = parents();
    let mut family = roots.to_vec();
    let mut at = 0;
    while let Some(&parent) = family.get(at) {
        for &(child, _) in parents.iter().filter(|&&(_, of)| of == parent) {
            if !family.contains(&child) {
                family.push(child);
            }
        }
        at += 1;
    }
    family
}

/// Every process of this machine with its parent. Empty if there is no /proc.
fn parents() -> Vec<(u32, u32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let of = |id: u32| parent(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?);
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(|id| Some((id, of(id)?))).collect()
}

/// The parent's id in a `/proc/<pid>/stat`: the second field after the name in parentheses.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{self, Command, Stdio};

    use super::*;

    #[test]
    fn a_family_has_children_and_theirs() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 60 & echo; wait"]).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut line = [0];
        std::io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut line).unwrap();
        let family = family(&[process::id()]);
        assert_eq!(family[0], process::id());
        let grandchild = super::family(&[shell.id()])[1];
        assert!(family.contains(&shell.id()) && family.contains(&grandchild));
        Command::new("kill").arg(grandchild.to_string()).status().unwrap();
        shell.wait().unwrap();
    }

    #[test]
    fn a_name_may_hold_parentheses() {
        assert_eq!(parent("7 (a (b) c) S 42 2 3"), Some(42));
        assert_eq!(parent("nothing"), None);
    }
}
