//! The progress bar of an epoch, on standard error. It is hidden if standard error is not a
//! terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The time between two updates of the figures.
const REFRESH: Duration = Duration::from_millis(200);

/// A bar over an epoch's steps with throughput and loss, shown only by the root.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    start: Instant,
    shown: Instant,
    images: usize,
}

impl Progress {
    pub(crate) fn new(epoch: usize, steps: usize, visible: bool) -> Self {
        let target =
            if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        let template = "epoch {prefix} {wide_bar} {pos}/{len} steps\n  {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(epoch.to_string());
        let now = Instant::now();
        Self { bar, start: now, shown: now, images: 0 }
    }

    /// Counts one step of `images` images over all ranks. `details` is called when the line is
    /// drawn.
    pub(crate) fn step(&mut self, images: usize, loss: f32, details: impl FnOnce() -> String) {
        self.images += images;
        if self.bar.is_hidden() {
            return;
        }
        self.bar.inc(1);
        let now = Instant::now();
        if now - self.shown > REFRESH {
            self.shown = now;
            let rate = self.images as f64 / (now - self.start).as_secs_f64();
            self.bar.set_message(format!("{rate:.0} images/s, loss {loss:.4}{}", details()));
        }
    }

    /// Prints a line above the bar, on standard error like the bar.
    #[expect(clippy::print_stderr, reason = "a note must be seen where there is no bar, too")]
    pub(crate) fn note(&self, note: &str) {
        self.bar.suspend(|| eprintln!("note: {note}"));
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
