//! `--workers N` in a program that does not read this option: such a program trains alone, and nobody would know.

use std::ffi::OsString;

use super::Launch;
use crate::note::note;

/// Says on standard error that a process which no launcher has started was told to start ranks. A program that
/// reads the option does not come here: it starts the ranks, and each of them is launched.
pub(crate) fn note_ignored(launch: &Launch) {
    if launch.is_launched() {
        return;
    }
    if let Some(workers) = workers(std::env::args_os().skip(1)) {
        let program = std::env::args_os().next().unwrap_or_default();
        note(&format!(
            "--workers {workers} starts no ranks in this program, which trains alone: `candelabrum run --workers \
             {workers} -- {}` starts them, and a program whose `main` is `candelabrum::train::cli::run` starts \
             them by itself",
            program.to_string_lossy()
        ));
    }
}

/// The number of workers, if it is more than 1.
fn workers(mut args: impl Iterator<Item = OsString>) -> Option<String> {
    let number = loop {
        let arg = args.next()?.into_string().ok()?;
        match arg.strip_prefix("--workers") {
            Some("") => break args.next()?.into_string().ok()?,
            Some(rest) if rest.starts_with('=') => break rest[1..].to_owned(),
            _ if arg == "--" => return None,
            _ => {}
        }
    };
    number.parse::<usize>().is_ok_and(|number| number > 1).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_for_several_workers_is_one() {
        let of = |line: &str| workers(line.split_whitespace().map(OsString::from));
        for line in ["--workers 2", "--lr 0.1 --workers=2 --seed 1"] {
            assert_eq!(of(line).as_deref(), Some("2"), "{line}");
        }
        for line in
            ["", "--workers", "--workers 1", "--workers=x", "--workers-dir 2", "-- --workers 2"]
        {
            assert_eq!(of(line), None, "{line}");
        }
    }
}
