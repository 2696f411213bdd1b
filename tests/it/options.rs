//! The options of a training program, as a user types them.

use candelabrum::train::cli::TrainArgs;
use clap::Parser;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    train: TrainArgs,
}

/// The options of a program, which spaces divide.
pub(crate) fn args(options: &str) -> Result<TrainArgs, clap::Error> {
    let words = ["program"].into_iter().chain(options.split_whitespace());
    Program::try_parse_from(words).map(|program| program.train)
}
