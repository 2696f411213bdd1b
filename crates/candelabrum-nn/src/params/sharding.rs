//! Parameters of which this process keeps a part alone, and other processes the rest (ZeRO-3: Rajbhandari et al., SC
//! 2020, arXiv:1910.02054; PyTorch's FSDP).
//!
//! Between two uses such a parameter has no numbers: the variable is there, and its memory is empty. The block that
//! uses the parameter fetches the numbers when its pass begins and gives the memory back when the pass ends. Any other
//! access fetches them, too, and they stay until the next pass through the block or the next update.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use candelabrum_memory::{ElementType, FlatTensor, Location, SpanMut};
use candle_core::{Result, Var, bail};

use super::tensors::{WholeValues, clear_variable};

/// The values of parameters that are divided among processes, each in f32 and in row-major order. A distributed
/// optimizer implements it. Parameters have the numbers that [`Param::shard`](crate::Param::shard) has given them.
///
/// Reads need no other call of another process, and a process reads the values that parameters have after as many
/// changes as it has made itself.
pub trait ShardedValues: fmt::Debug + Send + Sync {
    /// Asks for the values of these parameters, so that [`read`](Self::read) waits less. It may do nothing.
    fn prefetch(&self, params: &[usize]);

    /// Calls `take` with the number of a parameter and a run of its values, until all values of these parameters were
    /// given. The runs of a parameter come in their order.
    ///
    /// # Errors
    /// A failure of another process.
    fn read(&self, params: &[usize], take: &mut dyn FnMut(usize, &[f32])) -> Result<()>;

    /// The elements of a parameter that this process keeps.
    fn own(&self, param: usize) -> Range<usize>;

    /// Calls `f` once, with the values that this process keeps of a parameter. `f` changes them only in the middle of a
    /// step.
    ///
    /// # Errors
    /// A device's error.
    fn with_own(&self, param: usize, f: &mut dyn FnMut(SpanMut<'_>)) -> Result<()>;

    /// As [`with_own`](Self::with_own), to change the values outside of a step. All processes call it together.
    ///
    /// # Errors
    /// A device's error, and a failure of another process.
    fn change_own(&self, param: usize, f: &mut dyn FnMut(SpanMut<'_>)) -> Result<()>;
}

/// Whether and where the values of a parameter are divided. Clones of a parameter share it.
#[derive(Clone, Default)]
pub(crate) struct Sharding(Arc<ShardingState>);

#[derive(Default)]
struct ShardingState {
    place: AtomicU8,
    sharded: RwLock<Option<Sharded>>,
}

/// The values of a parameter among those that are divided among processes.
#[derive(Clone)]
pub(crate) struct Sharded {
    pub(crate) values: Arc<dyn ShardedValues>,
    pub(crate) number: usize,
    /// Whether the variable has the values all the time, rounded to its type.
    pub(crate) is_kept: bool,
}

/// Where the values of a parameter are.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u8)]
pub(crate) enum Residency {
    /// In the variable, or in its master.
    Here = 0,
    /// Divided among processes, and in the variable.
    Gathered = 1,
    /// Divided among processes. The variable is empty.
    Away = 2,
}

impl Sharding {
    pub(crate) fn place(&self) -> Residency {
        match self.0.place.load(Ordering::Acquire) {
            0 => Residency::Here,
            1 => Residency::Gathered,
            _ => Residency::Away,
        }
    }

    /// What is divided among processes. `None` if every process has all values.
    pub(crate) fn sharded(&self) -> Option<Sharded> {
        if self.place() == Residency::Here {
            return None;
        }
        self.0.sharded.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Divides the values among processes.
    pub(crate) fn begin(&self, values: Arc<dyn ShardedValues>, number: usize, is_kept: bool) {
        let mut sharded = self.0.sharded.write().unwrap_or_else(PoisonError::into_inner);
        *sharded = Some(Sharded { values, number, is_kept });
        self.set(Residency::Gathered);
    }

    /// Ends the division. The variable has the values.
    pub(crate) fn end(&self) {
        self.set(Residency::Here);
        *self.0.sharded.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Empties the variable, unless it keeps its values.
    pub(crate) fn release(&self, var: &Var) -> Result<()> {
        let is_kept = self.sharded().is_none_or(|sharded| sharded.is_kept);
        if is_kept || self.place() != Residency::Gathered {
            return Ok(());
        }
        self.set(Residency::Away);
        clear_variable(var)
    }

    pub(crate) fn set(&self, place: Residency) {
        self.0.place.store(place as u8, Ordering::Release);
    }
}

impl Sharded {
    /// All values in f32, where those of `var` are.
    pub(crate) fn read(&self, var: &Var) -> Result<FlatTensor> {
        let mut all = Vec::with_capacity(var.elem_count());
        self.values.read(&[self.number], &mut |_, values| all.extend_from_slice(values))?;
        let mut flat = FlatTensor::zeros_on(
            &Location::from_device(var.device()),
            ElementType::F32,
            all.len(),
        )?;
        flat.span_mut()?.copy_from((&all).into())?;
        Ok(flat)
    }

    /// Fetches the values into the variable.
    pub(crate) fn gather(&self, var: &Var) -> Result<()> {
        let mut whole = WholeValues::from_var(var);
        self.values.read(&[self.number], &mut |_, values| whole.push(values))?;
        whole.put(var)
    }

    /// Calls `f` with the values that this process keeps: by [`ShardedValues::change_own`] if it `changes` them outside of
    /// a step.
    pub(crate) fn with_own<R>(&self, changes: bool, f: impl FnOnce(SpanMut<'_>) -> R) -> Result<R> {
        let (mut f, mut result) = (Some(f), None);
        let mut call = |values: SpanMut<'_>| result = f.take().map(|f| f(values));
        match changes {
            true => self.values.change_own(self.number, &mut call),
            false => self.values.with_own(self.number, &mut call),
        }?;
        match result {
            Some(result) => Ok(result),
            None => bail!("the values that this process keeps were not given"),
        }
    }
}

impl fmt::Debug for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sharding({:?})", self.place())
    }
}
