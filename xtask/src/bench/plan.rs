//! From an experiment and the user's choices to players: every combination of settings with every contender.

use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::bindings::Bindings;
use super::block::{ContenderTrial, TurnBlock};
use super::context::{BenchSetup, TRAINING};
use super::experiment::{Contender, Expansion, Experiment, Setting};
use super::hooks::prepare;
use super::host::last_cache;
use super::hosts::SimulatedHosts;
use super::launch::Player;
use super::programs::NeededPrograms;
use super::sample::{ResultRow, SettingValues, text};

/// What the user says on the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choices {
    /// The values of settings, by their names. A setting that is not here has its default.
    pub(crate) settings: BTreeMap<String, Vec<String>>,
    /// The names of contenders. All if there is none.
    pub(crate) contenders: Vec<String>,
}

/// An experiment with the user's choices.
pub(crate) struct ExperimentPlan<'a> {
    pub(crate) experiment: &'a Experiment,
    pub(crate) choices: Choices,
}

impl Setting<'_> {
    /// The name of a value in a scope and in the file.
    fn key(&self) -> String {
        self.name.replace('-', "_")
    }

    /// The value of a text. Names of networks and strategies are checked where they are `known`.
    pub(crate) fn value(&self, text: &str, known: &[String]) -> Result<Value> {
        let (name, values) = (self.name, self.values);
        if text.is_empty() && (self.default.is_empty() || self.default.starts_with('@')) {
            return Ok(json!(""));
        }
        if let Some((low, high)) = values.split_once("..") {
            let value: Option<Value> = serde_json::from_str(text).ok();
            let number = value.as_ref().and_then(Value::as_f64);
            let is_whole = value.as_ref().is_some_and(Value::is_u64);
            let has_kind = is_whole || low.contains(['.', 'e']);
            let is_within = low.parse().ok() <= number && number <= high.parse().ok();
            ensure!(has_kind && is_within, "--{name} is from {low} to {high}, not {text}");
            return value.context("it is a number");
        }
        match values {
            "network" | "strategy" => {
                let is_known = known.is_empty() || known.iter().any(|known| known == text);
                ensure!(is_known, "--{name} has no `{text}`: there is all, {}", known.join(", "));
            }
            "bytes" => return Ok(json!(bytes(text).with_context(|| format!("--{name} {text}"))?)),
            "path" => {}
            words => {
                let is_known = words.split('|').any(|word| word == text);
                ensure!(is_known, "--{name} is {}, not {text}", words.replace('|', " or "));
            }
        }
        Ok(json!(text))
    }
}

const UNITS: [(&str, f64); 5] =
    [("MB", 1e6), ("MiB", 1_048_576.0), ("KB", 1e3), ("KiB", 1024.0), ("B", 1.0)];

/// The number of bytes in a text.
fn bytes(text: &str) -> Result<u64> {
    let units = UNITS.iter().filter_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    // `KB` ends in `B` too, so the longest unit counts.
    let shortest = units.min_by_key(|(number, _)| number.len());
    let (number, unit) = shortest.context("a size is a number and B, KB, KiB, MB or MiB")?;
    let number: f64 = number.trim().parse().context("a size begins with a number")?;
    let bytes = (number * unit).round();
    ensure!((4.0..=2e9).contains(&bytes), "a size is from 4B to 2000MB");
    Ok(bytes as u64)
}

impl<'a> ExperimentPlan<'a> {
    pub(crate) fn new(experiment: &'a Experiment, choices: &Choices) -> Self {
        let mut choices = choices.clone();
        let has_backend = experiment.settings().iter().any(|setting| setting.name == "backend");
        if has_backend && choices.settings.contains_key("hosts") {
            choices.settings.insert("backend".into(), vec!["mpi".into()]);
        }
        Self { experiment, choices }
    }

    fn has_hosts(&self) -> bool {
        self.experiment.needs_hosts || self.choices.settings.contains_key("hosts")
    }

    /// Refuses impossible choices before anything is built.
    pub(crate) fn check(&self) -> Result<()> {
        for setting in self.experiment.settings() {
            for text in self.choices.settings.get(setting.name).into_iter().flatten() {
                setting.value(text, &[])?;
            }
        }
        self.experiment.check_names(&self.choices.contenders)?;
        if self.has_hosts() { SimulatedHosts::check() } else { Ok(()) }
    }

    /// The programs that take part besides our players.
    pub(crate) fn needed(&self) -> NeededPrograms {
        let Choices { settings, contenders } = &self.choices;
        let is_chosen = |own: &&Contender| contenders.is_empty() || contenders.contains(&own.name);
        let chosen = || self.experiment.contenders.iter().filter(is_chosen);
        let is_mpi = |texts: &Vec<String>| texts.iter().any(|text| text == "mpi");
        let asks = settings.get("backend").is_some_and(is_mpi);
        NeededPrograms {
            mpi: asks || self.has_hosts() || chosen().any(|own| own.backend == "mpi"),
            c: chosen().any(|own| own.c),
            python: chosen().any(|own| own.script.is_some()),
        }
    }

    /// Everything that is measured, in the order of the tables.
    pub(crate) fn blocks(&self, setup: &mut BenchSetup) -> Result<Vec<TurnBlock>> {
        let cores = setup.machine.cores;
        let mut machine = Bindings::default();
        let powers: Vec<usize> = (0..8).map(|power| 1 << power).filter(|&n| n <= cores).collect();
        machine.set("powers_of_two", powers);
        machine.set("one_and_two", if cores > 1 { vec![1, 2] } else { vec![1] });
        machine.set("cache", last_cache());
        // Where a benchmark has no such setting.
        machine.set("threads", 1);
        if self.has_hosts() {
            let mut most = 2;
            for setting in self.experiment.settings() {
                if ["workers", "ranks"].contains(&setting.name) {
                    let counts = self.values(setting, &machine, setup)?;
                    most = counts.iter().filter_map(Value::as_u64).fold(most, u64::max);
                }
            }
            let hosts = SimulatedHosts::make(&setup.folder, most as usize)?;
            let rate = self.choices.settings.get("hosts").and_then(|rate| rate[0].parse().ok());
            rate.map_or(Ok(()), |rate| hosts.set_rate(rate))?;
            setup.hosts = Some(Rc::new(hosts));
        }
        let scopes = self.combine(&machine, &[Expansion::Whole, Expansion::Block], setup)?;
        scopes.into_iter().map(|scope| self.block(scope, setup)).collect()
    }

    /// The values of a setting, each once.
    fn values(
        &self,
        setting: Setting<'_>,
        scope: &Bindings,
        setup: &BenchSetup,
    ) -> Result<Vec<Value>> {
        let known = match setting.values {
            "network" => setup.networks.names(),
            "strategy" => setup.strategies.clone(),
            _ => Vec::new(),
        };
        let default = setting.default.strip_prefix('@').map(|name| scope.get(name));
        let mut texts = match (self.choices.settings.get(setting.name), default) {
            (Some(texts), _) => texts.clone(),
            (None, Some(Some(Value::Array(list)))) => list.iter().map(text).collect(),
            (None, Some(Some(value))) if !value.is_null() => vec![text(value)],
            (None, Some(_)) => vec![String::new()],
            (None, None) => setting.default.split(',').map(str::to_owned).collect(),
        };
        if !known.is_empty() && texts.iter().any(|text| text == "all") {
            texts.clone_from(&known);
        }
        let mut values = Vec::new();
        for text in texts {
            let value = setting.value(&text, &known)?;
            if !values.contains(&value) {
                values.push(value);
            }
        }
        Ok(values)
    }

    /// The scope with every combination of the values of these parts' settings.
    fn combine(
        &self,
        scope: &Bindings,
        parts: &[Expansion],
        setup: &BenchSetup,
    ) -> Result<Vec<Bindings>> {
        let mut scopes = vec![scope.clone()];
        let settings = self.experiment.settings().into_iter();
        for setting in settings.filter(|setting| parts.contains(&setting.part)) {
            let mut more = Vec::new();
            for scope in &scopes {
                for value in self.values(setting, scope, setup)? {
                    let mut scope = scope.clone();
                    if let ("network", Some(name)) = (setting.values, value.as_str()) {
                        scope.extend(setup.networks.find(name).cloned().unwrap_or_default());
                    }
                    if let ("bytes", Some(bytes)) = (setting.values, value.as_u64()) {
                        scope.set("elements", bytes / size_of::<f32>() as u64);
                        scope.set("all_bytes", bytes as f64 * scope.number("ranks"));
                    }
                    scope.set(&setting.key(), value);
                    more.push(scope);
                }
            }
            scopes = more;
        }
        Ok(scopes)
    }

    fn block(&self, mut scope: Bindings, setup: &mut BenchSetup) -> Result<TurnBlock> {
        prepare(self.experiment, &mut scope, setup)?;
        // Its steps may be so long that it is measured only where the user names it.
        let example = scope.number("candle_seconds");
        let step = example * scope.number("batch_size") / scope.number("threads");
        scope.set("candle_step", if self.choices.contenders.is_empty() { step } else { 0.0 });
        let title = ResultRow::new(self.point(&scope, &[Expansion::Block]), "").describe();
        let title = if title.is_empty() { self.experiment.title.clone() } else { title };
        let mut block = TurnBlock::new(title);
        for leg in self.combine(&scope, &[Expansion::Leg], setup)? {
            let mut trials: Vec<ContenderTrial> = Vec::new();
            for contender in &self.experiment.contenders {
                for scope in self.combine(&leg, &[Expansion::Contender, Expansion::Row], setup)? {
                    let Some((row, request, player)) = self.trial(contender, scope, setup)? else {
                        continue;
                    };
                    if !trials.iter().any(|trial| trial.row == row) {
                        let player = block.index(player);
                        trials.push(ContenderTrial { row, player, request });
                    }
                }
            }
            block.legs.push(trials);
        }
        Ok(block)
    }

    /// The values by which a row is known.
    fn point(&self, scope: &Bindings, parts: &[Expansion]) -> SettingValues {
        let settings = self.experiment.settings().into_iter();
        let settings = settings.filter(|setting| parts.contains(&setting.part));
        let names = settings.map(|s| s.key()).chain(self.experiment.facts.iter().cloned());
        names.filter_map(|name| Some((name.clone(), scope.get(&name)?.clone()))).collect()
    }

    /// A contender with these values: its row, its request and its player. `None` where it does not exist, is not
    /// asked for, or this machine lacks its program.
    fn trial(
        &self,
        contender: &Contender,
        mut scope: Bindings,
        setup: &BenchSetup,
    ) -> Result<Option<(ResultRow, SettingValues, Player)>> {
        let name = scope.fill(&contender.name)?.unwrap_or_default();
        let chosen = &self.choices.contenders;
        let exists = contender.only.iter().all(|condition| scope.holds(condition));
        if !exists || !(chosen.is_empty() || chosen.contains(&name)) {
            return Ok(None);
        }
        let mut point = self.point(&scope, &[Expansion::Block, Expansion::Leg, Expansion::Row]);
        let count = contender.ranks.as_ref().map(|ranks| scope.fill(ranks)).transpose()?;
        let count = count.flatten().unwrap_or_else(|| "1".to_owned());
        let count: usize = count.parse().with_context(|| format!("{name} has {count} ranks"))?;
        if let Some(workers) = point.get_mut("workers") {
            *workers = json!(count);
        }
        if contender.one_thread {
            scope.set("threads", 1);
        }
        let request = contender.request.as_ref().unwrap_or(&self.experiment.request);
        let mut request = scope.object(request)?;
        if let Some(steps) = scope.get("steps").filter(|steps| steps.is_number()) {
            request.entry("steps").or_insert(steps.clone());
        }
        let player = self.player(contender, &scope, count, setup)?;
        Ok(player.map(|player| (ResultRow::new(point, &name), request, player)))
    }

    fn player(
        &self,
        contender: &Contender,
        scope: &Bindings,
        count: usize,
        setup: &BenchSetup,
    ) -> Result<Option<Player>> {
        let programs = &setup.programs;
        let backend = scope.fill(&contender.backend)?.filter(|backend| !backend.is_empty());
        let backend = backend.unwrap_or_else(|| "local".to_owned());
        let player = match (&contender.script, &programs.python, &programs.c) {
            (None, ..) if !contender.c => Player::new(&programs.player),
            (None, _, Some(c)) => Player::new(c),
            (Some(name), Some(python), _) => Player::script(python, name),
            _ => return Ok(None),
        };
        if backend == "mpi" && !programs.has_mpi {
            return Ok(None);
        }
        let mut words = Vec::new();
        for text in [&contender.run].into_iter().chain(&self.experiment.arguments) {
            words.extend(scope.words(&text.replace("{training}", TRAINING))?.unwrap_or_default());
        }
        let hosts = setup.hosts.as_ref().filter(|_| ["mpi", "gloo"].contains(&&*backend));
        let threads = scope.number("threads") as usize;
        let player = player.args(words).threads(threads).ranks(count, &backend);
        let player = player.servers(contender.servers).on(hosts);
        let is_ours = contender.script.is_none() && !contender.bound;
        Ok(Some(if is_ours { player } else { player.other() }))
    }
}
