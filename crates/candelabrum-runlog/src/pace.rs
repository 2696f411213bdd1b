//! How much of a run is done, and how long the rest takes if it goes on as fast as since its start.

use crate::{Event, EventKind};

/// The progress of a run, from its events.
#[derive(Clone, Debug, Default)]
pub struct RunPace {
    steps: Option<u64>,
    epochs: Option<u64>,
    /// Time and step at which the process began to train: the start, or the last resume.
    begin: Option<(f64, u64)>,
    last: Option<(f64, u64)>,
}

impl RunPace {
    /// Takes an event into account.
    pub fn event(&mut self, event: &Event) {
        let time = event.time;
        match &event.kind {
            EventKind::Start(settings) => {
                (self.steps, self.epochs) = (settings.steps, settings.epochs);
                (self.begin, self.last) = (Some((time, 0)), None);
            }
            EventKind::Resume(resume) => {
                (self.steps, self.epochs) = (resume.settings.steps, resume.settings.epochs);
                self.begin = Some((time, resume.step));
                self.last = self.begin;
            }
            EventKind::Train(at) | EventKind::Evaluation(at) => self.last = Some((time, at.step)),
            EventKind::Epoch(end) => self.last = Some((time, end.step)),
            EventKind::End(end) => self.last = Some((time, end.step)),
            EventKind::Checkpoint(_) | EventKind::Memory(_) | EventKind::Note { .. } => {}
        }
    }

    /// The number of steps done.
    pub fn step(&self) -> u64 {
        self.last.map_or(0, |(_, step)| step)
    }

    /// The planned number of steps.
    pub fn steps(&self) -> Option<u64> {
        self.steps
    }

    /// The planned number of epochs.
    pub fn epochs(&self) -> Option<u64> {
        self.epochs
    }

    /// The part of the run that is done, 0 to 1, if its length is known.
    pub fn share(&self) -> Option<f64> {
        let steps = self.steps.filter(|steps| *steps > 0)?;
        Some((self.step() as f64 / steps as f64).min(1.0))
    }

    /// The part of this epoch (from 0) that is done, 0 to 1, if all epochs have equally many steps.
    pub fn share_of_epoch(&self, epoch: u64) -> Option<f64> {
        let (steps, epochs) = (self.steps?, self.epochs.filter(|epochs| *epochs > 0)?);
        let each = steps as f64 / epochs as f64;
        let share = (self.step() as f64 - epoch as f64 * each) / each;
        share.is_finite().then(|| share.clamp(0.0, 1.0))
    }

    /// The seconds that the rest of the run takes.
    pub fn seconds_left(&self) -> Option<f64> {
        let (Some((began, first)), Some((now, step))) = (self.begin, self.last) else {
            return None;
        };
        let done = step.checked_sub(first).filter(|done| *done > 0)?;
        let left = (now - began) / done as f64 * self.steps?.saturating_sub(step) as f64;
        (left.is_finite() && left >= 0.0).then_some(left)
    }
}

/// A duration as people say it: `40 ms`, `45 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`.
pub fn duration_in_words(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "unknown".to_owned();
    }
    let seconds = seconds.max(0.0);
    let whole = seconds.round() as u64;
    let (minutes, hours) = (whole / 60, whole / 3600);
    match whole {
        0 if seconds == 0.0 => "0 s".to_owned(),
        0..2 if seconds < 0.9995 => format!("{:.0} ms", seconds * 1000.0),
        0..60 if seconds < 10.0 => format!("{seconds:.1} s"),
        0..60 => format!("{whole} s"),
        60..3600 => format!("{minutes} min {:02} s", whole % 60),
        3600..172_800 => format!("{hours} h {:02} min", minutes % 60),
        _ => format!("{} d {} h", hours / 24, hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Measured, NamedValues, ResumePoint, Settings};

    fn train(time: f64, step: u64) -> Event {
        let kind = EventKind::Train(Measured { step, epoch: 0, values: NamedValues::new() });
        Event { time, kind }
    }

    #[test]
    fn the_rest_takes_as_long_as_the_steps_of_this_process_say() {
        let settings = Settings { epochs: Some(4), steps: Some(100), ..Settings::new(1, "0") };
        let mut pace = RunPace::default();
        assert_eq!((pace.share(), pace.seconds_left()), (None, None));
        pace.event(&Event { time: 50.0, kind: EventKind::Start(settings.clone()) });
        assert_eq!((pace.share(), pace.seconds_left()), (Some(0.0), None));
        pace.event(&train(60.0, 10));
        assert_eq!((pace.share(), pace.seconds_left()), (Some(0.1), Some(90.0)));
        assert_eq!((pace.share_of_epoch(0), pace.share_of_epoch(1)), (Some(0.4), Some(0.0)));
        // The time between the crash and the resume counts for nothing.
        let resume = ResumePoint { step: 5, epoch: 0, from: String::new(), settings };
        pace.event(&Event { time: 1000.0, kind: EventKind::Resume(resume) });
        assert_eq!((pace.step(), pace.seconds_left()), (5, None));
        pace.event(&train(1020.0, 10));
        assert_eq!(pace.seconds_left(), Some(360.0));
        // A clock that was set back gives no time.
        pace.event(&train(0.0, 11));
        assert_eq!(pace.seconds_left(), None);
    }

    #[test]
    fn durations_have_two_units() {
        for (seconds, words) in [
            (0.0, "0 s"),
            (0.0401, "40 ms"),
            (0.9996, "1.0 s"),
            (9.97, "10.0 s"),
            (59.4, "59 s"),
            (59.6, "1 min 00 s"),
            (3599.9, "1 h 00 min"),
            (7_500.0, "2 h 05 min"),
            (277_200.0, "3 d 5 h"),
            (f64::NAN, "unknown"),
            (-3.0, "0 s"),
        ] {
            assert_eq!(duration_in_words(seconds), words);
        }
    }
}
