//! Being asked to stop in the middle of a benchmark, without losing what was measured.

use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Somebody asked this program to stop; `main` ends with the exit code that says so.
#[derive(Debug)]
pub(crate) struct Interrupted(i32);

impl Interrupted {
    pub(crate) fn exit_code(&self) -> ExitCode {
        u8::try_from(128 + self.0).map_or(ExitCode::FAILURE, ExitCode::from)
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = signal_hook::low_level::signal_name(self.0).unwrap_or("a signal");
        write!(f, "interrupted by {name}")
    }
}

impl std::error::Error for Interrupted {}

/// From when it is made on, signals are noted and no longer end this program.
#[derive(Debug)]
pub(crate) struct Watch(Arc<AtomicUsize>);

impl Watch {
    pub(crate) fn start() -> Result<Self> {
        let noted = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register_usize(signal, Arc::clone(&noted), signal as usize)
                .context("cannot watch for signals")?;
        }
        Ok(Self(noted))
    }

    /// One that hears nothing.
    #[cfg(test)]
    pub(crate) fn quiet() -> Self {
        Self(Arc::default())
    }

    /// An error once a signal has come.
    pub(crate) fn check(&self) -> Result<(), Interrupted> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Interrupted(signal as i32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_has_a_name_and_its_own_exit_code() {
        let interrupted = Interrupted(SIGINT);
        assert_eq!(interrupted.to_string(), "interrupted by SIGINT");
        assert_eq!(format!("{:?}", interrupted.exit_code()), format!("{:?}", ExitCode::from(130)));
    }

    #[test]
    fn a_noted_signal_is_an_error_from_then_on() {
        let watch = Watch::quiet();
        assert!(watch.check().is_ok());
        watch.0.store(15, Ordering::Relaxed);
        assert_eq!(watch.check().unwrap_err().to_string(), "interrupted by SIGTERM");
    }
}
