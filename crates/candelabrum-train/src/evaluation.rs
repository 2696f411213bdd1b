//! The measurement of a task on all of a dataset.

use std::sync::Arc;

use candelabrum_datasets::{
    Collated, Dataset, DistributedSampler, Loader, LoaderOptions, Remainder, SamplerConfig,
};
use candelabrum_dist::Group;
use candelabrum_nn::Params;

use crate::task::Task;
use crate::{Error, Metrics, Result};

/// Measures `task` on all of `data`: one of the ranks takes each sample, once. The ranks' models become one
/// model first. `goes_on` is asked before each batch, on all ranks together: all have the same number of batches,
/// some of which may be empty. If it says no, the result is `None`.
pub(crate) fn run<B, T, D>(
    task: &mut T,
    data: &D,
    batch_size: usize,
    loading: &LoaderOptions,
    goes_on: impl FnMut() -> Result<bool>,
) -> Result<Option<Metrics>>
where
    B: Collated,
    T: Task<B> + ?Sized,
    D: Dataset<Batch = B> + Clone,
{
    let _span = tracing::debug_span!(target: "candelabrum::run", "evaluate").entered();
    let group = task.optimizer().group().clone();
    let sampler = sampler(&group, data, batch_size, None, Remainder::Keep)?;
    let loader = Loader::new(Arc::new(data.clone()), sampler, loading.clone())?;
    let mut params: Vec<Params> = Vec::new();
    for (_, optimizer) in task.optimizers() {
        optimizer.average_parameters()?;
        params.push(optimizer.params().clone());
    }
    match in_mode(&params, false, || measure(task, &loader, goes_on))? {
        Some(own) => Ok(Some(own.over_ranks(&*group)?)),
        None => Ok(None),
    }
}

/// Runs `work` with the layers of all models in training or in evaluation mode, and sets their earlier modes again.
pub(crate) fn in_mode<R>(params: &[Params], training: bool, work: impl FnOnce() -> R) -> R {
    let set = |params: &Params, training| if training { params.train() } else { params.eval() };
    let before: Vec<bool> = params.iter().map(Params::is_training).collect();
    params.iter().for_each(|params| set(params, training));
    let result = work();
    params.iter().zip(before).for_each(|(params, before)| set(params, before));
    result
}

fn measure<B, T, D>(
    task: &mut T,
    loader: &Loader<D>,
    mut goes_on: impl FnMut() -> Result<bool>,
) -> Result<Option<Metrics>>
where
    B: Collated,
    T: Task<B> + ?Sized,
    D: Dataset<Batch = B>,
{
    let mut metrics = Metrics::default();
    for batch in loader.evaluation()? {
        let batch = batch?;
        if !goes_on()? {
            return Ok(None);
        }
        if !batch.is_empty() {
            task.evaluate(&batch, &mut metrics)?;
        }
    }
    Ok(Some(metrics))
}

/// This rank's batches of all of `data`: shuffled by the seed of a training, or in order for an evaluation.
pub(crate) fn sampler(
    group: &Group,
    data: &(impl Dataset + ?Sized),
    batch_size: usize,
    training: Option<u64>,
    remainder: Remainder,
) -> Result<DistributedSampler> {
    let shared_by = data.shared_by();
    if shared_by > 1 {
        return Err(Error::AlreadyPartitioned { shared_by });
    }
    Ok(DistributedSampler::new(SamplerConfig {
        len: data.len(),
        global_rank: group.rank(),
        world_size: group.world_size(),
        batch_size,
        seed: training.unwrap_or(0),
        shuffle: training.is_some(),
        remainder,
    })?)
}
