//! Contenders that take turns. Each is a process group, and only one runs at a time.

use anyhow::Result;
use serde::de::DeserializeOwned;

use crate::host::CpuTime;
use crate::interrupt::{Interrupted, Watch};
use crate::live::{Failure, Live, Trouble};

/// A contender, with its processes as long as they live. After a failure it gets no more requests.
#[derive(Debug, Default)]
pub(crate) struct Player {
    live: Option<Live>,
    failure: Option<Failure>,
}

impl Player {
    /// Whether the contender can be asked for a sample.
    pub(crate) fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// The reason why it cannot.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Ends the contender for a reason that it does not detect itself.
    pub(crate) fn exclude(&mut self, reason: String) {
        self.live = None;
        self.failure = Some(Failure { reason, stderr: Vec::new() });
    }

    /// Starts the contender, waits until it is warm, and returns its message.
    pub(crate) fn start<R: DeserializeOwned>(
        &mut self,
        start: impl FnOnce() -> Result<Live>,
        watch: &Watch,
    ) -> Result<Option<R>, Interrupted> {
        match start() {
            Ok(live) => self.live = Some(live),
            Err(error) => {
                let reason = format!("{error:#}");
                self.failure = Some(Failure { reason, stderr: Vec::new() });
            }
        }
        self.ask(|live| live.ready(watch))
    }

    /// One sample, and the share of the machine's cores that other programs used meanwhile.
    pub(crate) fn sample<S: DeserializeOwned>(
        &mut self,
        line: &str,
        watch: &Watch,
    ) -> Result<Option<(S, Option<f64>)>, Interrupted> {
        self.ask(|live| {
            let ids = live.ids();
            let before = CpuTime::now(&ids);
            let sample = live.sample(line, watch)?;
            Ok((sample, CpuTime::others_share(before, CpuTime::now(&ids))))
        })
    }

    /// Lets the contender end, and returns its last message.
    pub(crate) fn finish<D: DeserializeOwned>(
        &mut self,
        watch: &Watch,
    ) -> Result<Option<D>, Interrupted> {
        let Some(mut live) = self.live.take() else { return Ok(None) };
        live.go_on();
        match live.finish(watch) {
            Ok(last) => Ok(Some(last)),
            Err(trouble) => self.note(trouble).map(|()| None),
        }
    }

    /// Wakes the contender for a request.
    fn ask<T>(
        &mut self,
        question: impl FnOnce(&mut Live) -> Result<T, Trouble>,
    ) -> Result<Option<T>, Interrupted> {
        let Some(live) = &mut self.live else { return Ok(None) };
        live.go_on();
        let answer = question(live);
        live.stop();
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(trouble) => self.note(trouble).map(|()| None),
        }
    }

    fn note(&mut self, trouble: Trouble) -> Result<(), Interrupted> {
        self.live = None;
        match trouble {
            Trouble::Interrupted(interrupted) => Err(interrupted),
            Trouble::Failed(failure) => {
                self.failure = Some(failure);
                Ok(())
            }
        }
    }
}
