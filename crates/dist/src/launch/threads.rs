//! Bounding the threads of libraries that read their number from the environment.
//!
//! candle keeps a pool of its own beside rayon's. Its threads spin between operations, and their
//! number can only be set by environment variables that it reads at its first use: on two cores, a
//! second rank's training went at 0.6 of its speed because of them. Changing the environment of a
//! running process is a race, so the process starts itself again, once, with the right one.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::{Error, Result};

/// rayon's threads, and those of candle's matrix products.
const RAYON: &str = "RAYON_NUM_THREADS";

/// candle's spinning pool; one thread is the caller itself and spins for nobody.
const CANDLE: &str = "CANDLE_NUM_THREADS";

/// The variables that bound a process to `threads` compute threads, and what else libraries read
/// from the environment.
pub(super) fn variables(threads: usize) -> Vec<(&'static str, String)> {
    let candle = std::env::var(CANDLE).unwrap_or_else(|_| "1".to_owned());
    let bounds = [(RAYON, threads.to_string()), (CANDLE, candle)];
    bounds.into_iter().chain(super::meeting::nccl_variable()).collect()
}

/// Bounds this process to `threads` compute threads, by starting the program again in its place
/// where its environment says otherwise. Call it first thing in `main`. Ranks started by
/// [`super::spawn()`] are bounded already.
///
/// # Errors
/// A program that cannot be started again.
pub fn limit_threads(threads: usize) -> Result<()> {
    let variables = variables(threads);
    let is_set = |(name, value): &(&str, String)| std::env::var(name).is_ok_and(|v| v == *value);
    if variables.iter().all(is_set) {
        return Ok(());
    }
    let what = "start the program again with bounded threads";
    let program = std::env::current_exe().map_err(|error| Error::io(what, error))?;
    let arguments = std::env::args_os().skip(1);
    // Returns only where it failed.
    Err(Error::io(what, Command::new(program).args(arguments).envs(variables).exec()))
}
