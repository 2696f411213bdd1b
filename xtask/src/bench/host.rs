//! The machine of a benchmark: its properties, its processes, and the load of other programs.

use std::fs;
use std::process::Command;
use std::thread;

use procfs::process::{Process, Stat, all_processes};
use procfs::{CpuInfo, Current, CurrentSI, KernelStats};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::checkout::repo_root;
use crate::shell::output;

/// The properties that a reader must know to judge the figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) system: String,
    pub(crate) date: String,
    /// The commit of this repository. Ends in `-dirty` if files differ from it.
    pub(crate) commit: String,
    pub(crate) rustc: String,
    pub(crate) candle: String,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let root = repo_root();
        let known = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
        let ask = |program: &str, args: &[&str]| {
            known(output(Command::new(program).args(args).current_dir(&root)))
        };
        let cpu = CpuInfo::current().ok();
        Self {
            cpu: known(cpu.and_then(|cpu| Some(cpu.model_name(0)?.trim().to_owned()))),
            cores: thread::available_parallelism().map_or(1, usize::from),
            system: ask("uname", &["-sr"]),
            date: ask("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
            commit: ask("git", &["describe", "--always", "--dirty", "--exclude", "*"]),
            rustc: ask("rustc", &["--version"]),
            candle: known(locked_version("candle-core")),
        }
    }
}

/// The size in bytes of the largest cache that a core shares, or a usual size if the system does
/// not report one.
pub(crate) fn last_cache() -> usize {
    let sizes = (0..8).filter_map(|level| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{level}/size");
        fs::read_to_string(path).ok()?.trim().strip_suffix('K')?.parse::<usize>().ok()
    });
    sizes.max().unwrap_or(32 << 10) << 10
}

/// The version of a package in Cargo.lock.
fn locked_version(package: &str) -> Option<String> {
    let lock = fs::read_to_string(repo_root().join("Cargo.lock")).ok()?;
    let (_, after) = lock.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    Some(after.split_once('"')?.0.to_owned())
}

/// These processes and all their descendants, parents before children. Only these processes if there
/// is no /proc.
pub(crate) fn family(roots: &[Pid]) -> Vec<Pid> {
    let stats: Vec<Stat> = all_processes()
        .map(|all| all.filter_map(|process| process.ok()?.stat().ok()).collect())
        .unwrap_or_default();
    let mut family = roots.to_vec();
    let mut at = 0;
    while let Some(&parent) = family.get(at) {
        let children = stats.iter().filter(|stat| Pid::from_raw(stat.ppid) == Some(parent));
        for child in children.filter_map(|stat| Pid::from_raw(stat.pid)) {
            if !family.contains(&child) {
                family.push(child);
            }
        }
        at += 1;
    }
    family
}

/// Sends a signal to processes.
pub(crate) fn send(signal: Signal, processes: &[Pid]) {
    for &process in processes {
        // It may have ended meanwhile.
        let _gone = kill_process(process, signal);
    }
}

/// Processor time so far, in the kernel's ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuTime {
    /// Of all cores, busy and idle.
    all: u64,
    /// Of all cores, busy.
    busy: u64,
    /// Of this process, of the children for which it has waited, and of the measured processes.
    ours: u64,
}

impl CpuTime {
    /// Includes the measured processes while they live. `None` if there is no /proc.
    pub(crate) fn now(measured: &[Pid]) -> Option<Self> {
        let total = KernelStats::current().ok()?.total;
        let idle = total.idle + total.iowait.unwrap_or(0);
        let of_system =
            total.irq.unwrap_or(0) + total.softirq.unwrap_or(0) + total.steal.unwrap_or(0);
        // Guest time is part of user time.
        let busy = total.user + total.nice + total.system + of_system;
        let used = |process: Process| {
            let stat = process.stat().ok()?;
            Some(stat.utime + stat.stime + (stat.cutime + stat.cstime) as u64)
        };
        let of = |id: &Pid| used(Process::new(id.as_raw_nonzero().get()).ok()?);
        let theirs: Option<u64> = measured.iter().map(of).sum();
        Some(Self { all: busy + idle, busy, ours: used(Process::myself().ok()?)? + theirs? })
    }

    /// The share of all cores that other programs used between the two times.
    pub(crate) fn others_share(before: Option<Self>, after: Option<Self>) -> Option<f64> {
        let (before, after) = (before?, after?);
        let all = after.all.checked_sub(before.all).filter(|&all| all > 0)?;
        let busy = after.busy.saturating_sub(before.busy);
        let ours = after.ours.saturating_sub(before.ours);
        Some(busy.saturating_sub(ours) as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Stdio;

    use rustix::process::getpid;

    use super::*;

    #[test]
    fn the_load_of_others_is_busy_time_that_is_not_ours() {
        let time = |all, busy, ours| Some(CpuTime { all, busy, ours });
        let share = CpuTime::others_share(time(200, 100, 0), time(300, 180, 60)).unwrap();
        assert!((share - 0.2).abs() < 1e-9, "{share}");
        assert_eq!(CpuTime::others_share(time(200, 100, 0), time(200, 100, 0)), None);
        let now = CpuTime::now(&[getpid()]).unwrap();
        assert!(now.all >= now.busy && now.busy > 0);
        assert!(
            CpuTime::now(&[Pid::from_raw(i32::MAX).unwrap()]).is_none(),
            "a process that is gone"
        );
    }

    #[test]
    fn a_family_has_children_and_theirs() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 60 & echo; wait"]).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        shell.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let ours = family(&[getpid()]);
        let [child, grandchild] = family(&[Pid::from_child(&shell)])[..] else {
            panic!("{ours:?}")
        };
        assert!(ours[0] == getpid() && ours.contains(&child) && ours.contains(&grandchild));
        send(Signal::TERM, &[grandchild]);
        shell.wait().unwrap();
    }

    #[test]
    fn the_lock_file_names_the_pinned_candle() {
        assert!(locked_version("candle-core").is_some_and(|version| version.starts_with("0.11.")));
        assert_eq!(locked_version("no-such-package"), None);
    }
}
