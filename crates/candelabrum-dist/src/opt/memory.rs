//! How much memory a model and its distributed optimizer have on this rank.

use std::ops::AddAssign;

use candelabrum_memory::FlatTensor;
use candelabrum_nn::Params;

/// The memory of a model and of its optimizer on this rank, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptimizerMemory {
    /// The parameters, their masters in f32, the buffers and the matrices that are not trained.
    pub parameters: usize,
    /// The gradients, in their buckets.
    pub gradients: usize,
    /// The state of the optimizer: this rank's shard, if the ranks share it.
    pub state: usize,
    /// Messages in another type than the gradients, what a sparse strategy has not sent yet, and old values of updates
    /// that may have to be undone.
    pub exchange: usize,
    /// Of all this, what lies in memory that the ranks of a host share, and so not on this process's heap.
    pub shared: usize,
}

impl OptimizerMemory {
    /// The memory of a model alone.
    pub fn of_params(params: &Params) -> Self {
        Self { parameters: params.bytes(), ..Self::default() }
    }

    /// Counts the memory of gradients.
    pub fn add_gradients<'a>(&mut self, buckets: impl IntoIterator<Item = &'a FlatTensor>) {
        let (all, shared) = bytes(buckets.into_iter());
        self.gradients += all;
        self.shared += shared;
    }

    pub(super) fn add_exchange<'a>(&mut self, numbers: impl Iterator<Item = &'a FlatTensor>) {
        let (all, shared) = bytes(numbers);
        self.exchange += all;
        self.shared += shared;
    }
}

impl AddAssign for OptimizerMemory {
    fn add_assign(&mut self, other: Self) {
        self.parameters += other.parameters;
        self.gradients += other.gradients;
        self.state += other.state;
        self.exchange += other.exchange;
        self.shared += other.shared;
    }
}

/// The bytes of all, and of those in shared memory.
fn bytes<'a>(flats: impl Iterator<Item = &'a FlatTensor>) -> (usize, usize) {
    flats.fold((0, 0), |(all, shared), flat| {
        let len = flat.room();
        (all + len, shared + if flat.is_shared() { len } else { 0 })
    })
}
