//! The progress of an epoch, on standard error of rank 0: a bar on a terminal, otherwise a line each 30 seconds.

use std::fmt::Arguments;
use std::io::{Write, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The time between two updates of the bar's figures.
const REFRESH: Duration = Duration::from_millis(200);

/// The time between two lines.
const LINE: Duration = Duration::from_secs(30);

/// The steps of an epoch with throughput and loss, shown only by the root.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    visible: bool,
    epoch: usize,
    epochs: usize,
    steps: usize,
    done: usize,
    first: usize,
    start: Instant,
    shown: Instant,
    samples: usize,
}

impl Progress {
    /// Of epoch number `epoch` of `epochs`, which begins at step `first`.
    pub(crate) fn new(
        (epoch, epochs): (usize, usize),
        steps: usize,
        first: usize,
        visible: bool,
    ) -> Self {
        let target =
            if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        let template = "epoch {prefix} {wide_bar} {pos}/{len} steps\n  {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(epoch.to_string());
        bar.set_position(first as u64);
        let now = Instant::now();
        let (start, shown, done, samples) = (now, now, first, 0);
        Self { bar, visible, epoch, epochs, steps, done, first, start, shown, samples }
    }

    /// Counts one step of so many samples over all ranks. `details` is called when the line is drawn.
    pub(crate) fn step(&mut self, samples: usize, loss: f32, details: impl FnOnce() -> String) {
        self.samples += samples;
        self.done += 1;
        if !self.visible {
            return;
        }
        let now = Instant::now();
        let is_line = self.bar.is_hidden();
        if !is_line {
            self.bar.inc(1);
        }
        if now - self.shown < if is_line { LINE } else { REFRESH } {
            return;
        }
        self.shown = now;
        let rate = self.samples as f64 / (now - self.start).as_secs_f64();
        let figures = format!("{rate:.0} samples/s, loss {loss:.4}{}", details());
        if is_line {
            self.line(now, &figures);
        } else {
            self.bar.set_message(figures);
        }
    }

    /// Long work shows progress where there is no terminal, too.
    fn line(&self, now: Instant, figures: &str) {
        let Self { epoch, epochs, steps, done, first, .. } = *self;
        let left = (steps - done.min(steps)) as f64 / (done - first).max(1) as f64;
        let left = (now - self.start).mul_f64(left).as_secs();
        say(format_args!(
            "epoch {epoch} of {epochs}, step {done} of {steps}, {left} s left: {figures}"
        ));
    }

    /// Prints a line above the bar, on standard error like the bar. It is seen where there is no bar, too.
    pub(crate) fn note(progress: Option<&Self>, note: &str) {
        let print = || say(format_args!("note: {note}"));
        progress.map_or_else(print, |progress| progress.bar.suspend(print));
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// A terminal that is gone does not end the training, which saves its state after SIGHUP.
fn say(line: Arguments<'_>) {
    drop(writeln!(stderr(), "{line}"));
}
