//! The measurement of a task on all of a dataset.

use std::sync::Arc;

use candelabrum_datasets::{
    Collated, Dataset, DistributedSampler, Loader, LoaderOptions, Remainder, SamplerConfig,
};
use candelabrum_dist::Group;
use candelabrum_nn::Params;

use crate::agreement::agree;
use crate::task::Task;
use crate::{Error, FitConfig, Metrics, Result, parts};

/// Measures `task` on all of each of `sets`, or on all parts of which each rank has one: one of the ranks takes each
/// sample, once. The ranks' models become one model first, and `prepare` is called. `goes_on` is asked before each batch,
/// on all ranks together, with whether this rank has failed: all have the same number of batches, some of which may be
/// empty. If it says no, the result is `None`.
///
/// What fails on one rank is an error of all ranks, which are then at the same place of their programs.
pub(crate) fn run<B, T, D>(
    task: &mut T,
    sets: &[D],
    batch_size: usize,
    loading: &LoaderOptions,
    prepare: impl FnOnce(&mut T) -> Result<()>,
    mut goes_on: impl FnMut(bool) -> Result<bool>,
) -> Result<Option<Vec<Metrics>>>
where
    B: Collated,
    T: Task<B> + ?Sized,
    D: Dataset<Batch = B> + Clone,
{
    let _span = tracing::debug_span!(target: "candelabrum::run", "evaluate").entered();
    let group = task.optimizer().group().clone();
    // The ranks meet for each set, so that all of them hear of a failure at the same place.
    let passes =
        sets.iter().map(|data| agree(&group, DataPass::over(&group, data, batch_size, loading)));
    let passes = passes.collect::<Result<Vec<_>>>()?;
    let mut params: Vec<Params> = Vec::new();
    for (_, optimizer) in task.optimizers() {
        optimizer.average_parameters()?;
        params.push(optimizer.params().clone());
    }
    let prepared = prepare(task);
    agree(&group, prepared)?;
    let mut all = Vec::with_capacity(passes.len());
    for pass in &passes {
        let own = in_mode(&params, false, || measure(task, pass, &mut goes_on));
        match agree(&group, own)? {
            Some(own) => all.push(own.over_ranks(&*group)?),
            None => return Ok(None),
        }
    }
    Ok(Some(all))
}

/// One pass over all of a dataset, or over all parts of which each rank has one: one of the ranks takes each sample,
/// once.
pub(crate) struct DataPass<D: Dataset> {
    loader: Loader<D>,
    /// The steps of each rank. A rank with a smaller part waits for the others' last batches.
    steps: usize,
    /// The samples that each rank has, if each has a part of its own.
    pub(crate) parts: Option<Vec<usize>>,
}

impl<D: Dataset + Clone> DataPass<D> {
    /// All ranks call it together.
    pub(crate) fn over(
        group: &Group,
        data: &D,
        batch_size: usize,
        loading: &LoaderOptions,
    ) -> Result<Self> {
        let lens = parts::lens(group, data)?;
        let sampler = sampler(group, data, lens.is_some(), batch_size, 0, Remainder::Keep)?;
        let steps = lens.iter().flatten().map(|len| len.div_ceil(batch_size)).max();
        let steps = steps.unwrap_or(sampler.steps());
        let loader = Loader::new(Arc::new(data.clone()), sampler, loading.clone())?;
        Ok(Self { loader, steps, parts: lens })
    }
}

impl<D: Dataset> DataPass<D> {
    /// This rank's batch of each step. `None` where it has no samples.
    pub(crate) fn batches(&self) -> Result<impl Iterator<Item = Result<Option<D::Batch>>>> {
        let mut batches = self.loader.evaluation()?;
        Ok((0..self.steps).map(move |_| {
            let batch = batches.next().transpose()?;
            Ok(batch.filter(|batch| !batch.is_empty()))
        }))
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
    pass: &DataPass<D>,
    mut goes_on: impl FnMut(bool) -> Result<bool>,
) -> Result<Option<Metrics>>
where
    B: Collated,
    T: Task<B> + ?Sized,
    D: Dataset<Batch = B>,
{
    let (mut metrics, mut result) = (Metrics::default(), Ok(()));
    for batch in pass.batches()? {
        if !goes_on(result.is_err())? {
            return result.map(|()| None);
        }
        result = result.and_then(|()| match batch? {
            Some(batch) => task.evaluate(&batch, &mut metrics),
            None => Ok(()),
        });
    }
    result.map(|()| Some(metrics))
}

/// This rank's batches of all of `data` for training. `lens` are the numbers of samples in the ranks' parts, if each
/// rank has one of its own. Then all ranks have the steps of the smallest part.
pub(crate) fn training_sampler(
    group: &Group,
    data: &(impl Dataset + ?Sized),
    lens: Option<&[usize]>,
    batch_size: usize,
    config: &FitConfig,
) -> Result<DistributedSampler> {
    let mut config = config.clone();
    if let Some(lens) = lens {
        if config.uneven {
            let range = "false where each rank has a part of the training data";
            return Err(Error::option("uneven", &true, range));
        }
        let smallest = lens.iter().min().copied().unwrap_or_default();
        let size = &mut config.sampling.epoch_size;
        *size = Some(size.map_or(smallest, |size| size / lens.len()));
    }
    let remainder = if config.uneven { Remainder::Keep } else { Remainder::Drop };
    config.ordered(sampler(group, data, lens.is_some(), batch_size, config.seed, remainder)?)
}

/// This rank's batches of `data` in order: its share of each global batch, or all batches of a part.
fn sampler(
    group: &Group,
    data: &(impl Dataset + ?Sized),
    is_part: bool,
    batch_size: usize,
    seed: u64,
    remainder: Remainder,
) -> Result<DistributedSampler> {
    let (global_rank, world_size) =
        if is_part { (0, 1) } else { (group.rank(), group.world_size()) };
    Ok(DistributedSampler::new(SamplerConfig {
        global_rank,
        world_size,
        seed,
        shuffle: false,
        remainder,
        ..SamplerConfig::new(data.len(), batch_size)
    })?)
}
