//! A contender's process, which lives as long as its configuration is measured.
//!
//! It is asked for a sample by a line on its standard input and answers by a line of JSON. Between
//! its samples it is stopped (SIGSTOP): threads that spin while they wait for work would otherwise
//! disturb whoever is measured meanwhile. Every wait has a deadline.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use crate::interrupt::{Interrupted, Watch};

/// Lines of a failed contender's standard error that are kept.
const TAIL: usize = 12;

/// How long a contender may take to end, after which it is killed.
const FAREWELL: Duration = Duration::from_secs(10);

/// A line that a contender prints.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Event {
    Ready(Ready),
    Sample(Measured),
    Done { peak_rss_mb: Option<f64> },
}

/// What it says when it is warm.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Ready {
    /// The loss of each warm-up step: the same steps for everybody.
    pub(super) warm_up_losses: Vec<f64>,
    /// Of the library, where it can only tell itself.
    pub(super) version: Option<String>,
}

/// One sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) steps: usize,
    pub(super) seconds: f64,
    /// Of all threads.
    pub(super) cpu_seconds: f64,
    /// Of the last step; the faster contender is further on.
    pub(super) loss: f64,
}

/// Why there is no (further) sample of a contender.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Failure {
    pub(super) reason: String,
    /// The end of what it wrote to its standard error.
    pub(super) stderr: Vec<String>,
}

/// Why a wait ended without an answer.
#[derive(Debug)]
pub(super) enum Trouble {
    Interrupted(Interrupted),
    Failed(Failure),
}

/// A contender that runs, or is stopped.
#[derive(Debug)]
pub(super) struct Live {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<VecDeque<String>>>,
    deadline: Duration,
}

impl Live {
    /// Starts it; each of its answers may take as long as `deadline`.
    pub(super) fn start(command: &mut Command, deadline: Duration) -> Result<Self> {
        // In a process group of its own: an interrupt of the terminal is for us alone. And should
        // we be killed, the system wakes and ends a stopped group that nobody looks after.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start it")?;
        let output = child.stdout.take().context("it has no output")?;
        let errors = child.stderr.take().context("it has no standard error")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let stderr = Some(thread::spawn(move || tail(errors)));
        Ok(Self { input: child.stdin.take(), child, lines, stderr, deadline })
    }

    /// Its number, by which its processor time is found.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it is warm.
    pub(super) fn ready(&mut self, watch: &Watch) -> Result<Ready, Trouble> {
        match self.answer(watch)? {
            Event::Ready(ready) => Ok(ready),
            other => Err(self.fail(format!("said {other:?} before it was ready"))),
        }
    }

    /// Has it train for some seconds.
    pub(super) fn sample(&mut self, seconds: f64, watch: &Watch) -> Result<Measured, Trouble> {
        let asked = match &mut self.input {
            Some(input) => writeln!(input, "go {seconds}").and_then(|()| input.flush()),
            None => Ok(()),
        };
        // A pipe that broke is explained by the process that ended, which `answer` finds out.
        drop(asked);
        match self.answer(watch)? {
            Event::Sample(measured) => Ok(measured),
            other => Err(self.fail(format!("said {other:?} instead of a sample"))),
        }
    }

    /// Lets it end, and gives the most memory that it had.
    pub(super) fn finish(mut self, watch: &Watch) -> Result<Option<f64>, Trouble> {
        self.input = None;
        match self.answer(watch)? {
            Event::Done { peak_rss_mb } => {
                self.end(Instant::now() + FAREWELL);
                Ok(peak_rss_mb)
            }
            other => Err(self.fail(format!("said {other:?} instead of good-bye"))),
        }
    }

    /// Takes it off the processors.
    pub(super) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub(super) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// To the whole group: torch.compile has processes of its own.
    fn signal(&self, signal: Signal) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            // That it has ended is noticed by the next wait for its answer.
            let _gone = kill_process_group(group, signal);
        }
    }

    /// The next line that is one of ours: libraries may print, too.
    fn answer(&mut self, watch: &Watch) -> Result<Event, Trouble> {
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
                Ok(line) => match serde_json::from_str(&line) {
                    Ok(event) => return Ok(event),
                    Err(_) => heard = line,
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended(&heard)),
            }
        }
    }

    /// It closed its output without an answer.
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

    /// Ends it, and collects what it said.
    fn fail(&mut self, reason: String) -> Trouble {
        self.end(Instant::now());
        let stderr = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        Trouble::Failed(Failure { reason, stderr: stderr.into() })
    }

    /// Waits for its end until then, and kills it where that does not come.
    fn end(&mut self, until: Instant) -> Option<ExitStatus> {
        self.go_on();
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
                Ok(Some(status)) => return Some(status),
                Ok(None) | Err(_) => break,
            }
        }
        self.signal(Signal::KILL);
        self.child.wait().ok()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end(Instant::now());
        }
    }
}

/// The last lines of a text that comes in.
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

/// Starts a contender that must answer in one piece, and gives the last line of its output.
pub(super) fn last_line(command: &mut Command) -> Result<String> {
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

    fn start(script: &str) -> Live {
        let mut shell = Command::new("sh");
        Live::start(shell.args(["-c", script]), Duration::from_secs(20)).unwrap()
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
        let ready = live.ready(&watch).unwrap();
        assert_eq!((ready.warm_up_losses, ready.version), (vec![2.5, 2.25], Some("sh".into())));
        live.stop();
        for _ in 0..2 {
            live.go_on();
            assert_eq!(live.sample(0.5, &watch).unwrap().steps, 3);
            live.stop();
        }
        live.go_on();
        assert_eq!(live.finish(&watch).unwrap(), Some(7.5));
    }

    #[test]
    fn a_stopped_contender_stands_still_until_it_goes_on() {
        let watch = Watch::quiet();
        let mut live = start(&format!("{READY}; while read line; do {SAMPLE}; done; {DONE}"));
        live.ready(&watch).unwrap();
        live.stop();
        live.deadline = Duration::from_millis(200);
        assert_eq!(reason(live.sample(0.5, &watch)), "gave no answer for 0.2 s");
    }

    #[test]
    fn a_contender_that_dies_is_explained_by_what_it_said() {
        let watch = Watch::quiet();
        let mut live = start(&format!(
            "{READY}; read line; echo 'error: no memory' >&2; echo 'a hint' >&2; exit 3"
        ));
        live.ready(&watch).unwrap();
        match live.sample(0.5, &watch) {
            Err(Trouble::Failed(failure)) => {
                assert_eq!(failure.reason, "error: no memory (exit status: 3)");
                assert_eq!(failure.stderr, ["error: no memory", "a hint"]);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(reason(start("kill -KILL $$").ready(&watch)), "signal: 9 (SIGKILL)");
        assert_eq!(reason(start("echo what").ready(&watch)), "what (exit status: 0)");
        assert!(reason(start(DONE).ready(&watch)).contains("before it was ready"));
    }

    #[test]
    fn only_the_end_of_a_long_text_is_kept() {
        let text: String = (0..100).map(|n| format!("line {n}\n\n")).collect();
        let kept = tail(text.as_bytes());
        assert_eq!((kept.len(), kept[TAIL - 1].as_str()), (TAIL, "line 99"));
    }

    #[test]
    fn an_answer_in_one_piece_is_the_last_line() {
        let shell = |script: &str| {
            let mut shell = Command::new("sh");
            last_line(shell.args(["-c", script])).map_err(|error| error.to_string())
        };
        assert_eq!(shell("echo a; echo b").unwrap(), "b");
        assert_eq!(shell("echo oh >&2; exit 2").unwrap_err(), "oh (exit status: 2)");
    }
}
