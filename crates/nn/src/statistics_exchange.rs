//! Statistics of a batch that several replicas of a model hold parts of.

use std::fmt::Debug;
use std::sync::Arc;

use candle_core::Result;

/// How the replicas of a model tell each other numbers in the middle of a pass: the seam that lets a
/// normalisation use the batches of all of them.
///
/// Every replica calls it equally often and in the same order.
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
    /// All replicas' `values`, one replica's after the other's; each gives equally many, and all get
    /// the same in the same order.
    ///
    /// # Errors
    /// Whatever keeps the replicas from hearing each other; it ends the pass.
    fn all_gather(&self, values: &[f64]) -> Result<Vec<f64>>;

    /// The same exchange for the layer of this name, or `None` where the name makes no difference. An
    /// exchange that knows the layer can notice replicas whose layers run in another order.
    fn for_layer(&self, name: &str) -> Option<Arc<dyn StatisticsExchange>> {
        let _ = name;
        None
    }
}
