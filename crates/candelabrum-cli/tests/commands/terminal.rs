//! `candelabrum watch` in a terminal: a pseudo-terminal, whose other end this test reads and types into.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tempfile::tempdir;

use super::made_up::MadeUp;

const DEADLINE: Duration = Duration::from_secs(30);

/// What leaves the terminal's other screen.
const RESTORED: &str = "\u{1b}[?1049l";

/// A program in a terminal.
struct Screen {
    child: Child,
    keys: File,
    output: Receiver<Vec<u8>>,
    seen: String,
}

impl Screen {
    fn start(dir: &Path) -> Self {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let size = Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&screen, size).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap().into_string().unwrap();
        let inner = File::options().read(true).write(true).open(name).unwrap();
        let stdio = || Stdio::from(inner.try_clone().unwrap());
        let mut program = Command::new(env!("CARGO_BIN_EXE_candelabrum"));
        program.arg("watch").arg(dir).env("TERM", "xterm-256color");
        let child = program.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
        let keys = File::from(screen);
        let mut source = keys.try_clone().unwrap();
        let (sender, output) = channel();
        // The thread ends when the program has closed its end.
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = source.read(&mut bytes) {
                drop(sender.send(bytes[..count].to_vec()));
            }
        });
        Self { child, keys, output, seen: String::new() }
    }

    fn wait_for(&mut self, text: &str) {
        let until = Instant::now() + DEADLINE;
        while !self.seen.contains(text) {
            let left = until.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(left) {
                Ok(bytes) => self.seen += &String::from_utf8_lossy(&bytes),
                Err(error) => panic!("no {text:?}: {error}, but {:?}", self.seen),
            }
        }
    }

    fn end(mut self) -> ExitStatus {
        self.wait_for(RESTORED);
        self.child.wait().unwrap()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // It is over, except where an assertion failed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_key_ends_the_dashboard_and_restores_the_terminal() {
    let folder = tempdir().unwrap();
    MadeUp::fp32().write(folder.path());
    let mut screen = Screen::start(folder.path());
    screen.wait_for("samples/s");
    screen.wait_for("s smoothing");
    screen.keys.write_all(b"l").unwrap();
    screen.wait_for("logarithmic, smoothed");
    screen.keys.write_all(b"q").unwrap();
    assert!(screen.end().success());
}

#[test]
fn a_signal_ends_the_dashboard_and_restores_the_terminal() {
    let folder = tempdir().unwrap();
    MadeUp::fp32().write(folder.path());
    let mut screen = Screen::start(folder.path());
    screen.wait_for("s smoothing");
    let pid = Pid::from_child(&screen.child);
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(screen.end().signal(), Some(Signal::TERM.as_raw()));
}
