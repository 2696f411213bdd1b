//! The child processes of a job: their starts, their signals, and their ends.
//!
//! Each child leads a process group of its own, so a signal reaches also what the child has started, and
//! an interrupt of the terminal reaches the launcher alone. A child has gone when its group is empty. A process of the group that has lost its parent becomes a child of the launcher
//! ([`adopt_orphans`]): in a container without an init nobody else would wait for it, and its group
//! would never be empty.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process_group, set_child_subreaper,
    test_kill_process_group, waitpgid,
};

use crate::{Error, Result};

/// The time between two checks of the children.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// When this value is dropped, the processes have this long to disappear after they are killed.
const TO_DISAPPEAR: Duration = Duration::from_secs(2);

/// The child processes. Dropping this value kills them.
#[derive(Debug, Default)]
pub(super) struct Children(Vec<ChildProcess>);

#[derive(Debug)]
struct ChildProcess {
    /// Its name in messages.
    name: String,
    child: Child,
    /// `None` while it runs.
    ended: Option<ExitStatus>,
    /// In its group there may be processes.
    has_group: bool,
}

impl Children {
    /// Starts a process.
    ///
    /// # Errors
    /// A process that cannot be started.
    pub(super) fn start(&mut self, name: String, command: &mut Command) -> Result<&mut Child> {
        let child = command
            .process_group(0)
            .spawn()
            .map_err(|error| Error::io(format!("start {name}"), error))?;
        let last = self.0.len();
        self.0.push(ChildProcess { name, child, ended: None, has_group: true });
        Ok(&mut self.0[last].child)
    }

    /// Polls the processes that have not ended.
    ///
    /// # Errors
    /// A process for which another part of this program has waited. The others have been polled.
    pub(super) fn look(&mut self) -> Result<()> {
        let mut result = Ok(());
        for process in &mut self.0 {
            if process.ended.is_none() {
                match process.child.try_wait() {
                    Ok(ended) => process.ended = ended,
                    Err(error) => {
                        // The process's number may belong to another process by now, which must not
                        // be killed.
                        (process.ended, process.has_group) = (Some(ExitStatus::default()), false);
                        result = Err(Error::io(format!("wait for {}", process.name), error));
                    }
                }
            }
            if process.ended.is_some() && process.has_group {
                let group = process.pid();
                // What has lost its parent is a child of this process, see `adopt_orphans`.
                while let Ok(Some(_)) = waitpgid(group, WaitOptions::NOHANG) {}
                // As long as the group has a member, no other group gets its number.
                process.has_group = test_kill_process_group(group).is_ok();
            }
        }
        result
    }

    /// Sends a signal to the processes that have not gone.
    pub(super) fn signal(&self, signal: Signal) {
        for process in self.0.iter().filter(|process| process.has_group) {
            // It may have ended in the meantime.
            let _: std::result::Result<(), Errno> = kill_process_group(process.pid(), signal);
        }
    }

    /// The statuses of the processes, `None` for each that runs.
    pub(super) fn statuses(&self) -> Vec<Option<ExitStatus>> {
        self.0.iter().map(|process| process.ended).collect()
    }

    /// All processes have ended.
    pub(super) fn have_ended(&self) -> bool {
        self.0.iter().all(|process| process.ended.is_some())
    }

    /// All processes have ended, and so has what they left in their groups.
    pub(super) fn have_gone(&self) -> bool {
        self.present().is_empty()
    }

    /// The processes that have not gone, by their numbers.
    pub(super) fn present(&self) -> Vec<usize> {
        let all = self.0.iter().enumerate();
        let present = all.filter(|(_, process)| process.ended.is_none() || process.has_group);
        present.map(|(index, _)| index).collect()
    }

    /// All processes have succeeded.
    pub(super) fn have_succeeded(&self) -> bool {
        self.0.iter().all(|process| process.ended.is_some_and(|status| status.success()))
    }

    /// A process has failed.
    pub(super) fn have_failed(&self) -> bool {
        self.0.iter().any(|process| process.ended.is_some_and(|status| !status.success()))
    }
}

/// Makes this process the parent of all descendants that lose theirs.
///
/// # Errors
/// A system without this attribute of processes.
pub(super) fn adopt_orphans() -> Result<()> {
    set_child_subreaper(Some(getpid()))
        .map_err(|error| Error::io("become the parent of the ranks' orphans", error))
}

impl ChildProcess {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        // The remaining processes are ended even if this check fails.
        drop(self.look());
        self.signal(Signal::KILL);
        for process in self.0.iter_mut().filter(|process| process.ended.is_none()) {
            process.ended = Some(process.child.wait().unwrap_or_default());
        }
        let end = Instant::now() + TO_DISAPPEAR;
        while !self.have_gone() && Instant::now() < end {
            std::thread::sleep(LOOK);
            drop(self.look());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    use rustix::process::test_kill_process;

    use super::*;

    #[test]
    fn a_rank_that_the_system_has_forgotten_is_an_error_and_is_not_killed() {
        let mut children = Children::default();
        let command = &mut Command::new("true");
        let child = children.start("rank 0".to_owned(), command).expect("a process");
        // Another part of the program waits for the child.
        let wait = WaitOptions::empty();
        rustix::process::waitpid(Some(Pid::from_child(child)), wait).expect("it ends");
        let message = children.look().expect_err("it is not there").to_string();
        assert!(message.contains("wait for rank 0"), "{message}");
        assert!(children.have_gone());
        children.look().expect("it is asked for once");
    }

    #[test]
    fn what_a_process_leaves_in_its_group_is_killed() {
        adopt_orphans().expect("Linux has it");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!"]).stdout(Stdio::piped());
        let mut children = Children::default();
        let child = children.start("rank 0".to_owned(), &mut command).expect("a process");
        let mut line = String::new();
        let output = child.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("the number of a process");
        let left = line.trim().parse().ok().and_then(Pid::from_raw).expect("a process number");
        while !children.have_ended() {
            std::thread::sleep(LOOK);
            children.look().expect("it can be waited for");
        }
        assert!(!children.have_gone());
        test_kill_process(left).expect("it is still there");
        drop(children);
        assert!(test_kill_process(left).is_err(), "it still runs");
    }
}
