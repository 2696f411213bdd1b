//! The plan of a benchmark: which players run at the same time, and what they are asked for in turns.

use std::path::Path;

use super::launch::Player;
use super::sample::{Row, Values};

/// Players that live at the same time, and take turns.
pub(crate) struct Block {
    /// One line about the block.
    pub(crate) title: String,
    pub(crate) players: Vec<Player>,
    /// Measured one after the other, each for all rounds. The trials of a leg take turns.
    pub(crate) legs: Vec<Vec<Trial>>,
}

/// A contender at a point: a request to a player.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// Its row, without samples.
    pub(crate) row: Row,
    /// The player's index in the block.
    pub(crate) player: usize,
    /// A JSON object. The seconds of a sample are added unless it has its own or asks for steps.
    pub(crate) request: Values,
}

impl Block {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), players: Vec::new(), legs: Vec::new() }
    }

    /// Adds a player with one trial, to the only leg.
    pub(crate) fn add(&mut self, contender: &str, point: &Values, player: Player) {
        self.players.push(player);
        let player = self.players.len() - 1;
        self.legs.resize(1, Vec::new());
        self.legs[0].push(Trial::new(contender, point, player, Values::new()));
    }

    /// Gives every contender of ours a twin of another build, whose name ends in `suffix`, and drops
    /// all other contenders.
    pub(crate) fn with_twins(self, suffix: &str, program: &Path) -> Self {
        // A twin's place is the one after its player's.
        let (mut players, mut places) = (Vec::new(), Vec::new());
        for player in self.players {
            places.push(player.is_ours.then_some(players.len()));
            if player.is_ours {
                let twin = player.of(program);
                players.extend([player, twin]);
            }
        }
        let twins = |trial: Trial| {
            let player = places[trial.player]?;
            let mut twin = Trial { player: player + 1, ..trial.clone() };
            twin.row.contender += suffix;
            Some([Trial { player, ..trial }, twin])
        };
        let legs = self.legs.into_iter();
        let legs = legs.map(|leg| leg.into_iter().filter_map(twins).flatten().collect());
        Self { title: self.title, players, legs: legs.collect() }
    }

    pub(crate) fn trials(&self) -> impl Iterator<Item = &Trial> {
        self.legs.iter().flatten()
    }
}

impl Trial {
    pub(crate) fn new(contender: &str, point: &Values, player: usize, request: Values) -> Self {
        Self { row: Row::new(point.clone(), contender), player, request }
    }
}

/// The requested items, each once, in the order of their first occurrence.
pub(crate) fn once<T: Clone + PartialEq>(asked: &[T]) -> Vec<T> {
    let mut list = Vec::new();
    for item in asked {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample::values;
    use super::*;

    #[test]
    fn ours_have_twins_of_another_commit_and_others_go() {
        let place = values([("network", json!("cnn")), ("batch_size", json!(64))]);
        let mut block = Block::new("block");
        block.add("python", &place, Player::new(Path::new("python")).other());
        block.add("ours", &place, Player::new(Path::new("new")));
        let block = block.with_twins("@abc", Path::new("old"));
        let names: Vec<String> = block.trials().map(|trial| trial.row.describe()).collect();
        assert_eq!(names, ["cnn, batch size 64, ours", "cnn, batch size 64, ours@abc"]);
        assert_eq!(block.trials().map(|trial| trial.player).collect::<Vec<_>>(), [0, 1]);
        let commands = block.players[1].commands().unwrap();
        assert_eq!(commands[0].get_program(), "old");
        assert_eq!(once(&[4, 1, 4]), [4, 1]);
    }
}
