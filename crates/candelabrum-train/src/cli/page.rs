//! docs/options.md is made from the command line, so it has every option with its help and its default.

use std::path::Path;
use std::{env, fs};

use clap::{Arg, Args, Command};

use super::TrainArgs;
use crate::FitConfig;

const HEAD: &str = "\
# Options of a training program

<!-- A test makes this page from the command line: UPDATE_DOCS=1 cargo xtask test docs_have -->

Every program with `TrainArgs` has these options, the training examples among them. Options of the run itself are fields
of `FitConfig` with the same defaults, so a program without a command line has them, too. They must be the same on all
ranks. A run that continues from a checkpoint must have the same values of the options that are marked with *, and the same
global batch. It may change the others, and says what it has changed of the optimizer and the strategy.

| option | default | meaning |
|---|---|---|
";

/// A row of the table. `is_fixed`: a run that continues must have the same value.
fn row(arg: &Arg, is_fixed: bool) -> String {
    let name = arg.get_long().unwrap();
    let values = arg.get_action().takes_values();
    let value = arg.get_value_names().filter(|_| values).and_then(|names| names.first());
    let value = value.map(|name| format!(" {}", name.replace('|', "\\|"))).unwrap_or_default();
    let mark = if is_fixed { " *" } else { "" };
    let help = arg.get_help().unwrap().to_string().replace('*', "\\*");
    let (help, told) = help.split_once(" [default: ").unwrap_or((&help, ""));
    let own = arg.get_default_values().iter().filter(|_| !arg.is_hide_default_value_set());
    let own = own.filter(|_| values).map(|value| format!("`{}`", value.to_string_lossy()));
    let default = own.chain([told.trim_end_matches(']').to_owned()]).collect::<String>();
    let choices = arg.get_possible_values();
    let choices: Vec<&str> = choices.iter().map(|value| value.get_name()).collect();
    let is_told = !values || choices.iter().all(|name| help.contains(name));
    let choices = if is_told { String::new() } else { format!(" (`{}`)", choices.join("`, `")) };
    format!("| `--{name}{value}`{mark} | {default} | {help}{choices} |\n")
}

fn page() -> String {
    let settings = FitConfig::default().settings();
    let fixed: Vec<&str> = settings.iter().flat_map(|setting| setting.fixed).copied().collect();
    let command = TrainArgs::augment_args(Command::new("program"));
    let is_option =
        |name: &&&str| command.get_arguments().any(|arg| arg.get_long() == Some(**name));
    assert_eq!(fixed.iter().find(|name| !is_option(name)), None, "a setting is no option");
    let is_fixed = |arg: &Arg| arg.get_long().is_some_and(|name| fixed.contains(&name));
    command.get_arguments().map(|arg| row(arg, is_fixed(arg))).fold(HEAD.to_owned(), |a, b| a + &b)
}

#[test]
fn docs_have_every_option_as_the_command_line_has_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, page()).unwrap();
    }
    let is_same = fs::read_to_string(path).unwrap() == page();
    assert!(
        is_same,
        "docs/options.md is of other options: UPDATE_DOCS=1 cargo xtask test docs_have"
    );
}
