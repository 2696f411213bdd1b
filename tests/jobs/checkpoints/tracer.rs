//! A program that is killed before a chosen system call that changes a file: the calls of all its processes and threads
//! are counted by ptrace, so each place between two of them can be tried.

use std::ffi::CStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The exit codes after the program was killed, and where the system does not let it be traced.
pub(crate) const KILLED: i32 = 99;
pub(crate) const NOT_PERMITTED: i32 = 98;

/// What a shell does before it becomes the program: it stops until it is traced.
pub(crate) const STOP: &str = "kill -STOP $$;";

/// Runs `command`, which begins with [`STOP`], and kills all its processes before call number `kill_at`, counted from 1,
/// that changes a file below `folder`. Ends with the code of the program, with [`KILLED`] or with [`NOT_PERMITTED`].
/// Prints the number of the calls.
#[expect(clippy::zombie_processes, reason = "waitpid waits for every process")]
pub(crate) fn run(mut command: Command, folder: &Path, kill_at: Option<usize>) -> ! {
    let mut program = command.spawn().unwrap();
    let child = Pid::from_raw(program.id().cast_signed());
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_EXITKILL;
    waitpid(child, Some(WaitPidFlag::WUNTRACED)).unwrap();
    if ptrace::seize(child, options).is_err() {
        program.kill().unwrap();
        exit(NOT_PERMITTED)
    }
    kill(child, Signal::SIGCONT).unwrap();
    let mut calls = 0;
    loop {
        let status = waitpid(None, Some(WaitPidFlag::__WALL)).unwrap();
        let (thread, signal) = match status {
            WaitStatus::Exited(process, code) if process == child => {
                println!("{calls} calls");
                exit(code)
            }
            WaitStatus::PtraceSyscall(thread) => {
                if changed_path(thread).is_some_and(|path| path.starts_with(folder)) {
                    calls += 1;
                    if kill_at == Some(calls) {
                        exit(KILLED); // the kernel kills all that are traced
                    }
                }
                (thread, None)
            }
            WaitStatus::PtraceEvent(thread, _, _) => (thread, None),
            WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => continue,
            other => panic!("an unknown status: {other:?}"),
        };
        // A thread that was killed meanwhile is no longer there.
        let _ = ptrace::syscall(thread, signal);
    }
}

/// The file that the call changes which a thread begins, if it begins one that changes a file.
fn changed_path(thread: Pid) -> Option<PathBuf> {
    let begins = ptrace::syscall_info(thread).ok()?.op == libc::PTRACE_SYSCALL_INFO_ENTRY;
    if !begins {
        return None;
    }
    let regs = ptrace::getregs(thread).ok()?;
    let call = regs.orig_rax.cast_signed();
    let (first, second, third) = (regs.rdi, regs.rsi, regs.rdx);
    let makes = |flags: u64| flags & (libc::O_CREAT | libc::O_TRUNC) as u64 != 0;
    match call {
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev | libc::SYS_ftruncate => {
            open_file(thread, first)
        }
        libc::SYS_open if makes(second) => path_at(thread, None, first),
        libc::SYS_openat if makes(third) => path_at(thread, Some(first), second),
        libc::SYS_rename | libc::SYS_unlink | libc::SYS_rmdir | libc::SYS_mkdir => {
            path_at(thread, None, first)
        }
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_unlinkat | libc::SYS_mkdirat => {
            path_at(thread, Some(first), second)
        }
        _ => None,
    }
}

fn open_file(thread: Pid, descriptor: u64) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{thread}/fd/{}", descriptor as i32)).ok()
}

/// The path at an address in the memory of a thread.
fn path_at(thread: Pid, folder: Option<u64>, address: u64) -> Option<PathBuf> {
    let mut bytes = vec![0; 4096];
    let memory = File::open(format!("/proc/{thread}/mem")).ok()?;
    let count = memory.read_at(&mut bytes, address).ok()?;
    let text = CStr::from_bytes_until_nul(&bytes[..count]).ok()?;
    let path = Path::new(std::ffi::OsStr::from_bytes(text.to_bytes()));
    let folder = folder.filter(|folder| *folder as i32 != libc::AT_FDCWD && path.is_relative());
    match folder {
        Some(folder) => Some(open_file(thread, folder)?.join(path)),
        None => Some(path.to_owned()),
    }
}
