//! The loop of the dashboard in a terminal: keys, signals, and the log that grows.
//!
//! The terminal is restored however the loop ends: by a key, an error, a signal or a panic.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level;

use super::dashboard::{Dashboard, Reaction};
use crate::state::now;

/// The time between two looks at the log.
const REFRESH: Duration = Duration::from_millis(500);

/// The longest time until a signal is noticed.
const PATIENCE: Duration = Duration::from_millis(100);

/// Shows the dashboard until a key or a signal ends it.
pub(super) fn follow(dashboard: &mut Dashboard) -> Result<()> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGTERM, SIGINT, SIGHUP] {
        let value = number.unsigned_abs() as usize;
        let registered = signal_hook::flag::register_usize(number, Arc::clone(&signal), value);
        registered.context("cannot listen for signals")?;
    }
    let caught = with_terminal(|terminal| run(terminal, dashboard, &signal))?;
    if let Some(number) = caught {
        // Ends as a program without a handler would, so that a shell sees the signal.
        low_level::emulate_default_handler(number)?;
    }
    Ok(())
}

/// Does something in the terminal's other screen, and restores the terminal afterwards.
fn with_terminal<T>(act: impl FnOnce(&mut DefaultTerminal) -> Result<T>) -> Result<T> {
    // Ratatui's hook restores the terminal before a panic is printed.
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let result = act(&mut terminal);
    ratatui::try_restore().context("cannot restore the terminal")?;
    result
}

/// Returns the signal that ended it, if one did.
fn run(
    terminal: &mut DefaultTerminal,
    dashboard: &mut Dashboard,
    signal: &AtomicUsize,
) -> Result<Option<i32>> {
    let (mut is_changed, mut looked, mut state) = (true, Instant::now(), String::new());
    loop {
        let caught = signal.load(Ordering::Relaxed);
        if caught != 0 {
            return Ok(i32::try_from(caught).ok());
        }
        if looked.elapsed() >= REFRESH {
            looked = Instant::now();
            is_changed |= dashboard.refresh()?;
        }
        let now = now();
        let state_now = dashboard.state(now);
        if is_changed || state != state_now {
            terminal.draw(|frame| dashboard.draw(frame, now)).context("cannot draw")?;
            (is_changed, state) = (false, state_now);
        }
        if !event::poll(PATIENCE).context("cannot read keys")? {
            continue;
        }
        match event::read().context("cannot read keys")? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match dashboard.press(key) {
                Reaction::Quit => return Ok(None),
                Reaction::Redraw => is_changed = true,
                Reaction::Nothing => {}
            },
            Event::Resize(..) => is_changed = true,
            _ => {}
        }
    }
}
