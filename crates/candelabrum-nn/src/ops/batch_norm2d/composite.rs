//! Batch normalisation by candle's own operations.
//!
//! Replicas exchange statistics through the host, in one operation. Its argument is the mean `m`
//! and the variance `v` of this replica's batch. Its result is the mean `M` and the variance `V` of
//! all batches together. If this replica has `n` of the `N` values per channel, the backward is:
//!
//! ```text
//! backward   dm = n / N (dM + 2 (m - M) dV)      dv = n / N dV
//! ```
//!
//! Here `dM` and `dV` are the sums over all replicas, because every replica uses `M` and `V`.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Result, Shape, Tensor};

use super::config::NAME;
use super::{BatchNorm2dOp, replicas};
use crate::StatisticsExchange;
use crate::autograd::fused::widen;
use crate::kernels::channel_planes::ChannelPlanes;
use crate::kernels::moments::Moments;
use crate::ops::activations;

impl BatchNorm2dOp {
    pub(super) fn by_candle(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), weight, bias, mean, variance, residual] = inputs else {
            unreachable!("six inputs")
        };
        let ChannelPlanes { batch, channels, plane } = self.geometry;
        let x = widen(xs)?.reshape((batch, channels, plane))?;
        let by_channel = |numbers: &Tensor| widen(numbers)?.reshape((channels, 1));
        let (deviations, variance) = match (mean, variance) {
            (Some(mean), Some(variance)) => {
                (x.broadcast_sub(&by_channel(mean)?)?, by_channel(variance)?)
            }
            _ => self.batch_statistics(&x)?,
        };
        let mut ys = deviations.broadcast_div(&(variance + self.config.eps)?.sqrt()?)?;
        if let Some(weight) = weight {
            ys = ys.broadcast_mul(&by_channel(weight)?)?;
        }
        if let Some(bias) = bias {
            ys = ys.broadcast_add(&by_channel(bias)?)?;
        }
        if let Some(residual) = residual {
            ys = (ys + widen(residual)?.reshape((batch, channels, plane))?)?;
        }
        activations::composite(&ys, self.activation())?.to_dtype(xs.dtype())
    }

    /// The deviations of `x` (N, C, P) from the mean, and the variance (1, C, 1). Both are of this
    /// batch, or of all replicas' batches if the replicas exchange statistics. Moves the running
    /// statistics.
    fn batch_statistics(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        // In two steps, because the mean of large numbers is rounded. The first step subtracts a
        // constant, on which the result does not depend.
        let shift = x.detach().mean_keepdim((0, 2))?;
        let near = x.broadcast_sub(&shift)?;
        let rest = near.mean_keepdim((0, 2))?;
        let deviations = near.broadcast_sub(&rest)?;
        let variance = deviations.sqr()?.mean_keepdim((0, 2))?;
        let Some(exchange) = &self.exchange else {
            self.move_running_to(&(shift + rest)?, &variance, self.geometry.count() as f64)?;
            return Ok((deviations, variance));
        };
        let precise = |numbers: &Tensor| numbers.to_device(&Device::Cpu)?.to_dtype(DType::F64);
        let mean = (precise(&shift)? + precise(&rest)?)?;
        let own = Tensor::cat(&[mean, precise(&variance)?], 0)?; // (2, C, 1)
        let (count, all) = OfAllReplicas::moments(exchange, self.geometry.count(), &own)?;
        let (mean, variance) = (all.narrow(0, 0, 1)?, all.narrow(0, 1, 1)?);
        let rounded = |numbers: &Tensor| numbers.to_dtype(x.dtype())?.to_device(x.device());
        let variance = rounded(&variance)?;
        self.move_running_to(&rounded(&mean)?, &variance, count)?;
        if self.geometry.count() == 0 {
            // This replica has no values, but it must take part in the exchange of the backward.
            return Ok((rounded(&mean)?.broadcast_as(x.shape())?, variance));
        }
        let shift = rounded(&mean.detach())?;
        let rest = rounded(&(&mean - precise(&shift)?)?)?;
        Ok((x.broadcast_sub(&shift)?.broadcast_sub(&rest)?, variance))
    }

    /// Moves the running statistics towards those of a batch with `count` values per channel, as
    /// the kernel does.
    fn move_running_to(&self, mean: &Tensor, variance: &Tensor, count: f64) -> Result<()> {
        let Some(running) = &self.running else { return Ok(()) };
        let unbiased = (variance * (count / (count - 1.0)))?;
        for (buffer, new) in [(&running.mean, mean), (&running.variance, &unbiased)] {
            let old = buffer.value();
            let new = new.detach().to_dtype(old.dtype())?.reshape(old.shape())?;
            buffer.replace(&(&old + ((new - &old)? * self.config.momentum)?)?)?;
        }
        Ok(())
    }
}

/// The mean and the variance of all replicas' batches together, computed from this replica's.
struct OfAllReplicas {
    exchange: Arc<dyn StatisticsExchange>,
    /// The number of values per channel on this replica.
    count: usize,
    /// The result.
    all: Vec<f64>,
}

impl OfAllReplicas {
    /// The number of values per channel on all replicas, and all means and variances, of shape (2,
    /// C, 1) as `own`.
    fn moments(
        exchange: &Arc<dyn StatisticsExchange>,
        count: usize,
        own: &Tensor,
    ) -> Result<(f64, Tensor)> {
        let numbers = own.flatten_all()?.to_vec1::<f64>()?;
        let (means, variances) = numbers.split_at(numbers.len() / 2);
        let message: Vec<f64> =
            means.iter().zip(variances).flat_map(|(&m, &v)| [m, 0.0, v]).collect();
        let (total, moments) = replicas::all_moments::<f64>(&**exchange, count, &message)?;
        let mean = |moments: &Moments<f64>| moments.shift + moments.rest;
        let variances = moments.iter().map(|moments| moments.variance);
        let all = moments.iter().map(mean).chain(variances).collect();
        let op = Self { exchange: Arc::clone(exchange), count, all };
        Ok((total, own.apply_op1(op)?))
    }
}

impl CustomOp1 for OfAllReplicas {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, _: &CpuStorage, own: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F64(self.all.clone()), own.shape().clone()))
    }

    fn bwd(&self, own: &Tensor, all: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let sums = gradient.flatten_all()?.to_vec1::<f64>()?;
        let (total, sums) = replicas::all_sums(&*self.exchange, self.count, &sums)?;
        let sums = Tensor::from_vec(sums, own.shape(), &Device::Cpu)?;
        let (d_mean, d_variance) = (sums.narrow(0, 0, 1)?, sums.narrow(0, 1, 1)?);
        let from_mean = (own.narrow(0, 0, 1)? - all.narrow(0, 0, 1)?)?;
        let d_mean = (d_mean + ((from_mean * 2.0)? * &d_variance)?)?;
        let share = self.count as f64 / total;
        Ok(Some((Tensor::cat(&[d_mean, d_variance], 0)? * share)?))
    }
}
