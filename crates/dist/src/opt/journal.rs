//! Updates that can be undone.
//!
//! A unit's parameters may be updated while later units are still under way, but a step that fails
//! must leave the model as it was. So such an update first writes down what it will change.

use candelabrum_nn::Param;
use candelabrum_optim::Optimizer;

use super::units::change;
use crate::Result;

/// What was there before, in the order in which it was changed.
#[derive(Debug, Default)]
pub(super) struct Journal {
    params: Vec<usize>,
    values: Vec<f32>,
}

impl Journal {
    /// Forgets everything; the memory is used again.
    pub(super) fn clear(&mut self) {
        self.params.clear();
        self.values.clear();
    }

    /// Writes down parameter number `index` and what the optimizer keeps of it; false where the
    /// optimizer cannot tell.
    pub(super) fn note(
        &mut self,
        index: usize,
        param: &Param,
        optimizer: &mut dyn Optimizer,
    ) -> Result<bool> {
        let Some(states) = optimizer.parameter_state(index) else { return Ok(false) };
        states.into_iter().for_each(|state| self.values.extend_from_slice(state));
        change(param, |values| {
            self.values.extend_from_slice(values);
            Ok(())
        })?;
        self.params.push(index);
        Ok(true)
    }

    /// Puts everything back.
    pub(super) fn undo(&mut self, params: &[Param], optimizer: &mut dyn Optimizer) -> Result<()> {
        let mut rest = &self.values[..];
        let mut next = |len: usize| {
            let (values, tail) = rest.split_at(len);
            rest = tail;
            values
        };
        for &index in &self.params {
            for state in optimizer.parameter_state(index).unwrap_or_default() {
                state.copy_from_slice(next(state.len()));
            }
            change(&params[index], |values| {
                values.copy_from_slice(next(values.len()));
                Ok(())
            })?;
        }
        self.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_nn::{Init, Params};
    use candelabrum_optim::{Adam, ParamInfo};

    use super::*;

    #[test]
    fn an_undone_update_never_was() -> Result<()> {
        let params = Params::new(1);
        let init = Init::Normal { std: 1.0 };
        let list = [params.root().param("a", (2, 3), init)?, params.root().param("b", 5, init)?];
        let mut adam = Adam::new(0.1);
        let info = |param| ParamInfo { name: Param::name(param), dims: param.var().dims() };
        adam.bind(&[info(&list[0]), info(&list[1])])?;
        let update = |adam: &mut Adam, i: usize, gradient: f32| {
            let gradient = vec![gradient; list[i].var().elem_count()];
            change(&list[i], |values| Ok(adam.update(i, values, &gradient)?))
        };
        for i in 0..2 {
            update(&mut adam, i, 0.5)?;
        }
        adam.step();
        let snapshot = |adam: &mut Adam| -> Result<Vec<Vec<f32>>> {
            let mut all: Vec<Vec<f32>> =
                adam.state_mut().into_iter().map(|state| state.to_vec()).collect();
            for param in &list {
                all.push(param.tensor().flatten_all()?.to_vec1()?);
            }
            Ok(all)
        };
        let before = snapshot(&mut adam)?;
        let mut journal = Journal::default();
        for i in [1, 0] {
            assert!(journal.note(i, &list[i], &mut adam)?);
            update(&mut adam, i, -3.0)?;
        }
        assert_ne!(snapshot(&mut adam)?, before);
        journal.undo(&list, &mut adam)?;
        assert_eq!(snapshot(&mut adam)?, before);
        Ok(())
    }
}
