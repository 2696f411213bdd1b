//! The old values of updates that can be undone.
//!
//! A bucket's parameters may be updated while later buckets are still under way, but a step that fails
//! must leave the model unchanged. So the step records the old values before each such update.

use candelabrum_memory::SpanMut;
use candelabrum_nn::Param;
use candelabrum_optim::Optimizer;

use crate::Result;

/// The most numbers that are recorded in a step: 64 MiB. Further buckets are updated after the step's
/// last average has arrived.
const LIMIT: usize = 16 << 20;

/// The old values, in the order in which they were changed.
#[derive(Debug, Default)]
pub(super) struct UndoLog {
    params: Vec<usize>,
    values: Vec<f32>,
}

impl UndoLog {
    /// Forgets all values but keeps the memory for the next step.
    pub(super) fn clear(&mut self) {
        self.params.clear();
        self.values.clear();
    }

    /// The bytes of the memory that it keeps.
    pub(super) fn bytes(&self) -> usize {
        self.values.capacity() * size_of::<f32>()
    }

    /// Records parameter number `index` and the optimizer's state of it. Returns false, and records
    /// nothing, if the optimizer cannot return this state, the limit is reached, or the parameter is on
    /// a GPU.
    pub(super) fn note(
        &mut self,
        index: usize,
        param: &Param,
        optimizer: &mut dyn Optimizer,
    ) -> Result<bool> {
        if !param.device().is_cpu() {
            // On a GPU the host enqueues updates and waits for none, so early ones save no time.
            return Ok(false);
        }
        let Some(states) = optimizer.parameter_state(index)? else { return Ok(false) };
        let own = param.with_own_values(|_, values| Ok(values.len()))?;
        let len = own + states.iter().map(SpanMut::len).sum::<usize>();
        if self.values.len() + len > LIMIT {
            return Ok(false);
        }
        for state in &states {
            self.values.extend_from_slice(state.as_span().host()?);
        }
        param.with_own_values(|_, values| {
            self.values.extend_from_slice(values.host()?);
            Ok(())
        })?;
        self.params.push(index);
        Ok(true)
    }

    /// Restores all recorded values.
    pub(super) fn undo(&mut self, params: &[Param], optimizer: &mut dyn Optimizer) -> Result<()> {
        let mut rest = &self.values[..];
        let mut next = |len: usize| {
            let (values, tail) = rest.split_at(len);
            rest = tail;
            values
        };
        for &index in &self.params {
            for mut state in optimizer.parameter_state(index)?.unwrap_or_default() {
                state.copy_from(next(state.len()).into())?;
            }
            params[index]
                .update_own_in_step(|mut values| values.copy_from(next(values.len()).into()))??;
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
        let info = |param| ParamInfo::on_host(Param::name(param), param.dims());
        adam.bind(&[info(&list[0]), info(&list[1])])?;
        let update = |adam: &mut Adam, i: usize, gradient: f32| {
            let gradient = vec![gradient; list[i].element_count()];
            list[i].update_in_place(|values| adam.update(i, values, (&gradient).into()))??;
            Ok::<_, crate::Error>(())
        };
        for i in 0..2 {
            update(&mut adam, i, 0.5)?;
        }
        adam.step();
        let snapshot = |adam: &mut Adam| -> Result<Vec<Vec<f32>>> {
            let states = adam.state_mut()?;
            let mut all: Vec<Vec<f32>> =
                states.into_iter().map(|s| Ok(s.host()?.to_vec())).collect::<Result<_>>()?;
            for param in &list {
                all.push(param.tensor().flatten_all()?.to_vec1()?);
            }
            Ok(all)
        };
        let before = snapshot(&mut adam)?;
        let mut undo_log = UndoLog::default();
        for i in [1, 0] {
            assert!(undo_log.note(i, &list[i], &mut adam)?);
            update(&mut adam, i, -3.0)?;
        }
        assert_ne!(snapshot(&mut adam)?, before);
        undo_log.undo(&list, &mut adam)?;
        assert_eq!(snapshot(&mut adam)?, before);
        Ok(())
    }
}
