//! The kind of key-value store by which ranks train.

use candelabrum_kvstore::StoreKind;
use clap::ValueEnum;

/// MXNet's names for a store on several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvStoreKind {
    /// The servers add the gradients of all workers, then update
    #[value(name = "dist_sync")]
    DistSync,
    /// The servers update by the gradient of each worker as it arrives
    #[value(name = "dist_async")]
    DistAsync,
}

impl From<KvStoreKind> for StoreKind {
    fn from(kind: KvStoreKind) -> Self {
        match kind {
            KvStoreKind::DistSync => Self::DistSync,
            KvStoreKind::DistAsync => Self::DistAsync,
        }
    }
}
