//! The processes of a player: one process or the ranks of one world, alive while they are measured.
//!
//! A request is a line of JSON on the first process's standard input. Its answer is a line of JSON,
//! whose `event` is `ready`, `sample` or `done`. Every wait has a deadline.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::Value;
use tempfile::tempfile;

use super::host::{family, send};
use super::sample::{SampleFailure, SettingValues};
use crate::interrupt::SignalWatch;

/// The number of lines of a failed player's standard error that are kept.
const TAIL: usize = 12;

/// The time that a player may take to end. Then it is killed.
const FAREWELL: Duration = Duration::from_secs(10);

/// A player, which runs from a question to its answer and is stopped otherwise. A question to it
/// ends with [`Interrupted`](crate::interrupt), or with a [`SampleFailure`] after which it is gone.
#[derive(Debug)]
pub(crate) struct PlayerProcess {
    /// The first process receives the requests.
    children: Vec<Child>,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: File,
    deadline: Duration,
    /// The processes and their descendants when it was ready.
    pub(crate) family: Vec<Pid>,
}

impl PlayerProcess {
    /// Starts a player, with one process per command. Each of its answers may take as long as
    /// `deadline`.
    pub(crate) fn start(commands: Vec<Command>, deadline: Duration) -> Result<Self> {
        let stderr = tempfile().context("cannot make a temporary file")?;
        let (sender, lines) = channel();
        let (children, family) = (Vec::new(), Vec::new());
        let mut live = Self { children, input: None, lines, stderr, deadline, family };
        for mut command in commands {
            // Runs in its own process group, so an interrupt of the terminal reaches only this
            // program. If this program is killed, the system wakes and ends a stopped group without
            // a parent.
            let leader = live.children.first().map(Pid::from_child);
            command.process_group(Pid::as_raw(leader)).stderr(live.stderr.try_clone()?);
            match live.children.is_empty() {
                true => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
                false => command.stdin(Stdio::null()).stdout(Stdio::null()),
            };
            live.children.push(command.spawn().context("cannot start it")?);
        }
        let first = live.children.first_mut().context("there is nothing to start")?;
        live.input = first.stdin.take();
        let output = first.stdout.take().context("it has no output")?;
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(live)
    }

    fn look_for_family(&mut self) {
        let alive = |child: &mut Child| is_alive(child).then(|| Pid::from_child(child));
        self.family = family(&self.children.iter_mut().filter_map(alive).collect::<Vec<_>>());
    }

    /// Lets the player run on one core only, the last one. Cores of a virtual machine are disturbed
    /// independently of each other, so players with one thread are comparable on the same core only.
    pub(crate) fn keep_on_one_core(&self) {
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let Some(last) = (0..CpuSet::MAX_CPU).rfind(|&core| allowed.is_set(core)) else { return };
        let mut one = CpuSet::new();
        one.set(last);
        for child in &self.children {
            // Where it is not allowed, the samples are noisier.
            let _refused = sched_setaffinity(Some(Pid::from_child(child)), &one);
        }
    }

    /// Waits until the player is warm.
    pub(crate) fn ready(&mut self, watch: &SignalWatch) -> Result<SettingValues> {
        let ready = self.answer("ready", watch)?;
        // Not again for each turn: a search of /proc takes so long that the processor falls asleep,
        // and the next sample is disturbed.
        self.look_for_family();
        self.signal(Signal::STOP);
        Ok(ready)
    }

    /// Requests a sample.
    pub(crate) fn sample(
        &mut self,
        request: &SettingValues,
        watch: &SignalWatch,
    ) -> Result<SettingValues> {
        let asked = match (&mut self.input, serde_json::to_string(request)) {
            (Some(input), Ok(line)) => writeln!(input, "{line}").and_then(|()| input.flush()),
            _ => Ok(()),
        };
        // If the pipe is broken, a process has ended, and `answer` finds out which and why.
        drop(asked);
        let sample = self.answer("sample", watch)?;
        self.signal(Signal::STOP);
        Ok(sample)
    }

    /// Lets the player end, and returns its last answer.
    pub(crate) fn finish(&mut self, watch: &SignalWatch) -> Result<SettingValues> {
        self.input = None;
        let last = self.answer("done", watch)?;
        self.end(Instant::now() + FAREWELL);
        Ok(last)
    }

    /// Sends a signal to all descendants: mpiexec puts its ranks into their own groups, and
    /// torch.compile has helper processes.
    fn signal(&self, signal: Signal) {
        // The next wait for an answer detects a process that has ended.
        send(signal, &self.family);
    }

    /// Lets the player go on until its next answer, which must be this event. Libraries may print
    /// other lines too.
    fn answer(&mut self, event: &str, watch: &SignalWatch) -> Result<SettingValues> {
        self.signal(Signal::CONT);
        let until = Instant::now() + self.deadline;
        let mut heard = String::new();
        loop {
            watch.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let seconds = self.deadline.as_secs_f64();
                bail!(self.fail(format!("gave no answer for {seconds} s")));
            }
            match self.lines.recv_timeout(left.min(Duration::from_millis(100))) {
                Ok(line) => match serde_json::from_str::<SettingValues>(&line) {
                    Ok(mut said) => match said.remove("event") {
                        Some(Value::String(name)) if name == event => return Ok(said),
                        _ => bail!(self.fail(format!("said {line} before `{event}`"))),
                    },
                    Err(_) => heard = line,
                },
                // If a rank fails, the rank that answers may wait for ever.
                Err(RecvTimeoutError::Timeout) if !self.has_failed() => {}
                Err(_) => bail!(self.ended(&heard)),
            }
        }
    }

    fn has_failed(&mut self) -> bool {
        let failed =
            |child: &mut Child| child.try_wait().ok().flatten().is_some_and(|s| !s.success());
        self.children.iter_mut().any(failed)
    }

    /// The player closed its output without an answer, or one of its processes failed.
    fn ended(&mut self, heard: &str) -> SampleFailure {
        let status = self.end(Instant::now() + FAREWELL);
        let how = status.map_or_else(|| "ended".to_owned(), |status| status.to_string());
        let mut failure = self.fail(how);
        let said = failure.stderr.iter().rev().find(|line| line.contains("rror: "));
        let said = said.or(failure.stderr.last()).map_or(heard, String::as_str).trim();
        if !said.is_empty() {
            failure.reason = format!("{said} ({})", failure.reason);
        }
        failure
    }

    /// Ends the player and collects its standard error.
    fn fail(&mut self, reason: String) -> SampleFailure {
        self.end(Instant::now());
        let mut stderr = Vec::new();
        let read = self.stderr.rewind().and_then(|()| self.stderr.read_to_end(&mut stderr));
        // Without its text a failure still has its reason.
        drop(read);
        SampleFailure { reason, stderr: tail(&String::from_utf8_lossy(&stderr)) }
    }

    /// Waits until that time for the player to end, then kills it. Returns the exit status of a process
    /// that failed by itself, or else of one that failed, or of the first one.
    fn end(&mut self, until: Instant) -> Option<ExitStatus> {
        self.look_for_family();
        self.signal(Signal::CONT);
        while self.lives() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        // Also if the first process has ended, because its children may still run.
        self.signal(Signal::KILL);
        let ended: Vec<ExitStatus> =
            self.children.iter_mut().filter_map(|child| child.wait().ok()).collect();
        let by_itself = ended.iter().find(|status| status.code().is_some_and(|code| code != 0));
        by_itself.or(ended.iter().find(|status| !status.success())).or(ended.first()).copied()
    }

    fn lives(&mut self) -> bool {
        self.children.iter_mut().any(is_alive)
    }
}

fn is_alive(child: &mut Child) -> bool {
    matches!(child.try_wait(), Ok(None))
}

impl Drop for PlayerProcess {
    fn drop(&mut self) {
        if self.lives() {
            self.end(Instant::now());
        }
    }
}

/// The last lines of a text that are not blank.
fn tail(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL)..].iter().map(|&line| line.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use procfs::process::Process;

    use super::*;

    const READY: &str = r#"echo '{"event":"ready","ranks":1}'"#;
    const SAMPLE: &str = r#"echo '{"event":"sample","steps":3}'"#;
    const DONE: &str = r#"echo '{"event":"done","peak_rss_mb":7.5}'"#;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    fn start(scripts: &[&str]) -> PlayerProcess {
        let commands = scripts.iter().map(|script| shell(script)).collect();
        PlayerProcess::start(commands, Duration::from_secs(20)).unwrap()
    }

    fn failure(answer: Result<SettingValues>) -> SampleFailure {
        answer.unwrap_err().downcast().unwrap()
    }

    /// The letter of a process's state.
    fn state(process: Pid) -> Option<char> {
        Some(Process::new(process.as_raw_nonzero().get()).ok()?.stat().ok()?.state)
    }

    fn wait_until(mut holds: impl FnMut() -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(Instant::now() < until);
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_player_is_warm_gives_samples_and_ends() {
        let watch = SignalWatch::quiet();
        let answers = format!(
            "{READY}; echo a library says something; while read line; do {SAMPLE}; done; {DONE}"
        );
        // The second process of the world says nothing.
        for scripts in [&[&*answers][..], &[&answers, "true"]] {
            let mut live = start(scripts);
            assert_eq!(live.ready(&watch).unwrap()["ranks"], 1);
            for _ in 0..2 {
                assert_eq!(live.sample(&SettingValues::new(), &watch).unwrap()["steps"], 3);
            }
            assert_eq!(live.finish(&watch).unwrap()["peak_rss_mb"], 7.5);
        }
    }

    #[test]
    fn a_player_stands_still_until_it_is_asked_and_must_answer_in_time() {
        let watch = SignalWatch::quiet();
        let mut live = start(&[&format!("{READY}; read line; {SAMPLE}; read line; sleep 60")]);
        live.ready(&watch).unwrap();
        wait_until(|| state(live.family[0]) == Some('T'));
        live.sample(&SettingValues::new(), &watch).unwrap();
        wait_until(|| state(live.family[0]) == Some('T'));
        live.deadline = Duration::from_millis(200);
        assert_eq!(
            failure(live.sample(&SettingValues::new(), &watch)).reason,
            "gave no answer for 0.2 s"
        );
    }

    #[test]
    fn a_player_that_dies_is_explained_by_what_it_said() {
        let watch = SignalWatch::quiet();
        let dies = "read line; echo 'error: no memory' >&2; echo 'a hint' >&2; exit 3";
        // The first process dies, or another one while the first waits.
        for scripts in [&[&*format!("{READY}; {dies}")][..], &[&format!("{READY}; sleep 60"), dies]]
        {
            let mut live = start(scripts);
            live.ready(&watch).unwrap();
            let failure = failure(live.sample(&SettingValues::new(), &watch));
            assert_eq!(failure.reason, "error: no memory (exit status: 3)");
            assert_eq!(failure.stderr, ["error: no memory", "a hint"]);
        }
        let reason = |script: &str| failure(start(&[script]).ready(&watch)).reason;
        assert_eq!(reason("kill -KILL $$"), "signal: 9 (SIGKILL)");
        assert_eq!(reason("echo what"), "what (exit status: 0)");
        assert!(reason(DONE).contains("before `ready`"));
    }

    #[test]
    fn what_a_player_started_ends_with_it() {
        let mut live = start(&["sleep 60 & wait"]);
        wait_until(|| {
            live.look_for_family();
            live.family.len() == 2
        });
        let sleep = live.family[1];
        drop(live);
        wait_until(|| matches!(state(sleep), None | Some('Z')));
    }
}
