//! The state of strategies between steps, to be saved and loaded.

use candelabrum_nn::DistOption;

use super::DistOpt;
use super::used::UsedStrategy;
use crate::strategy::{Memory, StrategyConfig};
use crate::{Error, Result};

/// The state of one strategy on this rank. It differs between ranks, so each rank saves its own.
/// The parameters, once averaged, are the same on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct StrategyState {
    /// The strategy.
    pub option: DistOption,
    /// Its settings.
    pub config: StrategyConfig,
    /// Steps so far. partialUpdate derives the next unit from this number.
    pub steps: u64,
    /// Residuals by parameter name.
    pub memory: Memory,
}

impl DistOpt {
    /// The state of every strategy used so far, on the host. If you save the parameters with it,
    /// call [`Self::average_parameters`] first.
    ///
    /// # Errors
    /// A GPU's error.
    pub fn strategy_state(&self) -> Result<Vec<StrategyState>> {
        let state = |used: &UsedStrategy| {
            let memory = used.with_memory(|memory| memory.to_host()).transpose()?;
            Ok(StrategyState {
                option: used.option,
                config: used.config.clone(),
                steps: used.steps,
                memory: memory.unwrap_or_default(),
            })
        };
        self.used.iter().map(state).collect()
    }

    /// Restores the state that [`Self::strategy_state`] returned, and forgets the present state of
    /// all strategies. All ranks must load their states.
    ///
    /// # Errors
    /// A custom strategy that is not registered, or a residual whose parameter does not exist or
    /// has another length.
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
