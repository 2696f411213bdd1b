//! The machine of the benchmark: its properties, and the load of other programs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::checkout::repo_root;
use crate::shell::{cargo, output};

/// The properties that a reader must know to judge the figures.
#[derive(Debug, Serialize)]
pub(crate) struct Host {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) system: String,
    pub(crate) date: String,
    /// The commit of this repository. Ends in `-dirty` if files differ from it.
    pub(crate) commit: String,
    pub(crate) rustc: String,
    pub(crate) candle: String,
}

impl Host {
    pub(crate) fn look() -> Self {
        let root = repo_root();
        let ask = |program: &str, args: &[&str]| {
            let mut command = Command::new(program);
            output(command.args(args).current_dir(&root)).unwrap_or_else(|| "unknown".into())
        };
        Self {
            cpu: cpu_model().unwrap_or_else(|| "unknown".into()),
            cores: thread::available_parallelism().map_or(1, usize::from),
            system: ask("uname", &["-sr"]),
            date: ask("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
            commit: ask("git", &["describe", "--always", "--dirty", "--exclude", "*"]),
            rustc: ask("rustc", &["--version"]),
            candle: locked_version("candle-core").unwrap_or_else(|| "unknown".into()),
        }
    }
}

fn cpu_model() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
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

/// The folder of cargo's builds, with the user's settings.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let text = output(&mut cargo(&["metadata", "--no-deps", "--format-version", "1"]));
    let metadata: serde_json::Value =
        serde_json::from_str(&text.context("`cargo metadata` failed")?)?;
    let folder = metadata["target_directory"].as_str().context("cargo names no target folder")?;
    Ok(folder.into())
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
    pub(crate) fn now(measured: &[u32]) -> Option<Self> {
        let read = |path: &str| fs::read_to_string(path).ok();
        let (stat, own) = (read("/proc/stat")?, read("/proc/self/stat")?);
        let ticks = |id: &u32| ticks_used(&read(&format!("/proc/{id}/stat"))?);
        let theirs: Option<u64> = measured.iter().map(ticks).sum();
        let time = Self::parse(&stat, &own)?;
        Some(Self { ours: time.ours + theirs?, ..time })
    }

    fn parse(stat: &str, own: &str) -> Option<Self> {
        let first = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> =
            first.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal. Guest time is part of user.
        let all = ticks.iter().take(8).sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self { all, busy: all - idle, ours: ticks_used(own)? })
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

/// The ticks of a process and the children for which it has waited, from its `/proc/<pid>/stat`.
fn ticks_used(stat: &str) -> Option<u64> {
    // utime, stime, cutime and cstime are fields 14 to 17 of the line, so fields 12 to 15 after the
    // name in parentheses.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11..15)?.iter().filter_map(|word| word.parse::<u64>().ok()).sum())
}

/// The remark under a table if other programs used the machine during a sample. `None` if the
/// machine was almost idle.
pub(crate) fn remark_if_busy(shares: impl Iterator<Item = f64>) -> Option<String> {
    let percent = 100.0 * shares.fold(0.0, f64::max);
    (percent > 5.0).then(|| {
        format!("The machine was not idle: other programs used up to {percent:.0}% of its cores.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_use_is_busy_time_that_is_not_ours() {
        let stat = |busy, idle| format!("cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3\n");
        let own = |children| format!("7 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 1 1 {children} 0 20 0");
        let before = CpuTime::parse(&stat(100, 100), &own(0));
        let after = CpuTime::parse(&stat(180, 120), &own(60));
        let share = CpuTime::others_share(before, after).unwrap();
        assert!((share - 0.2).abs() < 1e-9, "{share}");
        assert_eq!(CpuTime::others_share(before, before), None);
    }

    #[test]
    fn only_a_busy_machine_is_remarked_upon() {
        assert_eq!(remark_if_busy([0.01, 0.04].into_iter()), None);
        assert!(remark_if_busy([0.2, 0.1].into_iter()).unwrap().contains("up to 20%"));
    }

    #[test]
    fn the_lock_file_names_the_pinned_candle() {
        assert!(locked_version("candle-core").is_some_and(|version| version.starts_with("0.11.")));
        assert_eq!(locked_version("no-such-package"), None);
    }
}
