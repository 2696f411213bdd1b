//! Interrupts during a benchmark, without a loss of the samples so far.

use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

/// A signal asked this program to stop. `main` ends with the corresponding exit code.
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

/// From its creation on, signals are recorded and no longer end this program.
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

    /// A watch that receives no signals.
    #[cfg(test)]
    pub(crate) fn quiet() -> Self {
        Self(Arc::default())
    }

    /// An error after a signal.
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
