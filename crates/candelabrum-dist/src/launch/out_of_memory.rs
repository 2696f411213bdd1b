//! The kernel's counts of processes that it has killed for want of memory.
//!
//! Such a process ends by SIGKILL, as if a user had killed it. Only these counts tell the reason: one of the control
//! group, whose memory a container or a batch system limits, and one of the whole system.

use std::fs;
use std::path::{Path, PathBuf};

const GROUPS: &str = "/sys/fs/cgroup";

/// The counts at some time. Those that the system does not show are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OomKills {
    group: Option<(MemoryGroup, u64)>,
    system: Option<u64>,
}

impl OomKills {
    pub(super) fn now() -> Self {
        let group = MemoryGroup::own();
        let group = group.and_then(|group| Some((group.kills()?, group)));
        Self { group: group.map(|(kills, group)| (group, kills)), system: system_kills() }
    }

    /// Why a process may have been killed since then. `None`: not for want of memory.
    pub(super) fn reason(&self) -> Option<String> {
        let limit = self.group.as_ref().filter(|(group, before)| group.kills() > Some(*before));
        let reason = match limit {
            Some((group, _)) => {
                format!("the memory limit of its control group was reached ({})", group.limit())
            }
            None if self.system.is_some_and(|before| system_kills() > Some(before)) => {
                "the system had no memory left".to_owned()
            }
            None => return None,
        };
        Some(format!("{reason}: take fewer ranks or smaller batches, or give the job more memory"))
    }
}

/// The kills in the whole system.
fn system_kills() -> Option<u64> {
    count_in(Path::new("/proc/vmstat"))
}

/// The count of kills in a file with lines `NAME NUMBER`.
fn count_in(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// The control group that counts this process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MemoryGroup {
    kills: PathBuf,
    limit: PathBuf,
}

impl MemoryGroup {
    fn own() -> Option<Self> {
        Self::from_groups(Path::new(GROUPS), &fs::read_to_string("/proc/self/cgroup").ok()?)
    }

    /// The group that `groups`, the text of `/proc/self/cgroup`, names. The lines of version 1 are `N:memory:/PATH`,
    /// that of version 2 is `0::/PATH`. In a container the group may be the root of what is mounted.
    fn from_groups(root: &Path, groups: &str) -> Option<Self> {
        let groups = groups.lines().filter_map(|line| {
            let (_, line) = line.split_once(':')?;
            let (controllers, path) = line.split_once(':')?;
            let files = match controllers {
                "" => ("", "memory.events", "memory.max"),
                _ if controllers.split(',').any(|controller| controller == "memory") => {
                    ("memory", "memory.oom_control", "memory.limit_in_bytes")
                }
                _ => return None,
            };
            Some((path.trim_start_matches('/'), files))
        });
        let places = groups.flat_map(|(path, (mount, kills, limit))| {
            [path, ""]
                .map(|path| root.join(mount).join(path))
                .map(|group| Self { kills: group.join(kills), limit: group.join(limit) })
        });
        places.into_iter().find(|group| group.kills().is_some())
    }

    fn kills(&self) -> Option<u64> {
        count_in(&self.kills)
    }

    /// The limit in words. A group without one of its own has that of a group above.
    fn limit(&self) -> String {
        let limit = fs::read_to_string(&self.limit).unwrap_or_default();
        match limit.trim().parse::<u64>() {
            Ok(bytes) => format!("{bytes} bytes in {}", self.limit.display()),
            Err(_) => format!("see {} and the groups above", self.limit.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    #[test]
    fn the_group_of_either_version_is_found_also_as_the_root_of_a_container() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        write(
            root,
            "memory/job/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        );
        write(root, "memory/job/memory.limit_in_bytes", "125829120\n");
        let of = |groups| MemoryGroup::from_groups(root, groups).expect("a group");
        let group = of("8:pids:/\n4:cpu,memory:/job\n0::/\n");
        assert_eq!(group.kills(), Some(3));
        assert!(group.limit().starts_with("125829120 bytes in "), "{}", group.limit());
        assert_eq!(MemoryGroup::from_groups(root, "4:memory:/other\n0::/\n"), None);

        write(root, "memory.events", "low 0\noom 2\noom_kill 1\noom_group_kill 0\n");
        write(root, "memory.max", "max\n");
        let group = of("0::/kubepods/pod7\n");
        assert_eq!(group.kills(), Some(1));
        assert!(group.limit().contains("the groups above"), "{}", group.limit());
    }

    #[test]
    fn only_a_kill_since_then_is_a_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        write(root, "memory.events", "oom_kill 1\n");
        write(root, "memory.max", "4096\n");
        let group = MemoryGroup::from_groups(root, "0::/\n").expect("a group");
        let before = OomKills { group: Some((group, 1)), system: None };
        assert_eq!(before.reason(), None);
        write(root, "memory.events", "oom_kill 2\n");
        let reason = before.reason().expect("a kill");
        assert!(reason.contains("memory limit") && reason.contains("4096 bytes"), "{reason}");
        assert_eq!(OomKills::default().reason(), None);
    }
}
