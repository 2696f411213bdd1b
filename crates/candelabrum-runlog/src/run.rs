//! A run as its log tells it: series by name, epochs, checkpoints, and what else happened.

use std::collections::BTreeMap;

use crate::{
    Checkpoint, EndEvent, EpochEnd, Event, EventKind, Measured, Memory, ResumePoint, RunPace,
    Series, SeriesPoint, Settings,
};

/// Something with its Unix time in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Stamped<T> {
    /// When.
    pub time: f64,
    /// What.
    pub what: T,
}

/// Steps that were trained again after a resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeated {
    /// The last step that counts.
    pub kept: u64,
    /// The last step of the log before the resume.
    pub reached: u64,
}

/// Everything that the events of a run say, without the steps that a resume replaced.
#[derive(Clone, Debug, Default)]
pub struct RunHistory {
    /// The settings at the start.
    pub start: Option<Stamped<Settings>>,
    /// The values over the steps. A series has the name of its kind and value, such as `train/loss`,
    /// `evaluation/accuracy`, `epoch/bytes_sent_per_step`.
    pub series: BTreeMap<String, Series>,
    /// The epochs.
    pub epochs: Vec<Stamped<EpochEnd>>,
    /// The checkpoints.
    pub checkpoints: Vec<Stamped<Checkpoint>>,
    /// Where the memory of a step was: the last such event.
    pub memory: Option<Memory>,
    /// The notes.
    pub notes: Vec<Stamped<String>>,
    /// The resumes.
    pub resumes: Vec<Stamped<ResumePoint>>,
    /// The steps that a resume replaced. Resumes from the last step replace none.
    pub repeated: Vec<Repeated>,
    /// The end, if the run is over.
    pub end: Option<Stamped<EndEvent>>,
    /// How far the run is.
    pub pace: RunPace,
    /// The last epoch that an event named.
    pub epoch: u64,
    /// The number of events.
    pub events: u64,
    /// The times of the first and of the last event.
    times: Option<(f64, f64)>,
    /// The times between a last event and the resume after it: beginning and end.
    pauses: Vec<(f64, f64)>,
}

impl RunHistory {
    /// Adds an event.
    pub fn event(&mut self, event: Event) {
        self.events += 1;
        self.pace.event(&event);
        let Event { time, kind } = event;
        if let (EventKind::Resume(_), Some((_, last))) = (&kind, self.times) {
            self.pauses.push((last, time.max(last)));
        }
        let (first, last) = self.times.unwrap_or((time, time));
        self.times = Some((first.min(time), last.max(time)));
        match kind {
            EventKind::Start(settings) => self.start = Some(Stamped { time, what: settings }),
            EventKind::Resume(resume) => self.resume(Stamped { time, what: resume }),
            EventKind::Train(at) => self.measured(time, "train", at),
            EventKind::Evaluation(at) => self.measured(time, "evaluation", at),
            EventKind::Epoch(end) => {
                let EpochEnd { epoch, step, seconds, values, .. } = end.clone();
                self.measured(time, "epoch", Measured { step, epoch, values });
                self.push("epoch/seconds", SeriesPoint { step, time, value: seconds });
                self.epochs.retain(|earlier| earlier.what.step < step);
                self.epochs.push(Stamped { time, what: end });
            }
            EventKind::Checkpoint(made) => self.checkpoints.push(Stamped { time, what: made }),
            EventKind::Memory(memory) => self.memory = Some(memory),
            EventKind::Note { text } => self.notes.push(Stamped { time, what: text }),
            EventKind::End(end) => self.end = Some(Stamped { time, what: end }),
        }
    }

    fn measured(&mut self, time: f64, kind: &str, Measured { step, epoch, values }: Measured) {
        self.epoch = epoch;
        for (name, value) in values {
            self.push(&format!("{kind}/{name}"), SeriesPoint { step, time, value });
        }
    }

    fn push(&mut self, name: &str, point: SeriesPoint) {
        match self.series.get_mut(name) {
            Some(series) => series.push(point),
            None => self.series.entry(name.to_owned()).or_default().push(point),
        };
    }

    fn resume(&mut self, resume: Stamped<ResumePoint>) {
        let ResumePoint { step: kept, epoch, .. } = resume.what;
        let last = |series: &Series| series.points().last().map(|point| point.step);
        let reached = self.series.values().filter_map(last).max().unwrap_or(0);
        if reached > kept {
            self.repeated.push(Repeated { kept, reached });
        }
        for series in self.series.values_mut() {
            series.cut(Some(kept));
        }
        self.series.retain(|_, series| !series.points().is_empty());
        self.epochs.retain(|end| end.what.step <= kept);
        self.checkpoints.retain(|made| made.what.step <= kept);
        self.end = None;
        self.epoch = epoch;
        self.resumes.push(resume);
    }

    /// The settings now: those of the last resume, or those at the start.
    pub fn settings(&self) -> Option<&Settings> {
        let resumed = self.resumes.last().map(|resume| &resume.what.settings);
        resumed.or(self.start.as_ref().map(|start| &start.what))
    }

    /// The Unix time of the first event.
    pub fn began(&self) -> Option<f64> {
        self.times.map(|(first, _)| first)
    }

    /// The Unix time of the last event.
    pub fn last_time(&self) -> Option<f64> {
        self.times.map(|(_, last)| last)
    }

    /// The seconds from the start until a Unix time, without the pauses between a crash and a resume.
    pub fn elapsed(&self, time: f64) -> f64 {
        let Some((first, _)) = self.times else { return 0.0 };
        let paused = |(from, to): &(f64, f64)| (to.min(time) - from.min(time)).max(0.0);
        (time - first - self.pauses.iter().map(paused).sum::<f64>()).max(0.0)
    }

    /// The seconds of the whole run until its last event.
    pub fn seconds(&self) -> f64 {
        self.last_time().map_or(0.0, |last| self.elapsed(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NamedValues;

    fn measured(step: u64, value: f64) -> Measured {
        Measured { step, epoch: step / 10, values: [("loss".to_owned(), value)].into() }
    }

    fn run(events: &[(f64, EventKind)]) -> RunHistory {
        let mut run = RunHistory::default();
        for (time, kind) in events {
            run.event(Event { time: *time, kind: kind.clone() });
        }
        run
    }

    #[test]
    fn what_was_trained_again_after_a_resume_counts_once() {
        let settings = Settings::new(4, "1");
        let resume = |step, world_size| {
            let settings = Settings { world_size, ..settings.clone() };
            EventKind::Resume(ResumePoint { step, epoch: 0, from: "c".into(), settings })
        };
        let made =
            |step| EventKind::Checkpoint(Checkpoint { step, path: "c".into(), seconds: 0.1 });
        let end = |step| {
            let values = NamedValues::new();
            EventKind::Epoch(EpochEnd { epoch: 0, step, seconds: 1.0, dist_option: None, values })
        };
        let mut events = vec![(100.0, EventKind::Start(settings.clone()))];
        events.extend(
            (1..=6).map(|step| (100.0 + step as f64, EventKind::Train(measured(step, 1.0)))),
        );
        events.extend([
            (103.5, made(3)),
            (106.5, made(6)),
            (106.5, EventKind::Evaluation(measured(6, 1.0))),
            (106.5, end(6)),
            (107.0, EventKind::End(EndEvent { reason: "killed".into(), step: 6 })),
            (200.0, resume(3, 2)),
        ]);
        let crashed = run(&events);
        assert_eq!(crashed.series["train/loss"].points().len(), 3);
        assert_eq!(crashed.series.len(), 1, "the evaluation and the epoch were after step 3");
        assert_eq!((crashed.epochs.len(), crashed.checkpoints.len(), &crashed.end), (0, 1, &None));
        assert_eq!(crashed.repeated, [Repeated { kept: 3, reached: 6 }]);
        assert_eq!(crashed.settings().unwrap().world_size, 2);
        assert_eq!((crashed.pace.step(), crashed.seconds()), (3, 7.0));
        events.extend((4..=5).map(|step| {
            let time = 200.0 + (step - 3) as f64;
            (time, EventKind::Train(measured(step, 2.0)))
        }));
        events.push((250.0, resume(5, 2)));
        let resumed = run(&events);
        let values: Vec<f64> =
            resumed.series["train/loss"].points().iter().map(|point| point.value).collect();
        assert_eq!(values, [1.0, 1.0, 1.0, 2.0, 2.0]);
        assert_eq!((resumed.repeated.len(), resumed.resumes.len()), (1, 2));
        // 7 s until the crash, 93 s pause, 2 s, 48 s pause.
        assert_eq!(
            (resumed.seconds(), resumed.elapsed(201.0), resumed.elapsed(150.0)),
            (9.0, 8.0, 7.0)
        );
    }

    #[test]
    fn an_empty_run_and_odd_times_give_figures() {
        let empty = RunHistory::default();
        assert_eq!((empty.seconds(), empty.began(), empty.settings()), (0.0, None, None));
        let odd = run(&[
            (5.0, EventKind::Train(measured(u64::MAX, 1.0))),
            (-3.0, EventKind::Train(measured(1, 2.0))),
        ]);
        assert_eq!((odd.seconds(), odd.series["train/loss"].points().len()), (8.0, 1));
    }
}
