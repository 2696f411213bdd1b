//! The table in docs/options.md is made from the command line, so it has every option with its help and its default. What
//! other pages say of an option's values, the command line accepts.

use std::path::{Path, PathBuf};
use std::{env, fs};

use clap::error::ErrorKind;
use clap::{Arg, Args, Command};

use super::TrainArgs;
use crate::FitConfig;

/// What is before the table, and before what follows it.
const BEGIN: &str = "<!-- A test makes this table from the command line: UPDATE_DOCS=1 cargo xtask test docs_have -->\n\n";
const END: &str = "\n<!-- The end of the table. -->\n";

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

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn table() -> String {
    let settings = FitConfig::default().settings();
    let fixed: Vec<&str> = settings.iter().flat_map(|setting| setting.fixed).copied().collect();
    let command = TrainArgs::augment_args(Command::new("program"));
    let is_option =
        |name: &&&str| command.get_arguments().any(|arg| arg.get_long() == Some(**name));
    assert_eq!(fixed.iter().find(|name| !is_option(name)), None, "a setting is no option");
    let is_fixed = |arg: &Arg| arg.get_long().is_some_and(|name| fixed.contains(&name));
    let head = "| option | default | meaning |\n|---|---|---|\n".to_owned();
    command.get_arguments().map(|arg| row(arg, is_fixed(arg))).fold(head, |a, b| a + &b)
}

#[test]
fn docs_have_every_option_as_the_command_line_has_it() {
    let path = docs().join("options.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the beginning of the table");
    let (written, after) = rest.split_once(END).expect("the end of the table");
    let table = table();
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, [before, BEGIN, &table, END, after].concat()).unwrap();
        return;
    }
    assert!(
        written == table,
        "docs/options.md has other options: UPDATE_DOCS=1 cargo xtask test docs_have"
    );
}

/// What a page says in backticks of options and their values: `--shard none`, `--recompute none|half|all`.
fn said(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let spans = page.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let words = spans.map(|span| span.split(' ').collect::<Vec<_>>());
    let pairs =
        words.flat_map(|words| words.windows(2).map(|two| (two[0], two[1])).collect::<Vec<_>>());
    let options = pairs.filter_map(|(name, value)| Some((name.strip_prefix("--")?, value)));
    // A word in capitals stands for a value.
    let is_value =
        |value: &str| !value.starts_with(|first: char| first.is_uppercase() || first == '-');
    options
        .flat_map(|(name, values)| {
            values.split('|').map(move |value| (name, value.trim_end_matches('\\')))
        })
        .filter(move |(_, value)| is_value(value))
}

#[test]
fn docs_have_values_that_the_command_line_accepts() {
    let command = TrainArgs::augment_args(Command::new("program"));
    let (mut count, mut refused) = (0, Vec::new());
    for page in fs::read_dir(docs()).unwrap().map(|entry| entry.unwrap().path()) {
        let Ok(text) = fs::read_to_string(&page) else { continue };
        for (name, value) in said(&text) {
            let mut args = command.get_arguments();
            if !args.any(|arg| arg.get_long() == Some(name) && arg.get_action().takes_values()) {
                continue;
            }
            count += 1;
            let words = ["program".to_owned(), format!("--{name}={value}")];
            if let Err(error) = command.clone().try_get_matches_from(words)
                && [ErrorKind::InvalidValue, ErrorKind::ValueValidation].contains(&error.kind())
            {
                refused.push(format!("{}: --{name} {value}", page.display()));
            }
        }
    }
    assert!(count > 50, "{count} values");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}
