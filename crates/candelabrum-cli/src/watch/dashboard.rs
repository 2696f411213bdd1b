//! What the dashboard shows, and what a key changes.

use std::path::Path;

use anyhow::Result;
use candelabrum_runlog::{LogReader, RunHistory, names};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::view::{WatchView, draw};
use crate::state::RunActivity;

/// How much a curve is smoothed: over this share of its points.
const SMOOTHING: [f64; 3] = [0.0, 0.02, 0.1];

/// A dashboard of one run.
#[derive(Debug)]
pub struct Dashboard {
    reader: LogReader,
    name: String,
    /// The series in the large chart, if the user chose one.
    metric: Option<String>,
    /// The metric of evaluations that is shown beside it, if the user chose one.
    evaluation: Option<String>,
    is_logarithmic: bool,
    /// A place in [`SMOOTHING`].
    smoothing: usize,
}

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Ends the dashboard.
    Quit,
    /// Changes what is shown.
    Redraw,
    /// Nothing.
    Nothing,
}

impl Dashboard {
    /// Opens the log in this directory, and reads it.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn open(dir: &Path) -> Result<Self> {
        let mut reader = LogReader::open(dir)?;
        reader.poll()?;
        let whole = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let name = whole.file_name().unwrap_or(whole.as_os_str()).to_string_lossy().into_owned();
        let (metric, evaluation, is_logarithmic, smoothing) = (None, None, false, 1);
        Ok(Self { reader, name, metric, evaluation, is_logarithmic, smoothing })
    }

    /// Reads what was added to the log. Says whether there was anything.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn refresh(&mut self) -> Result<bool> {
        Ok(self.reader.poll()?)
    }

    /// Whether the run is going on, at a Unix time, in words. If they change, the picture does.
    pub fn state(&self, now: f64) -> String {
        RunActivity::new(self.reader.run(), now).describe()
    }

    /// Does what a key asks for.
    pub fn press(&mut self, key: KeyEvent) -> Reaction {
        let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Reaction::Quit,
            KeyCode::Char('c') if is_interrupt => return Reaction::Quit,
            KeyCode::Right | KeyCode::Tab => self.choose_metric(true),
            KeyCode::Left | KeyCode::BackTab => self.choose_metric(false),
            KeyCode::Down => self.choose_evaluation(true),
            KeyCode::Up => self.choose_evaluation(false),
            KeyCode::Char('l') => self.is_logarithmic = !self.is_logarithmic,
            KeyCode::Char('s') => self.smoothing = (self.smoothing + 1) % SMOOTHING.len(),
            _ => return Reaction::Nothing,
        }
        Reaction::Redraw
    }

    fn choose_metric(&mut self, is_forward: bool) {
        let all = metrics(self.reader.run());
        self.metric = next(&all, self.metric.as_deref(), is_forward);
    }

    fn choose_evaluation(&mut self, is_forward: bool) {
        let all = evaluations(self.reader.run());
        self.evaluation = next(&all, self.evaluation.as_deref(), is_forward);
    }

    /// Draws the dashboard as it is at a Unix time.
    pub fn draw(&self, frame: &mut Frame<'_>, now: f64) {
        let run = self.reader.run();
        let chosen = |all: Vec<&str>, chosen: &Option<String>| {
            // A chosen series may be gone after a resume.
            let found = all.iter().find(|name| Some(**name) == chosen.as_deref());
            found.or(all.first()).map(|name| (*name).to_owned())
        };
        let view = WatchView {
            name: &self.name,
            run,
            state: RunActivity::new(run, now),
            broken: self.reader.broken_count(),
            metric: chosen(metrics(run), &self.metric),
            evaluation: chosen(evaluations(run), &self.evaluation),
            is_logarithmic: self.is_logarithmic,
            smoothing: SMOOTHING[self.smoothing],
        };
        draw(frame, &view);
    }
}

/// The name after or before the current one, which is the first if there is none.
fn next(all: &[&str], current: Option<&str>, is_forward: bool) -> Option<String> {
    let count = all.len().max(1);
    let at = all.iter().position(|name| Some(*name) == current).unwrap_or(0);
    let at = if is_forward { at + 1 } else { at + count - 1 } % count;
    all.get(at).map(|name| (*name).to_owned())
}

/// All series in the order in which the keys go through them: the loss, other values of steps,
/// evaluations, epochs.
fn metrics(run: &RunHistory) -> Vec<&str> {
    let loss = format!("train/{}", names::LOSS);
    let mut all: Vec<&str> = run.series.keys().map(String::as_str).collect();
    let kinds = ["train/", "evaluation/", "epoch/"];
    let place = |name: &str| kinds.iter().position(|kind| name.starts_with(kind));
    all.sort_by_key(|name| (*name != loss, place(name), *name));
    all
}

/// The series of evaluations, accuracy first.
fn evaluations(run: &RunHistory) -> Vec<&str> {
    let accuracy = format!("evaluation/{}", names::ACCURACY);
    let mut all: Vec<&str> = run.series.keys().map(String::as_str).collect();
    all.retain(|name| name.starts_with("evaluation/"));
    all.sort_by_key(|name| (*name != accuracy, *name));
    all
}

#[cfg(test)]
mod tests {
    use candelabrum_runlog::{Event, EventKind, Measured};

    use super::*;

    #[test]
    fn keys_go_around_all_metrics() {
        let mut run = RunHistory::default();
        let at = |names: &[&str]| {
            let values = names.iter().map(|name| ((*name).to_owned(), 1.0)).collect();
            Measured { step: 1, epoch: 0, values }
        };
        run.event(Event { time: 1.0, kind: EventKind::Evaluation(at(&["loss", "accuracy"])) });
        run.event(Event { time: 1.0, kind: EventKind::Train(at(&["gradient_norm", "loss"])) });
        let all = metrics(&run);
        let expected =
            ["train/loss", "train/gradient_norm", "evaluation/accuracy", "evaluation/loss"];
        assert_eq!(all, expected);
        assert_eq!(evaluations(&run), ["evaluation/accuracy", "evaluation/loss"]);
        let mut seen = vec![None];
        for _ in 0..5 {
            let last: Option<String> = seen[seen.len() - 1].clone();
            seen.push(next(&all, last.as_deref(), true));
        }
        let seen: Vec<&str> = seen.iter().flatten().map(String::as_str).collect();
        assert_eq!(seen, [all[1], all[2], all[3], all[0], all[1]]);
        assert_eq!(next(&all, None, false).as_deref(), Some(all[3]));
        assert_eq!(next(&[], None, true), None);
    }
}
