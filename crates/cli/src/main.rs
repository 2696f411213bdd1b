#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod run;

use std::process::ExitCode;

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
