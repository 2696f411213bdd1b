//! `candelabrum watch DIR`: a dashboard in the terminal, which follows a log while a run writes it.
//!
//! [`Dashboard`] is what is shown, and what keys change. It draws into any frame of ratatui, so tests and
//! `--once` draw without a terminal. `terminal.rs` is the loop around it.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Size;

pub use self::dashboard::{Dashboard, Reaction};
use crate::state::now;

mod axis;
mod curve;
mod dashboard;
mod terminal;
mod view;

/// The size of a frame that goes to no terminal.
const SIZE: Size = Size { width: 100, height: 30 };

/// The options of `candelabrum watch`.
#[derive(Debug, clap::Args)]
pub struct WatchArgs {
    /// The directory of the run's log
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Print one frame as text, and end
    #[arg(long)]
    once: bool,
    /// The size of that frame, such as 100x30. The default is the terminal's size
    #[arg(long, value_name = "WIDTHxHEIGHT", requires = "once", value_parser = parse_size)]
    size: Option<Size>,
}

fn parse_size(text: &str) -> Result<Size, String> {
    let numbers = text.split_once('x').map(|(width, height)| (width.parse(), height.parse()));
    match numbers {
        Some((Ok(width @ 1..=1000), Ok(height @ 1..=1000))) => Ok(Size { width, height }),
        _ => Err("it must be two numbers from 1 to 1000, such as 100x30".to_owned()),
    }
}

/// Shows the dashboard until a key or a signal ends it, or prints one frame.
///
/// # Errors
/// If the log cannot be read, or if there is no terminal.
#[expect(clippy::print_stdout, reason = "a command-line program talks to its user")]
pub fn run(args: &WatchArgs) -> Result<()> {
    let mut dashboard = Dashboard::open(&args.dir)?;
    if args.once {
        let size = args.size.unwrap_or_else(|| match ratatui::crossterm::terminal::size() {
            Ok((width, height)) if io::stdout().is_terminal() => Size { width, height },
            _ => SIZE,
        });
        print!("{}", text(&frame(&dashboard, size, now())?));
        return Ok(());
    }
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    ensure!(is_terminal, "there is no terminal here: --once prints one frame as text");
    terminal::follow(&mut dashboard)
}

/// A frame of this size at a Unix time.
///
/// # Errors
/// Never: the memory that it draws to has no errors.
pub fn frame(dashboard: &Dashboard, size: Size, now: f64) -> Result<Buffer> {
    let mut terminal = Terminal::new(TestBackend::new(size.width, size.height))?;
    terminal.draw(|frame| dashboard.draw(frame, now))?;
    Ok(terminal.backend().buffer().clone())
}

/// The lines of a frame, without the spaces at their ends.
pub fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let line = |cells: &[ratatui::buffer::Cell]| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned() + "\n"
    };
    buffer.content.chunks(width).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_two_numbers() {
        assert_eq!(parse_size("100x30"), Ok(Size { width: 100, height: 30 }));
        for wrong in ["", "100", "0x30", "100x", "70000x3", "-1x5", "1x1x1"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
