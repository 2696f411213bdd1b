//! What a run shows while it measures: on a terminal a bar, in a log a line now and then, and in both
//! each line of a table as soon as it is known.

use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use serde_json::Value;

use super::figures::counted;
use super::launch::Player;
use super::plan::{Block, Trial};
use super::runner::Schedule;
use super::sample::Row;
use super::table::{Column, lines};

/// About the time that a player needs to start and to get warm.
const START: Duration = Duration::from_secs(4);

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

/// The samples and starts of all blocks, and about the time that they take.
pub(crate) fn estimate(blocks: &[Block], schedule: &Schedule) -> (u64, Duration) {
    let players: Vec<&Player> = blocks.iter().flat_map(|block| &block.players).collect();
    let trials: Vec<(&Trial, &Player)> = blocks
        .iter()
        .flat_map(|block| block.trials().map(|trial| (trial, &block.players[trial.player])))
        .collect();
    let (starts, samples) = (players.len() * schedule.starts, trials.len() * schedule.rounds);
    let own = |trial: &Trial| trial.request.get("seconds").and_then(Value::as_f64);
    let seconds = |(trial, player): &(&Trial, &Player)| {
        own(trial).unwrap_or(schedule.seconds).max(player.slow[0])
    };
    let measured = schedule.rounds as f64 * trials.iter().map(seconds).sum::<f64>();
    let warm_up: f64 = players.iter().map(|player| player.slow[1]).sum();
    let time = Duration::from_secs_f64(measured + schedule.starts as f64 * warm_up);
    ((starts + samples) as u64, START * starts as u32 + time)
}

impl Screen {
    pub(crate) fn new(turns: u64) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}, {msg}");
        let bar = ProgressBar::new(turns).with_style(style.expect("the template is correct"));
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
        let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(1));
        // If the rest goes on as fast as everything so far. The bar's own estimate follows the last
        // seconds, in which players may have been started.
        let share = done as f64 / all as f64;
        let left = self.bar.elapsed().mul_f64((1.0 - share).max(0.0) / share);
        let message = format!("{} left: {}", HumanDuration(left), trial.row.describe());
        if self.bar.is_hidden() && self.last_line.elapsed() >= PAUSE {
            self.last_line = Instant::now();
            eprintln!("{done}/{all}, {message}");
        }
        self.bar.set_message(message);
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::sample::Values;
    use super::*;

    #[test]
    fn slow_steps_and_their_warm_up_are_part_of_the_estimate() {
        let mut block = Block::new("block");
        block.add("quick", &Values::new(), Player::new(Path::new("quick")));
        block.add("slow", &Values::new(), Player::new(Path::new("slow")).slow(3.0, 9.0));
        let schedule = Schedule {
            rounds: 5,
            starts: 2,
            seconds: 1.0,
            deadline: Duration::ZERO,
            patience: f64::INFINITY,
        };
        let seconds = 5.0 * (1.0 + 3.0) + 2.0 * 9.0;
        let expected = 4 * START + Duration::from_secs_f64(seconds);
        assert_eq!(estimate(&[block], &schedule), (4 + 10, expected));
    }
}
