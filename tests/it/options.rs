//! The options of a training program, as a user types them. Each of them is on a page of the documentation.

use std::fs;
use std::path::Path;

use candelabrum::train::cli::TrainArgs;
use clap::{Args, Command, Parser};

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

#[test]
fn every_option_is_on_a_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.chain(["README.md", "datasets/README.md"].map(|page| root.join(page)));
    let pages = pages.filter(|page| page.extension().is_some_and(|extension| extension == "md"));
    let text: String = pages.map(|page| fs::read_to_string(page).unwrap()).collect();
    let command = TrainArgs::augment_args(Command::new("program"));
    let options: Vec<&str> =
        command.get_arguments().filter_map(|option| option.get_long()).collect();
    assert!(options.len() > 40, "{options:?}");
    let is_missing = |option: &&str| {
        let option = format!("--{option}");
        let follows = |(place, _): (usize, &str)| text[place + option.len()..].chars().next();
        let is_end = |next: char| !next.is_alphanumeric() && next != '-';
        !text.match_indices(&option).any(|found| follows(found).is_none_or(is_end))
    };
    let missing: Vec<&str> = options.into_iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "on no page: {missing:?}");
}
