//! The tie of a process to its launcher: it ends when the launcher ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread::Builder;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, kill_process, pidfd_open,
    set_parent_process_death_signal,
};

use super::{ancestors, vars};
use crate::{Error, Result};

/// Makes the kernel send `signal` to the process of `command` when the thread that starts it ends.
/// Whatever program the process becomes later, this stays.
pub(super) fn end_with_launcher(command: &mut Command, signal: Signal) {
    let launcher = getpid();
    let follow = move || -> io::Result<()> {
        set_parent_process_death_signal(Some(signal))?;
        // The launcher may have died before the line above.
        let lives = getppid().map(Pid::as_raw_nonzero) == Some(launcher.as_raw_nonzero());
        if lives { Ok(()) } else { Err(io::Error::from_raw_os_error(ESRCH)) }
    };
    // SAFETY: between fork and exec the closure makes two calls of the system, which may be made
    // there. It allocates nothing, takes no lock, and an error of the system's number needs no memory.
    unsafe { command.pre_exec(follow) };
}

/// The system's number for "no such process".
const ESRCH: i32 = Errno::SRCH.raw_os_error();

/// Makes this process die when its launcher dies, if it has one.
///
/// A program may stand between the launcher and this process: a shell, numactl. A signal that asks for the end of
/// the job also reaches that program, which may die at once while this process saves its work. So such a process
/// follows the launcher and not its parent.
pub(crate) fn follow_parent() -> Result<()> {
    let Some(launcher) = std::env::var(vars::PARENT).ok().and_then(|text| text.parse::<i32>().ok())
    else {
        return Ok(());
    };
    let failed = |error: Errno| Error::io("follow the launcher", error);
    let process = Pid::from_raw(launcher).filter(|pid| getppid() != Some(*pid));
    match process.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(launcher)) => {
            let follow = move || {
                // The end of a process is something to read. An interrupted wait is tried again.
                while poll(&mut [PollFd::new(&launcher, PollFlags::IN)], None) == Err(Errno::INTR) {
                }
                // A process may always send signals to itself.
                kill_process(getpid(), Signal::KILL).ok();
            };
            let thread = Builder::new().name("candelabrum-launcher".to_owned()).spawn(follow);
            thread.map_err(|error| Error::io("follow the launcher", error))?;
        }
        // A launcher that has died is noticed below. Kernels before 5.3 have no such descriptors.
        _ => set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?,
    }
    // The launcher may have died before the lines above.
    if !ancestors::has_ancestor(launcher) {
        return Err(Error::Launch { what: "the launcher has died".to_owned() });
    }
    Ok(())
}
