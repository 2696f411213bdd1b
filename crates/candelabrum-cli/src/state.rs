//! Whether a run goes on, is over, or has fallen silent.

use candelabrum_runlog::{RunHistory, duration_in_words};

/// A run is silent after this many seconds without an event, or after ten times the usual time between
/// events, whichever is longer.
const SILENCE: f64 = 60.0;

/// What a run does now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RunActivity {
    /// The log has no event.
    Empty,
    Running,
    /// No event for these seconds, and no end.
    Silent(f64),
    /// The reason.
    Ended(String),
}

impl RunActivity {
    /// The state at a Unix time.
    pub(crate) fn new(run: &RunHistory, now: f64) -> Self {
        let Some(last) = run.last_time() else { return Self::Empty };
        if let Some(end) = &run.end {
            return Self::Ended(end.what.reason.clone());
        }
        let usual = run.series.values().map(|series| match series.points() {
            [first, .., last] => (last.time - first.time) / (series.points().len() - 1) as f64,
            _ => 0.0,
        });
        // Of the values that come most often.
        let usual = usual.filter(|seconds| *seconds > 0.0).reduce(f64::min).unwrap_or(0.0);
        let silence = now - last;
        if silence > SILENCE.max(10.0 * usual) { Self::Silent(silence) } else { Self::Running }
    }

    /// In words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Empty => "no event yet".to_owned(),
            Self::Running => "running".to_owned(),
            Self::Silent(seconds) => format!("no event for {}", duration_in_words(*seconds)),
            Self::Ended(reason) => reason.clone(),
        }
    }
}

/// The Unix time now, in seconds.
pub(crate) fn now() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use candelabrum_runlog::{EndEvent, Event, EventKind, Measured};

    use super::*;

    #[test]
    fn a_run_is_silent_after_much_more_than_its_usual_pause() {
        let mut run = RunHistory::default();
        assert_eq!(RunActivity::new(&run, 5.0), RunActivity::Empty);
        for step in 1..=5 {
            let values = [("loss".to_owned(), 1.0)].into();
            let kind = EventKind::Train(Measured { step, epoch: 0, values });
            run.event(Event { time: 20.0 * step as f64, kind });
        }
        assert_eq!(RunActivity::new(&run, 290.0), RunActivity::Running);
        assert_eq!(RunActivity::new(&run, 310.0), RunActivity::Silent(210.0));
        assert_eq!(RunActivity::new(&run, 310.0).describe(), "no event for 3 min 30 s");
        let end = EndEvent { reason: "finished".to_owned(), step: 5 };
        run.event(Event { time: 101.0, kind: EventKind::End(end) });
        assert_eq!(RunActivity::new(&run, 1e9).describe(), "finished");
    }
}
