//! The methods of SINGA's `DistOpt` under their own names.
//!
//! SINGA passes to each method a `threshold` in elements, which determines the buckets. Here the
//! threshold belongs to the optimizer: set [`DistOptConfig::threshold`](super::DistOptConfig), or
//! call [`DistOpt::threshold`] before a method. The default is SINGA's value, 2,097,152.
//!
//! ```
//! # use candelabrum_dist::{DistOpt, World};
//! # use candelabrum_nn::{Init, Params};
//! # let params = Params::new(0);
//! # let weight = params.root().param("weight", 8, Init::Const(1.0))?;
//! # let mut opt = DistOpt::new(candelabrum_optim::Sgd::new(0.1), &params, &World::single())?;
//! let loss = weight.tensor().sqr()?.sum_all()?;
//! opt.threshold(50_000)?.backward_and_sparse_update(&loss, 0.25, true, true)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use candelabrum_nn::{DistOption, to_flat};
use candle_core::{DType, Tensor};

use super::DistOpt;
use super::step::MicroBatch;
use super::step_request::StepRequest;
use crate::comm::{Collective, ReduceOp};
use crate::strategy::StrategyConfig;
use crate::{Error, Result};

impl DistOpt {
    /// Sets SINGA's `threshold`, in elements, for the following calls. A larger parameter is a bucket
    /// of its own. Other parameters fill a bucket until it has more than this many elements. The
    /// threshold must be the same on every rank.
    ///
    /// # Errors
    /// [`crate::Error::Setting`] for 0.
    pub fn threshold(&mut self, elements: usize) -> Result<&mut Self> {
        let threshold = Some(elements);
        super::DistOptConfig { threshold, ..super::DistOptConfig::default() }.check()?;
        let is_divided = self.layouts.as_ref().is_some_and(|layouts| layouts.shards().is_some());
        if (is_divided || self.ranks.has_servers()) && self.config.threshold != threshold {
            let (setting, value) = ("threshold", elements.to_string());
            let range = "that of the settings where ranks or servers have shards, which are those of one division";
            return Err(Error::Setting { setting, value, range });
        }
        self.config.threshold = threshold;
        Ok(self)
    }

    /// Computes the gradients of `loss`, averages them in fp32 and updates the parameters.
    ///
    /// # Errors
    /// As for [`candelabrum_nn::BackwardAndUpdate::backward_and_update_with`].
    pub fn backward_and_update(&mut self, loss: &Tensor) -> Result<()> {
        self.singa_step(loss, DistOption::Fp32, 0.0, self.config.strategy.clone())
    }

    /// As [`Self::backward_and_update`], with fp16 between ranks. `clip` first limits each element
    /// of this rank's gradient to that magnitude (SINGA's `clipping` and `clip_Value`).
    ///
    /// # Errors
    /// As for [`Self::backward_and_update`], a clip that is not above 0, and
    /// [`crate::Error::Overflow`].
    pub fn backward_and_update_half(&mut self, loss: &Tensor, clip: Option<f32>) -> Result<()> {
        let config = StrategyConfig { clip, ..self.config.strategy.clone() };
        self.singa_step(loss, DistOption::Fp16, 0.0, config)
    }

    /// Every rank updates with its own gradients. Then one bucket of parameters is averaged, and the
    /// next bucket in the next step. Call [`Self::average_parameters`] before an evaluation and at
    /// the end.
    ///
    /// # Errors
    /// As for [`Self::backward_and_update`].
    pub fn backward_and_partial_update(&mut self, loss: &Tensor) -> Result<()> {
        self.singa_step(loss, DistOption::PartialUpdate, 0.0, self.config.strategy.clone())
    }

    /// Each rank sends a part of its gradients. With `top_k` this is the fraction `spars` of each
    /// bucket's elements with the largest magnitude, without `top_k` every element of magnitude
    /// `spars` or more. With `corr` the elements that were not sent are added to the next step's
    /// gradient. SINGA's defaults are 0.05, false, true.
    ///
    /// # Errors
    /// As for [`Self::backward_and_update`], and a `spars` out of range.
    pub fn backward_and_sparse_update(
        &mut self,
        loss: &Tensor,
        spars: f32,
        top_k: bool,
        corr: bool,
    ) -> Result<()> {
        let option = if top_k { DistOption::SparseTopK } else { DistOption::SparseThreshold };
        let config = StrategyConfig { corr, ..self.config.strategy.clone() };
        self.singa_step(loss, option, spars, config)
    }

    /// Starts to sum `tensor` over all ranks in fp32. [`Self::wait`] returns the sum. SINGA sums in
    /// place, but candle's tensors are immutable.
    ///
    /// # Errors
    /// A tensor that cannot be converted to f32.
    pub fn all_reduce(&mut self, tensor: &Tensor) -> Result<()> {
        let tensor = tensor.to_dtype(DType::F32)?;
        let op = Collective::AllReduce(ReduceOp::Sum);
        let pending = self.ranks.workers.start(op, to_flat(&tensor)?.into());
        self.started.push((tensor.shape().clone(), tensor.device().clone(), pending));
        Ok(())
    }

    /// Waits for every [`Self::all_reduce`] since the last call. Returns the sums in the same
    /// order.
    ///
    /// # Errors
    /// A failure of any rank, a passed deadline or a disagreement between ranks.
    pub fn wait(&mut self) -> Result<Vec<Tensor>> {
        let started = std::mem::take(&mut self.started);
        let sums = started.into_iter().map(|(shape, device, pending)| {
            let sum = pending.wait()?.to_vec::<f32>()?;
            Ok(Tensor::from_vec(sum, shape, &device)?)
        });
        sums.collect()
    }

    fn singa_step(
        &mut self,
        loss: &Tensor,
        option: DistOption,
        spars: f32,
        config: StrategyConfig,
    ) -> Result<()> {
        // The state of a shard belongs to one division into buckets.
        let sizing = match self.is_divided() {
            true => self.config.sizing(),
            false => self.config.singa_sizing(),
        };
        let frozen = self.frozen();
        self.step(MicroBatch::Loss(loss), &StepRequest { option, config, spars, sizing, frozen })
    }
}
