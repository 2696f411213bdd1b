//! What a run shows while it measures: on a terminal a bar, in a log a line now and then, and in both
//! each line of a table as soon as it is known.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::figures::counted;
use super::plan::{Block, Trial};
use super::sample::Row;
use super::table::{Column, lines};

/// The time between two lines in a log.
const PAUSE: Duration = Duration::from_secs(30);

/// The bar, and what was printed last.
pub(crate) struct Screen {
    bar: ProgressBar,
    /// In a log.
    last_line: Instant,
    /// The block's title, until its first line is printed.
    title: Option<String>,
}

impl Screen {
    /// A bar of so many starts and samples.
    pub(crate) fn new(turns: usize) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}, {eta} left: {msg}");
        let bar =
            ProgressBar::new(turns as u64).with_style(style.expect("the template is correct"));
        bar.enable_steady_tick(Duration::from_secs(1));
        Self { bar, last_line: Instant::now(), title: None }
    }

    /// The next rows are those of this block.
    pub(crate) fn begin(&mut self, block: &Block) {
        self.title = Some(block.title.clone());
    }

    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// A player of this trial has its turn.
    #[expect(clippy::print_stderr, reason = "a long run in a log says that it goes on")]
    pub(crate) fn turn(&mut self, trial: &Trial) {
        self.bar.inc(1);
        self.bar.set_message(trial.row.describe());
        if self.bar.is_hidden() && self.last_line.elapsed() >= PAUSE {
            self.last_line = Instant::now();
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
            eprintln!("{done}/{all}: {}", trial.row.describe());
        }
    }

    /// Prints the lines of a leg, whose rounds are over, in each table.
    #[expect(clippy::print_stdout, reason = "a benchmark's results are what it prints")]
    pub(crate) fn print(&mut self, rows: &[Row], tables: &[Vec<Column>]) {
        let title = self.title.take();
        let mut text = title.as_ref().map_or_else(String::new, |title| format!("\n{title}\n"));
        for (i, table) in tables.iter().enumerate() {
            text += if i > 0 { "\n" } else { "" };
            text += &lines(table, rows, title.is_some());
        }
        text.extend(rows.iter().filter_map(failure));
        self.bar.suspend(|| print!("{text}"));
    }
}

/// The line about a row that has fewer samples than it should.
fn failure(row: &Row) -> Option<String> {
    let failure = row.failure.as_ref()?;
    let after = match row.samples.len() {
        0 => String::new(),
        count => format!(" after {}", counted(count, "sample")),
    };
    Some(format!("{} failed{after}: {}\n", row.contender, failure.reason))
}
