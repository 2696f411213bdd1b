//! A line of text each 30 seconds, where there is no terminal for a progress bar.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::{
    Error, Event, EventKind, EventSink, Measured, Result, RunPace, duration_in_words, names,
};

/// Prints how far the run is: step, epoch, share done, loss, samples per second, time left.
///
/// The events' own times decide when a line is due, so a run that is slower than one event per interval
/// prints a line for each event.
pub struct ProgressLines {
    out: Box<dyn Write + Send>,
    every: f64,
    /// The time of the last line, or of the start.
    last: Option<f64>,
    pace: RunPace,
}

impl ProgressLines {
    /// The usual time between two lines.
    pub const EVERY: Duration = Duration::from_secs(30);

    /// Prints to `out`.
    pub fn new(out: Box<dyn Write + Send>, every: Duration) -> Self {
        Self { out, every: every.as_secs_f64(), last: None, pace: RunPace::default() }
    }

    /// Prints to standard error each 30 seconds. `None` if that is a terminal, where a progress bar
    /// serves better.
    pub fn without_terminal() -> Option<Self> {
        let stderr = io::stderr();
        (!stderr.is_terminal()).then(|| Self::new(Box::new(stderr), Self::EVERY))
    }

    fn line(&self, at: &Measured) -> String {
        let of = |all: Option<u64>| all.map_or(String::new(), |all| format!("/{all}"));
        let epoch = at.epoch.saturating_add(1);
        let mut parts = vec![
            format!("step {}{}", at.step, of(self.pace.steps())),
            format!("epoch {epoch}{}", of(self.pace.epochs())),
        ];
        parts.extend(self.pace.share().map(|share| format!("{:.1}% done", share * 100.0)));
        parts.extend(at.values.get(names::LOSS).map(|loss| format!("loss {loss:.4}")));
        let rate = at.values.get(names::SAMPLES_PER_SECOND);
        parts.extend(rate.map(|rate| format!("{rate:.0} samples/s")));
        let left = self.pace.seconds_left();
        parts.extend(left.map(|left| format!("{} left", duration_in_words(left))));
        parts.join(", ")
    }
}

impl fmt::Debug for ProgressLines {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { every, last, pace, .. } = self;
        let mut fields = out.debug_struct("Lines");
        fields.field("every", every).field("last", last).field("pace", pace).finish_non_exhaustive()
    }
}

impl EventSink for ProgressLines {
    fn name(&self) -> String {
        "the progress on standard error".to_owned()
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        self.pace.event(event);
        let EventKind::Train(at) = &event.kind else {
            // The first line comes one interval after the start.
            self.last = self.last.or(Some(event.time));
            return Ok(());
        };
        // A clock that was set back does not silence the lines.
        let due = self.last.is_none_or(|last| !(last..last + self.every).contains(&event.time));
        if due {
            self.last = Some(event.time);
            let written = writeln!(self.out, "{}", self.line(at)).and_then(|()| self.out.flush());
            written.map_err(|source| Error::Write { path: "standard error".into(), source })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::{NamedValues, Settings};

    #[derive(Clone, Default)]
    struct SharedOutput(Arc<Mutex<Vec<u8>>>);

    impl Write for SharedOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_comes_each_interval_and_says_how_far_the_run_is() {
        let out = SharedOutput::default();
        let mut lines = ProgressLines::new(Box::new(out.clone()), ProgressLines::EVERY);
        let settings = Settings { epochs: Some(10), steps: Some(1000), ..Settings::new(1, "0") };
        lines.event(&Event { time: 100.0, kind: EventKind::Start(settings) }).unwrap();
        for step in 1..=80 {
            let values: NamedValues =
                [("loss".into(), 2.0 / step as f64), ("samples_per_second".into(), 512.4)].into();
            let kind = EventKind::Train(Measured { step, epoch: step / 100, values });
            lines.event(&Event { time: 100.0 + step as f64, kind }).unwrap();
        }
        // The clock is set back by a year.
        let kind = EventKind::Train(Measured { step: 81, epoch: 0, values: NamedValues::new() });
        lines.event(&Event { time: -31e6, kind }).unwrap();
        let text = String::from_utf8(out.0.lock().clone()).unwrap();
        let expected = "\
            step 30/1000, epoch 1/10, 3.0% done, loss 0.0667, 512 samples/s, 16 min 10 s left\n\
            step 60/1000, epoch 1/10, 6.0% done, loss 0.0333, 512 samples/s, 15 min 40 s left\n\
            step 81/1000, epoch 1/10, 8.1% done\n";
        assert_eq!(text, expected);
    }
}
