//! A contender: one process or the ranks of one world, alive as long as it is measured.
//!
//! A request is a line on the first process's standard input. Its answer is a line of JSON, whose
//! `event` is `ready`, `sample` or `done`. Between its samples a contender is stopped (SIGSTOP),
//! because threads that spin while they wait for work would disturb the contender that is being
//! measured. Every wait has a deadline.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write, pipe};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::family::family;
use crate::interrupt::{Interrupted, Watch};

/// The number of lines of a failed contender's standard error that are kept.
const TAIL: usize = 12;

/// The time that a contender may take to end. Then it is killed.
const FAREWELL: Duration = Duration::from_secs(10);

/// A line that a contender prints. Its other fields depend on the benchmark.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Said {
    event: String,
    #[serde(flatten)]
    rest: serde_json::Value,
}

/// The reason why there is no further sample of a contender.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Failure {
    pub(crate) reason: String,
    /// The end of the contender's standard error.
    pub(crate) stderr: Vec<String>,
}

/// The reason why a wait ended without an answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    Interrupted(Interrupted),
    Failed(Failure),
}

/// A running or stopped contender.
#[derive(Debug)]
pub(crate) struct Live {
    /// The first process receives the requests.
    children: Vec<Child>,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<VecDeque<String>>>,
    deadline: Duration,
}

impl Live {
    /// Starts a contender, with one process per command. Each of its answers may take as long as
    /// `deadline`.
    pub(crate) fn start(commands: Vec<Command>, deadline: Duration) -> Result<Self> {
        let (errors, complaints) = pipe().context("cannot make a pipe")?;
        let (sender, lines) = channel();
        let mut live = Self { children: Vec::new(), input: None, lines, stderr: None, deadline };
        for mut command in commands {
            // Runs in its own process group, so an interrupt of the terminal reaches only this
            // program. If this program is killed, the system wakes and ends a stopped group without
            // a parent.
            let leader = live.children.first().map_or(Ok(0), |first| i32::try_from(first.id()))?;
            command.process_group(leader).stderr(complaints.try_clone()?);
            match live.children.is_empty() {
                true => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
                false => command.stdin(Stdio::null()).stdout(Stdio::null()),
            };
            live.children.push(command.spawn().context("cannot start it")?);
        }
        drop(complaints);
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
        live.stderr = Some(thread::spawn(move || tail(errors)));
        Ok(live)
    }

    /// The ids of the living processes of the contender, and of their descendants.
    pub(crate) fn ids(&mut self) -> Vec<u32> {
        let alive =
            self.children.iter_mut().filter_map(|child| is_alive(child).then(|| child.id()));
        family(&alive.collect::<Vec<_>>())
    }

    /// Waits until the contender is warm.
    pub(crate) fn ready<R: DeserializeOwned>(&mut self, watch: &Watch) -> Result<R, Trouble> {
        self.answer("ready", watch)
    }

    /// Requests the sample that the line describes.
    pub(crate) fn sample<S: DeserializeOwned>(
        &mut self,
        line: &str,
        watch: &Watch,
    ) -> Result<S, Trouble> {
        let asked = match &mut self.input {
            Some(input) => writeln!(input, "{line}").and_then(|()| input.flush()),
            None => Ok(()),
        };
        // If the pipe is broken, a process has ended, and `answer` finds out which and why.
        drop(asked);
        self.answer("sample", watch)
    }

    /// Lets the contender end, and returns its last answer.
    pub(crate) fn finish<D: DeserializeOwned>(mut self, watch: &Watch) -> Result<D, Trouble> {
        self.input = None;
        let last = self.answer("done", watch)?;
        self.end(Instant::now() + FAREWELL);
        Ok(last)
    }

    /// Stops the contender, so that it uses no processor.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::STOP);
    }

    /// Lets the contender continue.
    pub(crate) fn go_on(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Sends a signal to all descendants: mpiexec puts its ranks into their own groups, and
    /// torch.compile has helper processes.
    fn signal(&mut self, signal: Signal) {
        for id in self.ids() {
            if let Some(id) = i32::try_from(id).ok().and_then(Pid::from_raw) {
                // The next wait for an answer detects a process that has ended.
                let _gone = kill_process(id, signal);
            }
        }
    }

    /// The next answer, which must be this event. Libraries may print other lines too.
    fn answer<T: DeserializeOwned>(&mut self, event: &str, watch: &Watch) -> Result<T, Trouble> {
        let until = Instant::now() + self.deadline;
        let mut heard = String::new();
        loop {
            watch.check().map_err(Trouble::Interrupted)?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let seconds = self.deadline.as_secs_f64();
                return Err(self.fail(format!("gave no answer for {seconds} s")));
            }
            match self.lines.recv_timeout(left.min(Duration::from_millis(100))) {
                Ok(line) => match serde_json::from_str::<Said>(&line) {
                    Ok(said) if said.event == event => {
                        return serde_json::from_value(said.rest)
                            .map_err(|error| self.fail(format!("said {line}: {error}")));
                    }
                    Ok(_) => return Err(self.fail(format!("said {line} before `{event}`"))),
                    Err(_) => heard = line,
                },
                // If a rank fails, the rank that answers may wait for ever.
                Err(RecvTimeoutError::Timeout) if self.has_failed() => {
                    return Err(self.ended(&heard));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended(&heard)),
            }
        }
    }

    fn has_failed(&mut self) -> bool {
        let failed =
            |child: &mut Child| child.try_wait().ok().flatten().is_some_and(|s| !s.success());
        self.children.iter_mut().any(failed)
    }

    /// The contender closed its output without an answer, or one of its processes failed.
    fn ended(&mut self, heard: &str) -> Trouble {
        let status = self.end(Instant::now() + FAREWELL);
        let how = status.map_or_else(|| "ended".to_owned(), |status| status.to_string());
        let mut trouble = self.fail(how);
        if let Trouble::Failed(failure) = &mut trouble {
            let said = failure.stderr.iter().rev().find(|line| line.contains("rror: "));
            let said = said.or(failure.stderr.last()).map_or(heard, String::as_str).trim();
            if !said.is_empty() {
                failure.reason = format!("{said} ({})", failure.reason);
            }
        }
        trouble
    }

    /// Ends the contender and collects its standard error.
    fn fail(&mut self, reason: String) -> Trouble {
        self.end(Instant::now());
        let stderr = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        Trouble::Failed(Failure { reason, stderr: stderr.into() })
    }

    /// Waits until that time for the contender to end, then kills it. Returns the exit status of
    /// the first process, or of one that failed.
    fn end(&mut self, until: Instant) -> Option<ExitStatus> {
        self.go_on();
        while self.lives() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        // Also if the first process has ended, because its children may still run.
        self.signal(Signal::KILL);
        let ended: Vec<ExitStatus> =
            self.children.iter_mut().filter_map(|child| child.wait().ok()).collect();
        ended.iter().find(|status| !status.success()).or(ended.first()).copied()
    }

    fn lives(&mut self) -> bool {
        self.children.iter_mut().any(is_alive)
    }
}

fn is_alive(child: &mut Child) -> bool {
    matches!(child.try_wait(), Ok(None))
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.lives() {
            self.end(Instant::now());
        }
    }
}

/// The last lines of a text.
fn tail(text: impl Read) -> VecDeque<String> {
    let mut tail = VecDeque::new();
    for line in BufReader::new(text).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        if line.trim().is_empty() {
            continue;
        }
        if tail.len() == TAIL {
            tail.pop_front();
        }
        tail.push_back(line);
    }
    tail
}

/// Runs a contender that answers only once, and returns the last line of its output.
pub(crate) fn last_line(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().context("cannot start it")?;
    if !output.status.success() {
        let said = tail(&output.stderr[..]).pop_back().unwrap_or_default();
        bail!("{said} ({})", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().last().map(str::to_owned).context("it printed nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: &str = r#"echo '{"event":"ready","warm_up_losses":[2.5,2.25],"version":"sh"}'"#;
    const SAMPLE: &str =
        r#"echo '{"event":"sample","steps":3,"seconds":1.5,"cpu_seconds":1.4,"loss":2}'"#;
    const DONE: &str = r#"echo '{"event":"done","peak_rss_mb":7.5}'"#;

    #[derive(Debug, Deserialize)]
    struct Ready {
        warm_up_losses: Vec<f64>,
    }

    #[derive(Debug, Deserialize)]
    struct Sample {
        steps: usize,
    }

    #[derive(Debug, Deserialize)]
    struct Done {
        peak_rss_mb: f64,
    }

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    fn start(script: &str) -> Live {
        Live::start(vec![shell(script)], Duration::from_secs(20)).unwrap()
    }

    fn reason<T: std::fmt::Debug>(result: Result<T, Trouble>) -> String {
        match result {
            Err(Trouble::Failed(failure)) => failure.reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_contender_is_warm_gives_samples_and_ends() {
        let watch = Watch::quiet();
        let mut live = start(&format!(
            "{READY}; echo a library says something; while read line; do {SAMPLE}; done; {DONE}"
        ));
        let ready: Ready = live.ready(&watch).unwrap();
        assert_eq!(ready.warm_up_losses, [2.5, 2.25]);
        live.stop();
        for _ in 0..2 {
            live.go_on();
            assert_eq!(live.sample::<Sample>("go 0.5", &watch).unwrap().steps, 3);
            live.stop();
        }
        live.go_on();
        assert_eq!(live.finish::<Done>(&watch).unwrap().peak_rss_mb, 7.5);
    }

    #[test]
    fn a_stopped_contender_stands_still_until_it_goes_on() {
        let watch = Watch::quiet();
        let mut live = start(&format!("{READY}; while read line; do {SAMPLE}; done; {DONE}"));
        live.ready::<Ready>(&watch).unwrap();
        live.stop();
        live.deadline = Duration::from_millis(200);
        assert_eq!(reason(live.sample::<Sample>("go 0.5", &watch)), "gave no answer for 0.2 s");
    }

    #[test]
    fn a_contender_that_dies_is_explained_by_what_it_said() {
        let watch = Watch::quiet();
        let mut live = start(&format!(
            "{READY}; read line; echo 'error: no memory' >&2; echo 'a hint' >&2; exit 3"
        ));
        live.ready::<Ready>(&watch).unwrap();
        match live.sample::<Sample>("go 0.5", &watch) {
            Err(Trouble::Failed(failure)) => {
                assert_eq!(failure.reason, "error: no memory (exit status: 3)");
                assert_eq!(failure.stderr, ["error: no memory", "a hint"]);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(reason(start("kill -KILL $$").ready::<Ready>(&watch)), "signal: 9 (SIGKILL)");
        assert_eq!(reason(start("echo what").ready::<Ready>(&watch)), "what (exit status: 0)");
        assert!(reason(start(DONE).ready::<Ready>(&watch)).contains("before `ready`"));
    }

    #[test]
    fn several_processes_are_one_contender() {
        let watch = Watch::quiet();
        let ranks = |first: &str, second: &str| {
            Live::start(vec![shell(first), shell(second)], Duration::from_secs(20)).unwrap()
        };
        let first = format!("{READY}; while read line; do {SAMPLE}; done; {DONE}");
        let mut live = ranks(&first, "true");
        live.ready::<Ready>(&watch).unwrap();
        assert_eq!(live.sample::<Sample>("go", &watch).unwrap().steps, 3);
        live.finish::<Done>(&watch).unwrap();

        let waits = format!("{READY}; sleep 60");
        let mut live = ranks(&waits, "echo no room >&2; exit 4");
        live.ready::<Ready>(&watch).unwrap();
        match live.sample::<Sample>("go", &watch) {
            Err(Trouble::Failed(failure)) => assert_eq!(failure.stderr, ["no room"]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_a_contender_started_ends_with_it() {
        let mut live = start("sleep 60 & wait");
        while live.ids().len() < 2 {
            thread::sleep(Duration::from_millis(1));
        }
        let sleep = live.ids()[1];
        drop(live);
        let lives = || {
            let stat = std::fs::read_to_string(format!("/proc/{sleep}/stat"));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        let until = Instant::now() + Duration::from_secs(20);
        while lives() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!lives());
    }

    #[test]
    fn only_the_end_of_a_long_text_is_kept() {
        let text: String = (0..100).map(|n| format!("line {n}\n\n")).collect();
        let kept = tail(text.as_bytes());
        assert_eq!((kept.len(), kept[TAIL - 1].as_str()), (TAIL, "line 99"));
    }

    #[test]
    fn an_answer_in_one_piece_is_the_last_line() {
        let last = |script: &str| last_line(&mut shell(script)).map_err(|error| error.to_string());
        assert_eq!(last("echo a; echo b").unwrap(), "b");
        assert_eq!(last("echo oh >&2; exit 2").unwrap_err(), "oh (exit status: 2)");
    }
}
