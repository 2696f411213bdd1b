//! Draws the pictures of `docs/watching.md` from runs that never were: `dashboard.svg`, and the page of
//! the report, `report.html`. Its picture `docs/report.png` is a browser's picture of that page.
//!
//! `cargo run -p candelabrum-cli --example pictures -- DIR`

#[expect(clippy::unwrap_used, reason = "shared with tests, which fail by panicking")]
#[path = "../tests/commands/made_up.rs"]
mod made_up;
mod svg;

use std::path::PathBuf;

use anyhow::{Context, Result};
use candelabrum_cli::{report, watch};
use clap::Parser;
use fs_err as fs;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::Size;

use made_up::MadeUp;

/// The report's options, as the command has them.
#[derive(Parser)]
struct Report {
    #[command(flatten)]
    args: report::ReportArgs,
}

fn main() -> Result<()> {
    let dir = std::env::args_os().nth(1).map(PathBuf::from).context("name a directory")?;
    let logs = dir.join("logs");
    let [first, second] = ["fp32", "sparseTopK"].map(|name| logs.join(name));
    MadeUp::fp32().write(&first);
    MadeUp::sparse_top_k().write(&second);
    let page = dir.join("report.html");
    let options = ["report".into(), first, second, "--output".into(), page, "--open=no".into()];
    report::run(&Report::try_parse_from(options)?.args)?;

    let going_on = logs.join("mnist");
    let run = MadeUp { ends: Some(1740), ..MadeUp::sparse_top_k() };
    run.write(&going_on);
    let mut dashboard = watch::Dashboard::open(&going_on)?;
    dashboard.press(KeyCode::Char('l').into());
    let now = run.events().last().context("no event")?.time + 0.5;
    let frame = watch::frame(&dashboard, Size { width: 104, height: 30 }, now)?;
    fs::write(dir.join("dashboard.svg"), svg::picture(&frame))?;
    Ok(())
}
