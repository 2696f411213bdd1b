//! An embedding whose table is on servers, so that no worker holds the whole table.
//!
//! ```text
//! forward    pull the distinct rows of the batch, and look the indices up among them
//! backward   push the gradient of these rows, in the middle of candle's backward pass
//! ```
//!
//! In candle's graph, the pulled rows are the result of an operation ([`PulledRows`]) on a scalar, the *token*
//! of the layer. The token is the result of another operation ([`EmbeddingHook`]) on a scalar variable. Because
//! of the variable candle differentiates both, and the variable needs no copy of the rows. candle visits
//! an operation after all operations that use its result. So it visits the hook when the gradients of
//! all uses of the layer in this pass are complete. The hook adds them up and pushes the sum.
//!
//! **Invariant** A backward pass pushes once, however often it uses the layer. In dist_sync a second
//! push would count for the next round.

use std::fmt;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use candelabrum_nn::ops;
use candle_core::{
    CpuStorage, CustomOp1, DType, Device, Layout, Module, Result as CandleResult, Shape, Tensor,
    Var, bail,
};
use parking_lot::Mutex;

use crate::store::PullRows;
use crate::{Error, Key, KvStore, Result, RowInit, RowSparse};

/// `(..) -> (.., dim)`: row `i` of the table for each index `i` of u8, u32 or i64. The table is under a
/// key of a [`KvStore`], and a worker has only the rows of its batch.
///
/// A backward pass from a loss that depends on the layer pushes the gradient of the rows, once for all
/// uses of the layer in this pass. The store's optimizer updates these rows, and no others. So a step has
/// no update of its own:
///
/// ```
/// use candelabrum_dist::World;
/// use candelabrum_kvstore::{KvStore, RowInit, SparseEmbedding};
/// use candelabrum_optim::Sgd;
/// use candle_core::{Device, Module, Tensor};
///
/// let store = KvStore::create("local", &World::single())?;
/// store.set_optimizer(Sgd::new(0.5), 1.0)?;
/// let words = SparseEmbedding::new(&store, "words", 1_000_000, 2, RowInit::Zeros)?;
/// let indices = Tensor::new(&[7_u32, 999_999, 7], &Device::Cpu)?;
/// words.forward(&indices)?.sum_all()?.backward()?; // (3, 2), and row 7 is in it twice
/// assert_eq!(words.lookup(&indices)?.to_vec2::<f32>()?, [[-1.0; 2], [-0.5; 2], [-1.0; 2]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// In dist_sync each worker pushes once per step. A worker whose loss does not depend on the layer in
/// some step calls [`Self::push_nothing`]. A loss of a batch without indices does depend on it.
///
/// # Cost
///
/// A worker sends 8 bytes and receives `4 · dim` bytes per distinct row of its batch in a step, and sends
/// `4 · dim` bytes of gradient, besides 64 bytes per message. It has memory for these rows and their
/// gradient.
pub struct SparseEmbedding {
    shared: Arc<EmbeddingInner>,
    token: Tensor,
}

struct EmbeddingInner {
    store: KvStore,
    key: Key,
    rows: usize,
    dim: usize,
    /// The gradients of those uses that backward passes have visited, with the threads of the passes.
    visited: Mutex<Vec<(ThreadId, RowSparse)>>,
}

impl SparseEmbedding {
    /// A layer with a new table of `rows` rows of `dim` elements under `key`. All workers call it
    /// together.
    ///
    /// # Errors
    /// Those of [`KvStore::init_rows`].
    pub fn new(
        store: &KvStore,
        key: impl Into<Key>,
        rows: usize,
        dim: usize,
        init: RowInit,
    ) -> Result<Self> {
        let key = key.into();
        store.init_rows(&key, rows, dim, init)?;
        let visited = Mutex::default();
        let shared = Arc::new(EmbeddingInner { store: store.clone(), key, rows, dim, visited });
        let variable = Var::zeros((), DType::F32, &Device::Cpu)?;
        let token = variable.apply_op1(EmbeddingHook { shared: Arc::clone(&shared) })?;
        Ok(Self { shared, token })
    }

    /// The key of the table.
    pub fn key(&self) -> &Key {
        &self.shared.key
    }

    /// Starts to pull the rows for `indices`, and returns at once. [`Prefetch::wait`] is the rest of the
    /// forward pass.
    ///
    /// The rows have all earlier pushes of this worker. Between the backward pass of a step and the
    /// end of the step, a prefetch for the next step therefore changes no result. Before the backward
    /// pass, it saves more time, and the rows lack the update of this step.
    ///
    /// Indices on a GPU are copied to the host, and [`Prefetch::wait`] returns a tensor on that GPU.
    ///
    /// # Errors
    /// Indices that are no integers or not in the table, and those of [`KvStore::row_sparse_pull`].
    pub fn prefetch(&self, indices: &Tensor) -> Result<Prefetch> {
        let EmbeddingInner { store, key, .. } = &*self.shared;
        let wanted = self.shared.numbers(indices)?;
        let mut rows = wanted.clone();
        rows.sort_unstable();
        rows.dedup();
        let position = |wanted: u32| rows.partition_point(|row| *row < wanted) as u32;
        let positions: Vec<u32> = wanted.into_iter().map(position).collect();
        Ok(Prefetch {
            layer: Self { shared: Arc::clone(&self.shared), token: self.token.clone() },
            positions: Tensor::from_vec(positions, indices.shape(), indices.device())?,
            rows: rows.len(),
            pull: store.row_sparse_pull(key, &rows, 0)?,
        })
    }

    /// The result of the forward pass without a gradient: for evaluation.
    ///
    /// # Errors
    /// Those of [`Self::prefetch`] and [`Prefetch::wait`].
    pub fn lookup(&self, indices: &Tensor) -> Result<Tensor> {
        Ok(self.prefetch(indices)?.wait()?.detach())
    }

    /// Pushes a gradient without rows, in a step in which this worker's loss does not depend on the
    /// layer. In dist_sync the other workers' updates of this step wait for it.
    ///
    /// # Errors
    /// Those of [`KvStore::push_rows`].
    pub fn push_nothing(&self) -> Result<()> {
        self.shared.store.push_rows(&self.shared.key, &RowSparse::default(), 0)
    }
}

/// The forward pass: [`SparseEmbedding::prefetch`], then [`Prefetch::wait`]. Their errors are inside of
/// candle's, and [`Error::from`] takes them out.
impl Module for SparseEmbedding {
    fn forward(&self, indices: &Tensor) -> CandleResult<Tensor> {
        Ok(self.prefetch(indices)?.wait()?)
    }
}

impl EmbeddingInner {
    /// The indices as numbers of rows.
    fn numbers(&self, indices: &Tensor) -> Result<Vec<u32>> {
        let dtype = indices.dtype();
        if !matches!(dtype, DType::U8 | DType::U32 | DType::I64) {
            let setting = "the element type of an embedding's indices";
            let value = dtype.as_str().to_owned();
            return Err(Error::Setting { setting, value, range: "it is u8, u32 or i64" });
        }
        let indices = indices.to_device(&Device::Cpu)?.flatten_all()?;
        let indices = indices.to_dtype(DType::I64)?.to_vec1::<i64>()?;
        let number = |row: i64| match u32::try_from(row) {
            Ok(number) if (number as usize) < self.rows => Ok(number),
            _ => {
                let (rank, key, rows) = (self.store.world_rank(), self.key.clone(), self.rows);
                Err(Error::Row { rank, key, row, rows })
            }
        };
        indices.into_iter().map(number).collect()
    }

    /// Pushes the gradient of the pass of this thread, which has visited all of its `uses`.
    fn push(&self, uses: usize) -> Result<()> {
        let thread = thread::current().id();
        let mut own: Vec<RowSparse> = {
            let mut visited = self.visited.lock();
            visited.extract_if(.., |(of, _)| *of == thread).map(|(_, part)| part).collect()
        };
        // A pass that fails before it reaches the hook leaves gradients behind. They are the first ones.
        let parts = own.split_off(own.len().saturating_sub(uses));
        self.store.push_rows(&self.key, &sum(parts, self.dim), 0)
    }
}

/// The sum of gradients, in their order.
fn sum(mut parts: Vec<RowSparse>, dim: usize) -> RowSparse {
    if parts.len() <= 1 {
        return parts.pop().unwrap_or_default();
    }
    let mut rows: Vec<u32> = parts.iter().flat_map(|part| &part.rows).copied().collect();
    rows.sort_unstable();
    rows.dedup();
    let mut values = vec![0.0; rows.len() * dim];
    for part in &parts {
        for (row, gradient) in part.rows.iter().zip(part.values.chunks_exact(dim)) {
            let place = rows.partition_point(|other| other < row) * dim;
            values[place..place + dim].iter_mut().zip(gradient).for_each(|(sum, x)| *sum += x);
        }
    }
    RowSparse { rows, values }
}

/// Rows for a forward pass that have been asked for. Dropping it gives them up, and nothing else.
#[must_use = "the rows arrive when they are waited for"]
pub struct Prefetch {
    layer: SparseEmbedding,
    /// By index: the position of its row among the pulled ones.
    positions: Tensor,
    rows: usize,
    pull: PullRows,
}

impl Prefetch {
    /// The number of distinct rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Waits for the rows and returns the result of the forward pass, in f32.
    ///
    /// # Errors
    /// Those of [`PullRows::wait`] and of candle.
    pub fn wait(self) -> Result<Tensor> {
        let Self { layer: SparseEmbedding { shared, token }, positions, pull, .. } = self;
        let RowSparse { rows, values } = pull.wait()?;
        let table =
            token.apply_op1(PulledRows { shared, rows, values: Mutex::new(Some(values)) })?;
        Ok(ops::embedding(&table.to_device(positions.device())?, &positions, None)?)
    }
}

/// The pulled rows: one use of the layer.
struct PulledRows {
    shared: Arc<EmbeddingInner>,
    rows: Vec<u32>,
    /// They become the result.
    values: Mutex<Option<Vec<f32>>>,
}

impl CustomOp1 for PulledRows {
    fn name(&self) -> &'static str {
        "pulled-rows"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        let Some(values) = self.values.lock().take() else {
            bail!("the pulled rows of `{}` are gone, this is a bug", self.shared.key)
        };
        Ok((CpuStorage::F32(values), (self.rows.len(), self.shared.dim).into()))
    }

    /// Returns 1, so that the gradient of the token is the number of uses in this pass.
    fn bwd(&self, token: &Tensor, _: &Tensor, gradient: &Tensor) -> CandleResult<Option<Tensor>> {
        let values = gradient.flatten_all()?.to_vec1()?;
        let part = RowSparse { rows: self.rows.clone(), values };
        self.shared.visited.lock().push((thread::current().id(), part));
        token.ones_like().map(Some)
    }
}

struct EmbeddingHook {
    shared: Arc<EmbeddingInner>,
}

impl CustomOp1 for EmbeddingHook {
    fn name(&self) -> &'static str {
        "gradient-of-rows-ready"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(())))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, uses: &Tensor) -> CandleResult<Option<Tensor>> {
        self.shared.push(uses.to_scalar::<f32>()? as usize)?;
        Ok(None)
    }
}

impl fmt::Debug for SparseEmbedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EmbeddingInner { store, key, rows, dim, .. } = &*self.shared;
        write!(f, "SparseEmbedding(`{key}`, {rows} × {dim}, {store:?})")
    }
}

impl fmt::Debug for Prefetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prefetch({} rows of {:?})", self.rows, self.layer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_of_several_uses_are_added_by_row() {
        let part = |rows: &[u32], values: &[f32]| RowSparse {
            rows: rows.to_vec(),
            values: values.to_vec(),
        };
        assert_eq!(sum(Vec::new(), 2), RowSparse::default());
        let first = part(&[1, 4], &[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(sum(vec![first.clone()], 2), first);
        let second = part(&[0, 4], &[8.0, 8.0, 0.5, 0.25]);
        let expected = part(&[0, 1, 4], &[8.0, 8.0, 1.0, 2.0, 3.5, 4.25]);
        assert_eq!(sum(vec![first, RowSparse::default(), second], 2), expected);
    }
}
