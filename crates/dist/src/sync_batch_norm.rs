//! Batch normalisation by the batches of all ranks together: PyTorch's `SyncBatchNorm`.

use std::sync::Arc;

use candelabrum_nn::{Params, StatisticsExchange};

use crate::comm::{Collective, Group, Payload};

/// Lets every batch normalisation of `params` use, in training, the batches of all ranks of `group`:
/// PyTorch's `convert_sync_batchnorm`. N ranks with batch B then train as one rank with batch N·B,
/// and the running statistics are the same on all of them. Evaluation is as before.
///
/// Each such layer is one collective of a few numbers per channel in the forward pass, and one in the
/// backward. All ranks must run the same layers in the same order; their batches may differ in size.
/// A rank may even have an empty batch, if it runs forward and backward like the others.
///
/// ```
/// use candelabrum_dist::{World, synchronize_batch_norm};
/// use candelabrum_nn::Params;
///
/// let world = World::single();
/// let params = Params::new(0);
/// synchronize_batch_norm(&params, &world.group());
/// ```
pub fn synchronize_batch_norm(params: &Params, group: &Group) {
    params.set_statistics_exchange(Some(statistics_exchange(group)));
}

/// The same for a single layer: [`candelabrum_nn::layers::BatchNorm2d::synchronized`].
pub fn statistics_exchange(group: &Group) -> Arc<dyn StatisticsExchange> {
    Arc::new(GroupStatistics(Arc::clone(group)))
}

#[derive(Debug)]
struct GroupStatistics(Group);

impl StatisticsExchange for GroupStatistics {
    fn all_gather(&self, values: &[f64]) -> candle_core::Result<Vec<f64>> {
        let buffer = Payload::from_slice(values).labelled("statistics of a batch normalisation");
        Ok(self.0.run(Collective::AllGather, buffer)?.to_vec()?)
    }
}
