//! `cargo xtask bench NAME`: a subcommand for each benchmark, with its settings as options.

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Subcommand};

use super::experiment::{Expansion, Experiment, all, find};
use super::options::CommonOptions;
use super::plan::Choices;
use super::profile::{self, ProfileArgs};
use super::run::run;

/// A benchmark with the user's options.
#[derive(Clone, Debug)]
pub(crate) enum BenchCommand {
    Experiment { name: String, choices: Choices, common: CommonOptions },
    Profile(ProfileArgs),
}

impl BenchCommand {
    pub(crate) fn run(&self) -> Result<()> {
        match self {
            Self::Profile(args) => profile::run(args),
            Self::Experiment { name, choices, common } => run(find(name)?, choices, common),
        }
    }
}

/// The subcommand of a benchmark.
fn command(experiment: &'static Experiment) -> Command {
    let settings = experiment.settings().into_iter().map(|setting| {
        let default = match setting.default {
            "" => String::new(),
            text if text.starts_with('@') => String::new(),
            text => format!(" [default: {text}]"),
        };
        let arg =
            Arg::new(setting.name).long(setting.name).help(format!("{}{default}", setting.help));
        match setting.part {
            Expansion::Whole => arg.value_name("VALUE"),
            _ => arg.value_delimiter(',').value_name("VALUE,VALUE.."),
        }
    });
    let names: Vec<&str> = experiment.contenders.iter().map(|known| &*known.name).collect();
    let command = Command::new(&*experiment.name).about(&*experiment.title).args(settings);
    CommonOptions::augment_args(command.after_help(format!("Contenders: {}", names.join(", "))))
}

impl Subcommand for BenchCommand {
    fn augment_subcommands(bench: Command) -> Command {
        let profile = ProfileArgs::augment_args(Command::new(profile::NAME).about(profile::ABOUT));
        bench.subcommands(all().map(command)).subcommand(profile)
    }

    fn augment_subcommands_for_update(bench: Command) -> Command {
        Self::augment_subcommands(bench)
    }

    fn has_subcommand(name: &str) -> bool {
        name == profile::NAME || find(name).is_ok()
    }
}

impl FromArgMatches for BenchCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let missing = || clap::Error::new(ErrorKind::MissingSubcommand);
        let (name, matches) = matches.subcommand().ok_or_else(missing)?;
        if name == profile::NAME {
            return Ok(Self::Profile(ProfileArgs::from_arg_matches(matches)?));
        }
        let common = CommonOptions::from_arg_matches(matches)?;
        let mut choices = Choices { contenders: common.contenders.clone(), ..Choices::default() };
        for setting in find(name).map_err(|_| missing())?.settings() {
            let texts = matches.get_many::<String>(setting.name);
            let texts = texts.map(|texts| (setting.name.to_owned(), texts.cloned().collect()));
            choices.settings.extend(texts);
        }
        Ok(Self::Experiment { name: name.to_owned(), choices, common })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::ExperimentPlan;
    use super::*;

    #[test]
    fn impossible_options_are_refused_in_one_line() {
        let refused = |words: &str| {
            let bench = BenchCommand::augment_subcommands(Command::new("x"));
            let matches = bench.get_matches_from(format!("x {words}").split(' '));
            let bench = BenchCommand::from_arg_matches(&matches).unwrap();
            let BenchCommand::Experiment { name, choices, .. } = bench else { panic!("{words}") };
            ExperimentPlan::new(find(&name).unwrap(), &choices).check().unwrap_err().to_string()
        };
        for words in [
            "ddp --workers 1",
            "shard --workers 1",
            "step --batch-size 0",
            "step --precision f8",
            "step --contenders our",
            "allreduce --ranks 2,1",
            "allreduce --size 4KB,1B",
            "allreduce --size 4",
            "overlap --hosts 0",
            "scaling --workers 1,0",
            "scaling --spars 2",
            "scaling --threshold-spars 0",
            "kvstore-straggler --slow 0.5",
            "kvstore-straggler --bound 0",
            "kvstore-straggler --lr 0",
        ] {
            let message = refused(words);
            let option = words.split(' ').nth(1).unwrap();
            assert!(message.starts_with(option) && !message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn every_command_line_is_possible() {
        BenchCommand::augment_subcommands(Command::new("x")).debug_assert();
    }
}
