//! Machines with little or restricted memory, and jobs beside and after one another.

use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::job::{self, send};

/// Whether this process may make a mount namespace of its own. Prints a line if not.
fn may_mount() -> bool {
    let tried = Command::new("unshare")
        .args(["-m", "sh", "-c", "mount -t tmpfs tmpfs /dev/shm"])
        .stderr(Stdio::null())
        .status();
    let may = tried.is_ok_and(|status| status.success());
    if !may {
        println!("left out: mounting over /dev/shm needs root and unshare");
    }
    may
}

#[test]
fn dev_shm_may_be_full_or_read_only() {
    if !may_mount() {
        return;
    }
    let full = "mount -t tmpfs -o size=4k tmpfs /dev/shm; head -c 4096 /dev/zero > /dev/shm/full;";
    for words in [full, "mount -t tmpfs -o ro tmpfs /dev/shm;"] {
        // `sh` becomes unshare, which starts another `sh`.
        let inside = format!("exec unshare -m sh -c '{words} exec \"$0\" \"$@\"' \"$0\" \"$@\";");
        job::start("nothing", 0, 2).after(&inside).launch().finish().assert_finished(2);
    }
}

/// A limit on the length of files: reserving memory fails as on a machine without memory.
fn with_limit(kibibytes: usize) -> String {
    format!("ulimit -f {};", kibibytes * 2)
}

#[test]
fn memory_that_cannot_be_reserved_is_an_error() {
    // The reservation at the start fails, where the ranks meet.
    let job = job::start("nothing", 0, 2).after(&with_limit(300)).launch();
    // The limit leaves room for rank 0's reservation.
    job.finish().assert_failed(&["rank 1: reserve", "`ulimit -f` raises the limit"]);
    // The reservation for the buckets of a large model fails, after all ranks have met.
    let job = job::start("large", 9, 2).after(&with_limit(4096)).launch();
    job.finish().assert_failed(&[
        "reserve",
        "shared memory, which count as a file",
        "File too large",
    ]);
}

#[test]
fn two_jobs_of_one_user_do_not_disturb_each_other() {
    let jobs = [0, 1].map(|_| job::start("nothing", 0, 2).launch());
    for job in jobs {
        job.finish().assert_finished(2);
    }
}

#[test]
fn a_job_starts_where_the_same_has_just_been_killed() {
    let job = job::start("forward", 1, 2).launch();
    job.wait_for_arrival();
    let ranks = job.running.ranks(2);
    send(job.running.pid(), Signal::KILL);
    for rank in ranks {
        // The launcher's death may have ended the rank by now.
        let _ = rustix::process::kill_process(rank, Signal::KILL);
    }
    let next = job::start("nothing", 0, 2).launch();
    next.finish().assert_finished(2);
    job.finish().assert_nothing_is_left();
}

/// Hardened hosts refuse executable files in memory (`vm.memfd_noexec`). The setting belongs to a
/// PID namespace.
#[test]
fn a_host_may_refuse_memory_that_can_be_executed() {
    let refuse = "echo 2 > /proc/sys/vm/memfd_noexec";
    let tried = Command::new("unshare")
        .args(["-pf", "--mount-proc", "sh", "-c", refuse])
        .stderr(Stdio::null())
        .status();
    if !tried.is_ok_and(|status| status.success()) {
        println!("left out: vm.memfd_noexec needs root, unshare and Linux 6.3");
        return;
    }
    let inside = format!(
        "exec unshare -pf --mount-proc sh -c '{refuse}; exec \"$0\" \"$@\"' \"$0\" \"$@\";"
    );
    job::start("nothing", 0, 2).after(&inside).launch().finish().assert_finished(2);
}
