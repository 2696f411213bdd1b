//! Statistics of a batch that is divided over several replicas of a model.

use std::fmt::Debug;
use std::sync::Arc;

use candle_core::Result;

/// The exchange of numbers between the replicas of a model in the middle of a pass. It lets a
/// normalisation use the batches of all replicas.
///
/// All replicas call it equally often and in the same order.
///
/// ```
/// use std::sync::Arc;
/// use candelabrum_nn::{Params, StatisticsExchange};
///
/// /// A replica that is alone.
/// #[derive(Debug)]
/// struct Alone;
///
/// impl StatisticsExchange for Alone {
///     fn all_gather(&self, values: &[f64]) -> candle_core::Result<Vec<f64>> {
///         Ok(values.to_vec())
///     }
/// }
///
/// Params::new(0).set_statistics_exchange(Some(Arc::new(Alone)));
/// ```
pub trait StatisticsExchange: Debug + Send + Sync {
    /// The `values` of all replicas, one replica after the other. Every replica passes the same
    /// number of values, and all replicas receive the same result.
    ///
    /// # Errors
    /// A failed exchange between the replicas. It ends the pass.
    fn all_gather(&self, values: &[f64]) -> Result<Vec<f64>>;

    /// This exchange for the layer called `name`, or `None` if the name makes no difference. An
    /// exchange that knows the layer can detect replicas that run their layers in different orders.
    fn for_layer(&self, name: &str) -> Option<Arc<dyn StatisticsExchange>> {
        let _ = name;
        None
    }
}
