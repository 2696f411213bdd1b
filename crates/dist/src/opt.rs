//! The distributed optimizer: an optimizer whose gradients are averaged over all ranks.
//!
//! One step: backward; gradients into buckets; one all-reduce per bucket, started as it is full;
//! once all are back and every number is finite, the update. Nothing changes before that, on any
//! rank, so a step that fails leaves the model as it was.

use candelabrum_nn::{BackwardAndUpdate, DistOption, Param, Params};
use candelabrum_optim::Optimizer;
use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor};

use crate::bucket::{self, BucketPlan};
use crate::comm::{Buffer, Collective, ElementType, Pending, ReduceOp};
use crate::consistency::{check_consistency, digest, parameter_facts};
use crate::{Error, Result, World};

/// Settings of a [`DistOpt`], the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistOptConfig {
    /// Size of the first bucket in bytes: small, because backward goes on for long after it.
    pub first_bucket_bytes: usize,
    /// Size of the other buckets in bytes.
    pub bucket_bytes: usize,
    /// Whether a parameter may have no gradient in a step; it then counts as zero.
    pub allow_unused: bool,
}

impl Default for DistOptConfig {
    /// PyTorch DDP's sizes: 1 MiB, then 25 MiB.
    fn default() -> Self {
        Self { first_bucket_bytes: 1 << 20, bucket_bytes: 25 << 20, allow_unused: false }
    }
}

/// SINGA's `DistOpt`: wraps an optimizer, so that every rank updates by the average of all ranks'
/// gradients and all models stay equal, bit for bit.
#[derive(Debug)]
pub struct DistOpt {
    optimizer: Box<dyn Optimizer>,
    params: Params,
    world: World,
    config: DistOptConfig,
    /// How many parameters have been made equal to rank 0's.
    synchronized: usize,
    /// Made at the first step, when every parameter exists.
    bound: Option<Bound>,
}

#[derive(Debug)]
struct Bound {
    params: Vec<Param>,
    buckets: Vec<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    plan: BucketPlan,
    /// Away while its all-reduce is under way, and for good after one that failed.
    buffer: Option<Buffer>,
}

impl DistOpt {
    /// Wraps `optimizer` for the parameters in `params`, and makes those that exist equal to
    /// rank 0's. Layers with inferred sizes create theirs at the first call, so run
    /// [`candelabrum_nn::Model::compile`] first.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] where ranks differ in version, optimizer or parameters.
    pub fn new(
        optimizer: impl Optimizer + 'static,
        params: &Params,
        world: &World,
    ) -> Result<Self> {
        Self::with_config(optimizer, params, world, DistOptConfig::default())
    }

    /// The same with other settings.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn with_config(
        optimizer: impl Optimizer + 'static,
        params: &Params,
        world: &World,
        config: DistOptConfig,
    ) -> Result<Self> {
        // Replicas that drop the same units would average the same noise.
        params.set_noise_stream(world.rank() as u64);
        let optimizer = Box::new(optimizer);
        let (params, world) = (params.clone(), world.clone());
        let mut opt = Self { optimizer, params, world, config, synchronized: 0, bound: None };
        opt.synchronize()?;
        Ok(opt)
    }

    /// The parameters it updates.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The ranks it averages over.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// SINGA's `backward_and_update`: gradients of `loss`, averaged in fp32, and the update.
    ///
    /// # Errors
    /// As for [`BackwardAndUpdate::backward_and_update_with`].
    pub fn backward_and_update(&mut self, loss: &Tensor) -> Result<()> {
        let mut bound = match self.bound.take() {
            Some(bound) => bound,
            None => self.bind()?,
        };
        if self.params.len() > bound.params.len() {
            let late = self.params.list().split_off(bound.params.len());
            self.bound = Some(bound);
            return Err(Error::LateParameters { names: names(&late) });
        }
        let result = self.step(&mut bound, loss);
        self.bound = Some(bound);
        result
    }

    /// Gives every rank rank 0's values of the parameters that exist now. Called when the
    /// optimizer is made; call it again after changing parameters by hand.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] where ranks differ in version, optimizer or parameters.
    pub fn synchronize(&mut self) -> Result<()> {
        let params = self.params.list();
        self.check_same(&params)?;
        let comm = self.world.comm();
        if comm.world_size() > 1 {
            for param in &params {
                let mut result = Ok(());
                param.update_in_place(|values| result = comm.broadcast(values, 0))?;
                result?;
            }
        }
        self.synchronized = params.len();
        Ok(())
    }

    /// Refuses ranks that would not train the same thing.
    fn check_same(&self, params: &[Param]) -> Result<()> {
        if let Some(param) = params.iter().find(|param| param.var().dtype() != DType::F32) {
            let (name, dtype) = (param.name().to_owned(), format!("{:?}", param.var().dtype()));
            return Err(Error::ParameterType { name, dtype });
        }
        let mut facts = vec![
            ("the version of candelabrum".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("the optimizer".to_owned(), self.optimizer.describe()),
            ("the optimizer's configuration".to_owned(), format!("{:?}", self.config)),
        ];
        facts.extend(parameter_facts(params));
        check_consistency(self.world.comm(), &facts)
    }

    /// Fixes the set of parameters and makes room for their gradients.
    fn bind(&mut self) -> Result<Bound> {
        let params = self.params.list();
        if params.is_empty() {
            return Err(Error::NoParameters);
        }
        if params.len() > self.synchronized {
            self.check_same(&params)?;
            self.check_equal_values(&params[self.synchronized..])?;
        }
        let sizes: Vec<usize> = params.iter().map(|param| param.var().elem_count()).collect();
        self.optimizer.bind(&sizes)?;
        let elements = |bytes: usize| (bytes / ElementType::F32.size()).max(1);
        let first_cap = elements(self.config.first_bucket_bytes);
        let plans = bucket::plan(&sizes, first_cap, elements(self.config.bucket_bytes));
        let mut buckets = Vec::with_capacity(plans.len());
        for plan in plans {
            let buffer = Some(self.world.comm().alloc(ElementType::F32, plan.len)?);
            buckets.push(Bucket { plan, buffer });
        }
        Ok(Bound { params, buckets })
    }

    /// Parameters made since the last [`Self::synchronize`] have been used already: it is too late
    /// to replace them, but they are equal where all ranks used one seed.
    fn check_equal_values(&self, params: &[Param]) -> Result<()> {
        let facts = params
            .iter()
            .map(|param| {
                let what =
                    format!("the initial value of {} (compile the model first)", param.name());
                Ok((what, digest(std::slice::from_ref(param))?))
            })
            .collect::<Result<Vec<_>>>()?;
        check_consistency(self.world.comm(), &facts)
    }

    fn step(&mut self, bound: &mut Bound, loss: &Tensor) -> Result<()> {
        let finite_loss = loss.to_dtype(DType::F32)?.to_scalar::<f32>()?.is_finite();
        let grads = loss.backward()?;
        let stopped = Error::Stopped { rank: self.world.rank() };
        for bucket in &mut bound.buckets {
            let buffer = bucket.buffer.as_mut().ok_or_else(|| stopped.clone())?;
            self.fill(&bound.params, &bucket.plan, &grads, buffer.as_mut_slice()?)?;
            // A loss that is no number can have finite gradients; let it be seen in the average.
            if !finite_loss {
                buffer.as_mut_slice::<f32>()?.fill(f32::NAN);
            }
        }
        let comm = self.world.comm();
        let launched: Vec<Pending> = bound
            .buckets
            .iter_mut()
            .filter_map(|bucket| bucket.buffer.take())
            .map(|buffer| comm.start(Collective::AllReduce(ReduceOp::Mean), buffer))
            .collect();
        for (bucket, pending) in bound.buckets.iter_mut().zip(launched) {
            bucket.buffer = Some(pending.wait()?);
        }
        for bucket in &bound.buckets {
            if !all_finite(averages(bucket)?) {
                return Err(self.name_not_finite(&bound.params, &grads, finite_loss)?);
            }
        }
        for bucket in &bound.buckets {
            self.update(&bound.params, bucket)?;
        }
        self.optimizer.step();
        Ok(())
    }

    /// Copies the gradients of a bucket's parameters into it.
    fn fill(
        &self,
        params: &[Param],
        plan: &BucketPlan,
        grads: &GradStore,
        bucket: &mut [f32],
    ) -> Result<()> {
        for slot in &plan.slots {
            let place = &mut bucket[slot.range.clone()];
            match grads.get(params[slot.param].tensor()) {
                Some(grad) => copy_values(grad, place)?,
                None if self.config.allow_unused => place.fill(0.0),
                None => return Err(no_gradient(params, grads)),
            }
        }
        Ok(())
    }

    fn update(&mut self, params: &[Param], bucket: &Bucket) -> Result<()> {
        let averages = averages(bucket)?;
        for slot in &bucket.plan.slots {
            let grad = &averages[slot.range.clone()];
            let mut result = Ok(());
            let optimizer = &mut self.optimizer;
            params[slot.param].update_in_place(|values| {
                result = optimizer.update(slot.param, values, grad);
            })?;
            result?;
        }
        Ok(())
    }

    /// Some average is not finite, on every rank: finds out where that began.
    fn name_not_finite(
        &self,
        params: &[Param],
        grads: &GradStore,
        finite_loss: bool,
    ) -> Result<Error> {
        let own = if finite_loss {
            let bad = |param: &&Param| {
                grads.get(param.tensor()).is_some_and(|grad| !grad_is_finite(grad))
            };
            params.iter().find(bad).map(|param| format!("the gradient of `{}`", param.name()))
        } else {
            Some("the loss".to_owned())
        };
        let found = self.world.comm().all_gather_text(&own.unwrap_or_default())?;
        let first = found.into_iter().enumerate().find(|(_, what)| !what.is_empty());
        // Finite everywhere, and yet the sum is not: it overflowed.
        let (rank, what) = first.unwrap_or((0, "the sum of the gradients".to_owned()));
        Ok(Error::NotFinite { what, rank })
    }
}

impl BackwardAndUpdate for DistOpt {
    type Error = Error;

    fn backward_and_update_with(
        &mut self,
        loss: &Tensor,
        dist_option: DistOption,
        _spars: f32,
    ) -> Result<()> {
        check_dist_option(dist_option)?;
        self.backward_and_update(loss)
    }
}

/// Whether this version has the strategy `dist_option`.
///
/// # Errors
/// [`Error::DistOption`] where it has not.
pub fn check_dist_option(dist_option: DistOption) -> Result<()> {
    match dist_option {
        DistOption::Fp32 => Ok(()),
        other => Err(Error::DistOption { option: other.to_string() }),
    }
}

fn averages(bucket: &Bucket) -> Result<&[f32]> {
    match &bucket.buffer {
        Some(buffer) => buffer.as_slice(),
        None => Ok(&[]),
    }
}

fn copy_values(grad: &Tensor, place: &mut [f32]) -> Result<()> {
    let grad = grad.contiguous()?;
    let (storage, layout) = grad.storage_and_layout();
    let candle_core::Storage::Cpu(storage) = &*storage else {
        return Err(Error::Unsupported { what: "a gradient that is not on the CPU".to_owned() });
    };
    let values = storage.as_slice::<f32>()?;
    let start = layout.start_offset();
    let values = values.get(start..start + place.len()).ok_or_else(|| Error::Length {
        op: "gradient",
        expected: place.len(),
        got: values.len().saturating_sub(start),
    })?;
    place.copy_from_slice(values);
    Ok(())
}

/// Names every parameter that the loss does not depend on.
fn no_gradient(params: &[Param], grads: &GradStore) -> Error {
    let missing = params.iter().filter(|param| grads.get(param.tensor()).is_none());
    Error::NoGradient { names: names(missing) }
}

fn names<'a>(params: impl IntoIterator<Item = &'a Param>) -> String {
    params.into_iter().map(Param::name).collect::<Vec<_>>().join(", ")
}

/// Zero times a number is zero unless the number is infinite or none: a sum that vectorises.
fn all_finite(values: &[f32]) -> bool {
    let mut lanes = [0.0_f32; 16];
    let chunks = values.chunks_exact(lanes.len());
    let rest: f32 = chunks.remainder().iter().map(|x| x * 0.0).sum();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x * 0.0;
        }
    }
    rest + lanes.iter().sum::<f32>() == 0.0
}

fn grad_is_finite(grad: &Tensor) -> bool {
    let mut values = vec![0.0; grad.elem_count()];
    copy_values(grad, &mut values).is_ok() && all_finite(&values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_number_anywhere_is_found() {
        for len in [0, 1, 15, 16, 17, 100] {
            let good = vec![f32::MAX; len];
            assert!(all_finite(&good));
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for i in 0..len {
                    let mut values = good.clone();
                    values[i] = bad;
                    assert!(!all_finite(&values), "{bad} at {i} of {len}");
                }
            }
        }
    }
}
