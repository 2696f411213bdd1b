//! Batches as plain numbers, so that those of different ranks can be joined and compared.

use std::sync::Arc;

use candelabrum_datasets::{
    Batch, Batches, Collated, Dataset, DistributedSampler, Loader, LoaderOptions, Remainder,
    SamplerConfig,
};
use candle_core::{DType, Tensor};

/// The numbers of one sample, over all tensors of a batch, as the bits of an f64.
pub(crate) type Row = Vec<u64>;

/// A batch whose tensors can be looked at.
pub(crate) trait Open: Collated {
    fn tensors(&self) -> Vec<&Tensor>;
}

impl Open for Tensor {
    fn tensors(&self) -> Vec<&Tensor> {
        vec![self]
    }
}

impl Open for (Tensor, Tensor) {
    fn tensors(&self) -> Vec<&Tensor> {
        vec![&self.0, &self.1]
    }
}

impl Open for Batch {
    fn tensors(&self) -> Vec<&Tensor> {
        vec![&self.xs, &self.ys]
    }
}

/// The samples of a batch. Every number of the datasets here is exact in an f64.
pub(crate) fn rows(batch: &impl Open) -> Vec<Row> {
    let mut rows = vec![Vec::new(); batch.len()];
    if rows.is_empty() {
        return rows;
    }
    for tensor in batch.tensors() {
        let flat = tensor.to_dtype(DType::F64).unwrap().reshape((batch.len(), ())).unwrap();
        for (row, numbers) in rows.iter_mut().zip(flat.to_vec2::<f64>().unwrap()) {
            row.extend(numbers.into_iter().map(f64::to_bits));
        }
    }
    rows
}

/// All batches that are left of an epoch.
pub(crate) fn all<B: Open>(batches: Batches<B>) -> Vec<Vec<Row>> {
    batches.map(|batch| rows(&batch.unwrap())).collect()
}

/// A loader that reads on so many threads.
pub(crate) fn loader<D: Dataset>(
    data: &Arc<D>,
    sampler: DistributedSampler,
    threads: usize,
) -> Loader<D> {
    let options = LoaderOptions { threads, ..LoaderOptions::default() };
    Loader::new(Arc::clone(data), sampler, options).unwrap()
}

/// A sampler of one rank with full shuffling.
pub(crate) fn single(len: usize, batch_size: usize, seed: u64) -> DistributedSampler {
    DistributedSampler::new(SamplerConfig {
        len,
        global_rank: 0,
        world_size: 1,
        batch_size,
        seed,
        shuffle: true,
        remainder: Remainder::Keep,
    })
    .unwrap()
}
