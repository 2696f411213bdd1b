//! Interrupts during a benchmark, without a loss of the samples so far.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::signal_name;

/// A signal asked this program to stop. `main` ends with the corresponding exit code.
#[derive(Debug, thiserror::Error)]
#[error("interrupted by {}", signal_name(*.0).unwrap_or("a signal"))]
pub(crate) struct Interrupted(i32);

impl Interrupted {
    pub(crate) fn exit_code(&self) -> ExitCode {
        u8::try_from(128 + self.0).map_or(ExitCode::FAILURE, ExitCode::from)
    }
}

/// From its creation on, signals are recorded and no longer end this program.
#[derive(Debug)]
pub(crate) struct SignalWatch(Arc<AtomicUsize>);

impl SignalWatch {
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
    fn a_noted_signal_is_an_error_with_a_name_and_its_own_exit_code() {
        let watch = SignalWatch::quiet();
        assert!(watch.check().is_ok());
        for (signal, name, code) in [(2, "SIGINT", 130), (15, "SIGTERM", 143)] {
            watch.0.store(signal, Ordering::Relaxed);
            let interrupted = watch.check().unwrap_err();
            assert_eq!(interrupted.to_string(), format!("interrupted by {name}"));
            assert_eq!(interrupted.exit_code(), ExitCode::from(code));
        }
    }
}
