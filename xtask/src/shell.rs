//! Runs other programs. Each is announced as `$ command`, and each failure names the command.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};

use crate::checkout::repo_root;

/// The profile of builds that only have to work.
pub(crate) const UNOPTIMIZED: &str = "unoptimized";

/// RUSTFLAGS of the builds in that profile. With one value for all, these builds share their dependencies.
pub(crate) const DENY_WARNINGS: &str = "-D warnings";

/// `cargo <args>` in the root of the repository, by the cargo that started this program.
///
/// The variables in which `cargo run` describes a program's own package are removed. Build scripts
/// that watch them (ring's does) would otherwise run again at every change between `cargo xtask`
/// and `cargo`.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    without_package(command.args(args).current_dir(repo_root()));
    command
}

/// Removes the variables in which `cargo run` describes this program's package.
pub(crate) fn without_package(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
}

/// The command as a user would type it, with the variables that were set for it.
pub(crate) fn display(command: &Command) -> String {
    let quoted =
        |text: &OsStr| shlex::try_quote(&text.to_string_lossy()).unwrap_or_default().into_owned();
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let variables = command
        .get_envs()
        .filter_map(|(name, value)| Some(format!("{}={}", name.to_string_lossy(), quoted(value?))));
    let words = std::iter::once(program).chain(command.get_args()).map(quoted);
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

/// Prints the command line and runs the command, which writes to the standard output of this program. Any exit status
/// other than success is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = display(command);
    println!("$ {shown}");
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    ensure!(status.success(), "`{shown}` failed ({status})");
    Ok(())
}

/// Runs the command and gives each line of its output to `read`.
pub(crate) fn read_lines(command: &mut Command, mut read: impl FnMut(&str)) -> Result<ExitStatus> {
    let shown = display(command);
    println!("$ {shown}");
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("cannot start `{shown}`"))?;
    let lines = BufReader::new(child.stdout.take().context("it has no output")?).split(b'\n');
    lines.map_while(Result::ok).for_each(|line| read(&String::from_utf8_lossy(&line)));
    Ok(child.wait()?)
}

/// Whether the command starts and succeeds. Its output is ignored.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// The command's output, trimmed. `None` if the command does not start, fails or prints nothing.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// The first file of this name in the search path.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_it_would_be_typed() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["test", "--test", "*"]).env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(display(&command), "RUSTDOCFLAGS='-D warnings' cargo test --test '*'");
    }

    #[test]
    fn a_missing_program_gives_no_output() {
        assert_eq!(output(&mut Command::new("no-such-program-here")), None);
        assert!(!succeeds(&mut Command::new("no-such-program-here")));
    }
}
