//! Players that live at the same time, and what they are asked for in turns.

use std::path::Path;

use super::launch::Player;
use super::sample::{ResultRow, SettingValues};

/// Players that take turns.
pub(crate) struct TurnBlock {
    /// One line about the block.
    pub(crate) title: String,
    pub(crate) players: Vec<Player>,
    /// Measured one after the other, each for all rounds. The trials of a leg take turns.
    pub(crate) legs: Vec<Vec<ContenderTrial>>,
}

/// A contender at a point: a request to a player.
#[derive(Clone, Debug)]
pub(crate) struct ContenderTrial {
    /// Its row, without samples.
    pub(crate) row: ResultRow,
    /// The player's index in the block.
    pub(crate) player: usize,
    /// A JSON object. The seconds of a sample are added unless it has its own or asks for steps.
    pub(crate) request: SettingValues,
}

impl TurnBlock {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), players: Vec::new(), legs: Vec::new() }
    }

    /// The index of a player. Trials of the same command are trials of one player.
    pub(crate) fn index(&mut self, player: Player) -> usize {
        self.players.iter().position(|known| *known == player).unwrap_or_else(|| {
            self.players.push(player);
            self.players.len() - 1
        })
    }

    /// Gives every contender of ours a twin of another build, whose name ends in `suffix`, and drops
    /// all other contenders.
    pub(crate) fn with_twins(self, suffix: &str, program: &Path) -> Self {
        // A twin's place is the one after its player's.
        let (mut players, mut places) = (Vec::new(), Vec::new());
        for player in self.players {
            places.push(player.is_ours.then_some(players.len()));
            if player.is_ours {
                let twin = player.in_program(program);
                players.extend([player, twin]);
            }
        }
        let twins = |trial: ContenderTrial| {
            let player = places[trial.player]?;
            let mut twin = ContenderTrial { player: player + 1, ..trial.clone() };
            twin.row.contender += suffix;
            Some([ContenderTrial { player, ..trial }, twin])
        };
        let legs = self.legs.into_iter();
        let legs = legs.map(|leg| leg.into_iter().filter_map(twins).flatten().collect());
        Self { title: self.title, players, legs: legs.collect() }
    }

    pub(crate) fn trials(&self) -> impl Iterator<Item = &ContenderTrial> {
        self.legs.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_have_twins_of_another_commit_and_others_go() {
        let mut block = TurnBlock::new("block");
        let player = |name: &str| Player::new(Path::new(name));
        let trial = |name: &str, player| ContenderTrial {
            row: ResultRow::new(SettingValues::new(), name),
            player,
            request: SettingValues::new(),
        };
        let python = block.index(player("python").other());
        let ours = [block.index(player("new")), block.index(player("new"))];
        assert_eq!((python, ours), (0, [1, 1]));
        block.legs = vec![vec![trial("pytorch", 0), trial("ours", 1)]];
        let block = block.with_twins("@abc", Path::new("old"));
        let names: Vec<&str> = block.trials().map(|trial| &*trial.row.contender).collect();
        assert_eq!(names, ["ours", "ours@abc"]);
        assert_eq!(block.trials().map(|trial| trial.player).collect::<Vec<_>>(), [0, 1]);
        let commands = block.players[1].commands().unwrap();
        assert_eq!(commands[0].get_program(), "old");
    }
}
