//! The command `candelabrum`: `candelabrum <command>`, one module each.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use candelabrum_cli::run;
use clap::{Parser, Subcommand};

/// Distributed training with Candelabrum
#[derive(Debug, Parser)]
#[command(name = "candelabrum", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run::run(&args),
    }
}
