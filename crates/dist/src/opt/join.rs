//! Ranks that run out of batches before others do.
//!
//! With [`DistOptConfig::uneven`](super::DistOptConfig::uneven) every step begins with the number of
//! ranks that have a batch. A rank that has none left calls [`DistOpt::join`] and takes part in the
//! others' steps with gradients of zero, so that nobody waits for it and all models stay equal;
//! averages are over the ranks that have a batch. (PyTorch's `Join`, which divides by all ranks
//! unless told otherwise.)

use candelabrum_nn::DistOption;

use super::step::StepEnd;
use super::{DistOpt, Request};
use crate::comm::{Collective, Payload, ReduceOp};
use crate::{Error, Result};

impl DistOpt {
    /// Takes part in the steps of the ranks that still have batches, until none has; gives how many
    /// steps that were. All ranks call it when their batches are used up, with the strategy that
    /// the others go on with. Layers that exchange something in the forward pass (a synchronized
    /// batch norm) cannot be used with it.
    ///
    /// A rank that has taken steps goes on as in its last one, where that was by the same strategy; one
    /// that has taken none joins steps of `backward_and_update_with`, not of the methods that SINGA
    /// names, whose units are others.
    ///
    /// # Errors
    /// [`Error::Setting`] without `uneven`; gradients that were accumulated and belong to no step;
    /// those of the steps.
    pub fn join(&mut self, dist_option: DistOption, spars: f32) -> Result<u64> {
        if !self.config.uneven {
            let (setting, value) = ("uneven", "false".to_owned());
            return Err(Error::Setting { setting, value, range: "true on every rank to join" });
        }
        let (config, sizing) = (self.config.strategy.clone(), self.config.sizing());
        let request = Request { option: dist_option, config, spars, sizing };
        let same = |last: &Request| last.option == dist_option && last.spars == spars;
        let request = self.agreed.clone().filter(same).unwrap_or(request);
        self.bound(|opt, _| match opt.accumulated.take() {
            Some(_) => Err(Error::AccumulatedBeforeJoin),
            None => Ok(()),
        })?;
        let mut steps = 0;
        loop {
            let end = self.bound(|opt, layouts| {
                let active = opt.count_active(false)?;
                if active == 0 {
                    return Ok(None);
                }
                opt.step_with(layouts, None, active, &request).map(Some)
            })?;
            match end {
                None => return Ok(steps),
                Some(StepEnd::Taken | StepEnd::Skipped) => steps += 1,
                Some(StepEnd::Failed(error)) => return Err(error),
            }
        }
    }

    /// How many ranks have a batch for the coming step.
    pub(super) fn count_active(&self, has_batch: bool) -> Result<usize> {
        let comm = &self.group;
        if !self.config.uneven {
            return Ok(comm.world_size());
        }
        let own = Payload::from_slice(&[i32::from(has_batch)]).labelled("ranks that have a batch");
        let sum = comm.run(Collective::AllReduce(ReduceOp::Sum), own)?;
        Ok(sum.as_slice::<i32>()?.first().map_or(0, |&active| active.unsigned_abs() as usize))
    }
}
