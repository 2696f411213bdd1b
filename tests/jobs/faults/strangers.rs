//! Another user of the host writes to every socket and pipe of a job.

use std::fs;
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

use super::job;

/// The user `nobody` of most systems.
const NOBODY: u32 = 65534;

/// Connections that are held open at the same time.
const HELD: usize = 200;

/// The stranger's messages: a failure in two formats, the start of a greeting, zeros, nothing.
const WORDS: [&[u8]; 5] = [
    b"{\"rank\":0,\"message\":\"a stranger's words\",\"echo\":false}",
    b"0 0 a stranger's words\n",
    b"candlbr2\x01\0\0\0\x03\0\0\0",
    &[0; 64],
    b"",
];

/// A thread that runs as another user.
struct Stranger {
    done: Arc<AtomicBool>,
    thread: JoinHandle<Said>,
}

/// The numbers of the stranger's connections and of its writes to pipes.
#[derive(Debug, Default)]
struct Said {
    to_sockets: usize,
    to_files: usize,
}

impl Stranger {
    /// Prints a line and returns `None` if this process may not become another user.
    fn start() -> Option<Self> {
        if !geteuid().is_root() {
            println!("left out: only root can become another user");
            return None;
        }
        let done = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&done);
        let thread = thread::spawn(move || {
            let nobody = Uid::from_raw(NOBODY);
            // In the kernel each thread has its own user.
            set_thread_res_uid(nobody, nobody, nobody).expect("root may become anybody");
            let (mut said, mut held) = (Said::default(), Vec::new());
            while !until.load(Ordering::Relaxed) {
                said.to_sockets += speak_to_sockets(&mut held);
                said.to_files += write_to_pipes();
                thread::sleep(Duration::from_millis(1));
            }
            said
        });
        Some(Self { done, thread })
    }

    fn finish(self) -> Said {
        self.done.store(true, Ordering::Relaxed);
        self.thread.join().expect("the stranger does not panic")
    }
}

/// Connects to every named socket of ours and sends all messages. Returns how often it connected.
fn speak_to_sockets(held: &mut Vec<UnixStream>) -> usize {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let names = table.lines().filter_map(|line| Some(line.split_once("@candelabrum/")?.1));
    let addresses = names
        .flat_map(|name| SocketAddr::from_abstract_name(format!("candelabrum/{name}").as_bytes()));
    let mut count = 0;
    for address in addresses {
        for words in WORDS {
            let Ok(mut socket) = UnixStream::connect_addr(&address) else { break };
            count += 1;
            drop(socket.write_all(words));
            held.push(socket);
        }
    }
    held.drain(..held.len().saturating_sub(HELD));
    count
}

/// Tries to write to every open pipe of every process. Returns the number of successes.
fn write_to_pipes() -> usize {
    let mut count = 0;
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let files = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        for file in files {
            let is_pipe = fs::read_link(file.path())
                .is_ok_and(|to| to.to_string_lossy().starts_with("pipe:"));
            if is_pipe && fs::write(file.path(), WORDS[1]).is_ok() {
                count += 1;
            }
        }
    }
    count
}

#[test]
fn another_user_who_writes_to_everything_of_a_job_changes_nothing() {
    // The other ranks listen for the late rank for a second.
    let start = || job::start("late", 1, 3).launch();
    let undisturbed = start().finish();
    undisturbed.assert_finished(3);
    let Some(stranger) = Stranger::start() else { return };
    let disturbed = start().finish();
    let said = stranger.finish();
    println!("the stranger spoke: {said:?}; the job took {:?}", disturbed.program.took);
    disturbed.assert_finished(3);
    assert!(said.to_sockets > 100, "it has found the ranks: {said:?}");
    assert_eq!(said.to_files, 0);
    assert_eq!(disturbed.digests(3), undisturbed.digests(3));
}
