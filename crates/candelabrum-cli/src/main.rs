//! The command `candelabrum`: `candelabrum <command>`, one module each.
#![forbid(unsafe_code)]
#![expect(clippy::print_stderr, reason = "a command-line program says what failed")]

use std::process::ExitCode;

use candelabrum_cli::{report, run, watch};
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "candelabrum",
    version,
    about = "Starts training runs, watches them and reports on them"
)]
struct CliArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a program on several ranks, watch them, and start them again after a failure
    Run(Box<run::RunArgs>),
    /// Make one HTML page about a run, or about several beside each other
    Report(report::ReportArgs),
    /// Show a dashboard of a run in the terminal, while it runs
    Watch(watch::WatchArgs),
}

fn main() -> ExitCode {
    let result = match CliArgs::parse().command {
        // It says itself what failed, and has exit codes of its own.
        Command::Run(args) => return run::run(&args),
        Command::Report(args) => {
            args.check::<CliArgs>().unwrap_or_else(|error| error.exit());
            report::run(&args)
        }
        Command::Watch(args) => watch::run(&args),
    };
    let Err(error) = result else { return ExitCode::SUCCESS };
    // On one line: the causes after the error, and no backtrace.
    eprintln!("error: {error:#}");
    ExitCode::FAILURE
}
