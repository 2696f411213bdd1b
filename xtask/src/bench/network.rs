//! The networks of the players, which tell them as JSON (`bench-player networks`).

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::experiment::Experiment;
use super::sample::{ResultRow, SettingValues};
use crate::shell::{display, output};

/// All networks in the order of the players.
#[derive(Clone, Debug, Default)]
pub(crate) struct Networks(pub(crate) Vec<SettingValues>);

/// What a player prints for a subcommand.
pub(crate) fn ask(player: &Path, subcommand: &str) -> Result<String> {
    let mut command = Command::new(player);
    let text = output(command.arg(subcommand));
    text.with_context(|| format!("`{}` printed nothing", display(&command)))
}

impl Networks {
    pub(crate) fn read(player: &Path) -> Result<Self> {
        let text = ask(player, "networks")?;
        Ok(Self(serde_json::from_str(&text).context("the player's networks are no JSON")?))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.0.iter().filter_map(|network| network.get("name")?.as_str());
        names.map(str::to_owned).collect()
    }

    pub(crate) fn find(&self, name: &str) -> Option<&SettingValues> {
        self.0.iter().find(|network| network.get("name").is_some_and(|known| known == name))
    }

    fn number(&self, row: &ResultRow, name: &str) -> Option<f64> {
        self.find(row.text("network"))?.get(name)?.as_f64()
    }

    /// Images, sequences, or whatever else a batch has.
    pub(crate) fn unit(&self, row: &ResultRow) -> String {
        let unit = self.find(row.text("network")).and_then(|network| network.get("unit")?.as_str());
        unit.unwrap_or("examples").to_owned()
    }

    /// The loss of the warm-up step by which contenders are compared: the last one where no network names it.
    pub(crate) fn compared_loss(&self, row: &ResultRow) -> Option<f64> {
        let losses = row.facts.get("warm_up_losses")?.as_array()?;
        let step = self.number(row, "loss_step").map_or(losses.len(), |step| step as usize);
        losses.get(step.checked_sub(1)?)?.as_f64()
    }

    /// Lines about contenders whose losses differ from those of the first one that trains the same, which shows
    /// that one of them does not. `tolerance` is allowed besides those of the network and the experiment.
    pub(crate) fn loss_notes(
        &self,
        rows: &[ResultRow],
        experiment: &Experiment,
        tolerance: f64,
    ) -> Vec<String> {
        let trains = |row: &&ResultRow| !["strangers", "products"].contains(&&*row.contender);
        // A contender without a loss agrees with all others, and a loss that is not a number with none.
        let differs = |row: &&ResultRow| {
            let mut peers =
                rows.iter().filter(trains).filter(|peer| experiment.trains_same(peer, row));
            let first = peers.next().and_then(|first| first.median("compared_loss"));
            let allowed = self.number(row, "loss_tolerance").unwrap_or(0.0)
                + experiment.loss_tolerance
                + tolerance;
            first
                .zip(row.median("compared_loss"))
                .is_some_and(|(a, b)| (a - b).is_nan() || (a - b).abs() > allowed)
        };
        // The gradient of its max-pool differs. The other networks have none of candle's.
        let (known, wrong): (Vec<&ResultRow>, Vec<&ResultRow>) = rows
            .iter()
            .filter(trains)
            .filter(differs)
            .partition(|row| row.contender == "candle" && row.text("network") == "cnn");
        let names = |rows: &[&ResultRow]| {
            rows.iter().map(|row| row.describe()).collect::<Vec<_>>().join("; ")
        };
        let mut notes = Vec::new();
        if !wrong.is_empty() {
            let names = names(&wrong);
            notes.push(format!(
                "WARNING: the losses differ, these contenders do not train the same way: {names}"
            ));
        }
        if !known.is_empty() {
            let names = names(&known);
            notes.push(format!(
                "candle's loss differs: {names}. Its max-pool passes back a quarter of the gradient (1/k² \
                 for a k×k pool), so the layers before it learn more slowly."
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::experiment::find;
    use super::super::sample::values;
    use super::*;

    #[test]
    fn a_contender_that_trains_another_way_is_named() {
        let about = |name: &str| {
            values([
                ("name", json!(name)),
                ("loss_step", json!(2)),
                ("loss_tolerance", json!(1e-4)),
            ])
        };
        let networks = Networks(vec![about("cnn"), about("mlp")]);
        let notes = |network, losses: [(&str, f64); 3]| {
            let row = |(contender, loss): (&str, f64)| {
                let mut row = ResultRow::new(values([("network", network)]), contender);
                row.facts.insert("warm_up_losses".into(), json!([9.0, loss]));
                let loss = networks.compared_loss(&row).unwrap();
                row.facts.insert("compared_loss".into(), loss.into());
                row.summarise();
                row
            };
            networks.loss_notes(&losses.map(row), find("step").unwrap(), 0.0).join("\n")
        };
        let losses = |candle, torch| [("ours", 1.0), ("candle", candle), ("pytorch", torch)];
        assert_eq!(notes("mlp", losses(1.0, 1.00001)), "");
        assert!(notes("mlp", losses(2.0, 1.0)).ends_with("the same way: mlp, candle"));
        assert!(notes("cnn", losses(2.0, 1.0)).starts_with("candle's loss differs: cnn, candle."));
        assert!(notes("cnn", losses(1.0, 3.0)).ends_with("the same way: cnn, pytorch"));
    }
}
