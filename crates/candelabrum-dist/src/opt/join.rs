//! Ranks that run out of batches before other ranks do.
//!
//! With [`DistOptConfig::uneven`](super::DistOptConfig::uneven) every step begins with the sum of the ranks'
//! weights ([`StepWeight`](crate::StepWeight)), and the number of ranks that have a batch. A rank without
//! batches calls [`DistOpt::join`] and takes part in the other ranks' steps with gradients of zero, so no
//! rank waits for it and all models stay equal. Averages are over what counts in the batches that there are.
//! (This is PyTorch's `Join`, which divides by all ranks by default.)

use candelabrum_nn::DistOption;

use super::DistOpt;
use super::step_end::StepEnd;
use super::step_request::StepRequest;
use crate::{Error, Result};

impl DistOpt {
    /// Takes part in the steps of the ranks that still have batches, until no rank has one. Returns
    /// the number of these steps. Each rank calls it when its batches are used up, with the
    /// strategy with which the other ranks continue. A model whose layers exchange data in the
    /// forward pass (a synchronized batch norm) cannot use it: see [`Self::check_uneven`].
    ///
    /// A rank whose last step had the same strategy and `spars` joins with the buckets of that step.
    /// Any other rank, for instance one that has taken no step, joins steps of
    /// `backward_and_update_with`. It cannot join the methods that SINGA names, because these use
    /// other buckets.
    ///
    /// # Errors
    /// [`Error::Setting`] without `uneven`. [`Error::AccumulatedBeforeJoin`] if gradients were accumulated, or a
    /// step was begun, for a step that was never taken. The errors of the steps.
    pub fn join(&mut self, dist_option: DistOption, spars: f32) -> Result<u64> {
        if !self.config.uneven {
            let (setting, value) = ("uneven", "false".to_owned());
            return Err(Error::Setting { setting, value, range: "true on every rank to join" });
        }
        let (config, sizing) = (self.config.strategy.clone(), self.config.sizing());
        let request =
            StepRequest { option: dist_option, config, spars, sizing, frozen: Vec::new() };
        let same = |last: &StepRequest| last.option == dist_option && last.spars == spars;
        let request = self.agreed.clone().filter(same).unwrap_or(request);
        let request = StepRequest { frozen: self.frozen(), ..request };
        self.bound(|opt, _| {
            let weight = std::mem::take(&mut opt.weight);
            match opt.accumulated.take() {
                None if !weight.has_losses() && !weight.has_begun() => Ok(()),
                _ => Err(Error::AccumulatedBeforeJoin),
            }
        })?;
        let mut steps = 0;
        loop {
            let end = self.bound(|opt, layouts| {
                opt.tell_step(&request)?;
                let total = opt.weight.total(&opt.ranks.all, opt.ranks.count, true)?;
                if total.active == 0 {
                    return Ok(None);
                }
                opt.take_step(layouts, None, total, &request).map(Some)
            })?;
            match end {
                None => return Ok(steps),
                Some(StepEnd::Taken | StepEnd::Skipped) => steps += 1,
                Some(StepEnd::Failed(error)) => return Err(error),
            }
        }
    }
}
