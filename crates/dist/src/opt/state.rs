//! What strategies carry from step to step, to be saved and given back.

use candelabrum_nn::DistOption;

use super::DistOpt;
use super::used::UsedStrategy;
use crate::strategy::{Memory, StrategyConfig};
use crate::{Error, Result};

/// What one strategy has done and kept on this rank. Ranks keep different things: each saves its
/// own, while the parameters, once averaged, are the same on all.
#[derive(Clone, Debug, PartialEq)]
pub struct StrategyState {
    /// The strategy.
    pub option: DistOption,
    /// What it was made with.
    pub config: StrategyConfig,
    /// Steps so far: where partialUpdate's rotation stands.
    pub steps: u64,
    /// Residuals by parameter name.
    pub memory: Memory,
}

impl DistOpt {
    /// The state of every strategy used so far. Call [`Self::average_parameters`] before saving the
    /// parameters beside it.
    pub fn strategy_state(&self) -> Vec<StrategyState> {
        let state = |used: &UsedStrategy| StrategyState {
            option: used.option,
            config: used.config.clone(),
            steps: used.steps,
            memory: used.with_memory(|memory| memory.clone()).unwrap_or_default(),
        };
        self.used.iter().map(state).collect()
    }

    /// Goes on where [`Self::strategy_state`] was called, and forgets what strategies have done
    /// here. All ranks must load theirs.
    ///
    /// # Errors
    /// A strategy of the user's own that is not registered; a residual of a parameter that does not
    /// exist, or has another length.
    pub fn load_strategy_state(&mut self, states: &[StrategyState]) -> Result<()> {
        states.iter().try_for_each(|state| self.check_residuals(&state.memory))?;
        self.used.clear();
        self.agreed = None;
        for state in states {
            let (index, _) = self.used.of(state.option, &state.config)?;
            let used = self.used.get_mut(index);
            used.steps = state.steps;
            used.with_memory(|memory| *memory = state.memory.clone());
        }
        Ok(())
    }

    fn check_residuals(&self, memory: &Memory) -> Result<()> {
        let params = self.params.list();
        for (_, name, values) in memory.iter().filter(|(kind, ..)| *kind == Memory::RESIDUAL) {
            let param = params.iter().find(|param| param.name() == name);
            let expected = param.map_or(0, |param| param.var().elem_count());
            if expected != values.len() {
                let (name, got) = (name.to_owned(), values.len());
                return Err(Error::Residual { name, expected, got });
            }
        }
        Ok(())
    }
}
