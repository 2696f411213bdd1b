//! Batch normalisation over the batches of all ranks, as PyTorch's `SyncBatchNorm`.

use std::sync::Arc;

use candelabrum_nn::{Params, StatisticsExchange};

use crate::comm::{Collective, Group, Label, Payload};

/// Makes every batch normalisation of `params` use, in training, the batches of all ranks of
/// `group`, as PyTorch's `convert_sync_batchnorm` does. N ranks with batch B then train as one rank
/// with batch N·B, and the running statistics are the same on all ranks. Evaluation does not
/// change.
///
/// Each such layer runs one collective of a few numbers per channel in the forward pass, and one in
/// the backward pass. All ranks must run the same layers in the same order. Their batches may
/// differ in size. A rank may even have an empty batch, if it runs forward and backward like the
/// other ranks.
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

/// The exchange of `group` for a single layer:
/// [`candelabrum_nn::layers::BatchNorm2d::synchronized`].
pub fn statistics_exchange(group: &Group) -> Arc<dyn StatisticsExchange> {
    group.interleave();
    let label = Label::new("statistics of a batch normalisation");
    Arc::new(GroupStatistics { group: Arc::clone(group), label })
}

#[derive(Debug)]
struct GroupStatistics {
    group: Group,
    /// The name of the layer. Ranks that run their layers in different orders get an error.
    label: Label,
}

impl StatisticsExchange for GroupStatistics {
    fn all_gather(&self, values: &[f64]) -> candle_core::Result<Vec<f64>> {
        let payload = Payload::from_slice(values).labelled(self.label.clone());
        Ok(self.group.run(Collective::AllGather, payload)?.to_vec()?)
    }

    fn for_layer(&self, name: &str) -> Option<Arc<dyn StatisticsExchange>> {
        let label = Label::new(format!("statistics of `{name}`"));
        Some(Arc::new(Self { group: Arc::clone(&self.group), label }))
    }
}
