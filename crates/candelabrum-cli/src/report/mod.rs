//! `candelabrum report DIR...`: one HTML page about one run, or about several beside each other.
//!
//! The page is a single file that needs no network: the report as JSON (`data.rs`), a style sheet, and the scripts that
//! make tables and charts of the report. Where the output is a file `.json`, it is the report alone.

use std::path::PathBuf;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, ValueEnum};
use fs_err as fs;
use serde_json::Value;

use self::data::report;
use self::load::load;
use crate::state::now;

mod data;
mod load;

/// The options of `candelabrum report`.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// The directories of the runs' logs. Tables compare every run with the first
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Where the page goes. A file .json gets the figures of the page, without the page
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// The name of a run, once for each DIR. The names of the folders are the default
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// Whether to open the page in the browser. `auto` does so where there is a terminal and a screen
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = OpenPage::Auto)]
    open: OpenPage,
}

/// When to open the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OpenPage {
    Auto,
    Yes,
    No,
}

impl ReportArgs {
    /// Refuses options that do not fit together.
    ///
    /// # Errors
    /// The error of usage.
    pub fn check<Cli: CommandFactory>(&self) -> Result<(), clap::Error> {
        let (names, dirs) = (self.names.len(), self.dirs.len());
        if names == 0 || names == dirs {
            return Ok(());
        }
        let what =
            format!("--name is given {names} times for {dirs} directories: name each or none");
        Err(Cli::command().error(ErrorKind::WrongNumberOfValues, what))
    }
}

/// Writes the page, and says where it is.
///
/// # Errors
/// If a log cannot be read or the page cannot be written.
#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program talks to its user"
)]
pub fn run(args: &ReportArgs) -> Result<()> {
    let runs = load(&args.dirs, &args.names, now())?;
    let report = report(&runs, now());
    let is_json = args.output.extension().is_some_and(|extension| extension == "json");
    let text = if is_json { format!("{report}\n") } else { page(&report) };
    fs::write(&args.output, &text)?;
    let (path, size) = (args.output.display(), text.len().div_ceil(1000));
    let what = if runs.len() == 1 { "1 run".to_owned() } else { format!("{} runs", runs.len()) };
    println!("{path}: {what}, {size} kB");
    for run in &runs {
        run.broken.iter().for_each(|sentence| eprintln!("note: {}: {sentence}", run.dir.display()));
    }
    if args.open == OpenPage::Yes || (args.open == OpenPage::Auto && has_screen()) {
        open::that_detached(&args.output)?;
    }
    Ok(())
}

/// The scripts of the page, in the order in which they need each other.
const SCRIPTS: &str = concat!(
    include_str!("markup.js"),
    include_str!("axis.js"),
    include_str!("chart.js"),
    include_str!("curves.js"),
    include_str!("phases.js"),
    include_str!("sections.js"),
    include_str!("page.js"),
);

/// The page of a report, with all that it needs.
fn page(report: &Value) -> String {
    // A browser looks for the end of a script, and for comments, inside of a JSON, too.
    let report = report.to_string().replace('<', "\\u003c");
    include_str!("page.html")
        .replace("<!-- style -->", include_str!("page.css"))
        .replace("<!-- scripts -->", SCRIPTS)
        .replace("<!-- report -->", &report)
}

/// Whether a user sits before a graphical screen.
fn has_screen() -> bool {
    use std::io::IsTerminal;
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let graphical = cfg!(target_os = "macos") || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY");
    graphical && std::io::stdout().is_terminal()
}
