//! The blocks of a model, as the parameters see them: which block uses a parameter, and when a block needs its
//! parameters' values.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, PoisonError, RwLock};

use candle_core::Result;

use super::param::Param;
use super::sharding::{Residency, Sharded};
use super::tensors::WholeValues;
use super::uses;
use crate::kernels::thread_switch::with_switch;

/// The parameters of each block, by its number, of which this process keeps a part of the values. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct ShardedBlocks(Arc<RwLock<Arc<[Vec<Param>]>>>);

impl ShardedBlocks {
    /// Says which parameters they are.
    pub(super) fn set(&self, params: &[Param]) {
        let mut blocks: Vec<Vec<Param>> = Vec::new();
        for param in params {
            if let Some(number) = param.block() {
                blocks.resize_with(blocks.len().max(number + 1), Vec::new);
                blocks[number].push(param.clone());
            }
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = blocks.into();
    }

    fn get(&self) -> Arc<[Vec<Param>]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

thread_local! {
    /// The block whose forward pass this thread computes. The backward pass reads the results of its operations.
    static FORWARD: RefCell<Option<BlockPlace>> = const { RefCell::new(None) };
    /// The block whose operations this thread's backward pass differentiates.
    static BACKWARD: RefCell<Option<(BlockPlace, Entered)>> = const { RefCell::new(None) };
    /// Whether a block keeps its parameters from one operation of the backward pass to the next.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// A pass through a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BlockPass {
    /// No operation of it is differentiated.
    Forward,
    /// Whose operations are differentiated, and read the parameters again.
    Differentiated,
    Backward,
}

/// One of a model's blocks.
#[derive(Clone, Debug)]
pub(crate) struct BlockPlace {
    blocks: ShardedBlocks,
    number: usize,
}

impl PartialEq for BlockPlace {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number && Arc::ptr_eq(&self.blocks.0, &other.blocks.0)
    }
}

impl BlockPlace {
    pub(super) fn new(blocks: ShardedBlocks, number: usize) -> Self {
        Self { blocks, number }
    }

    /// Begins a pass through the block on this thread, which ends with the result.
    ///
    /// # Errors
    /// Values that another process should have sent.
    pub(crate) fn enter(&self, pass: BlockPass) -> Result<Entered> {
        let outer =
            FORWARD.replace(Some(self.clone()).filter(|_| pass == BlockPass::Differentiated));
        let before = uses::enter(self.number);
        let blocks = self.blocks.get();
        let entered = Entered { blocks, number: self.number, before, outer, keeps: false };
        gather(entered.params(self.number))?;
        let next = match pass {
            BlockPass::Forward | BlockPass::Differentiated => Some(self.number + 1),
            BlockPass::Backward => self.number.checked_sub(1),
        };
        prefetch(next.map_or(&[], |next| entered.params(next)));
        Ok(entered)
    }
}

/// A pass through a block under way.
#[derive(Debug)]
pub(crate) struct Entered {
    blocks: Arc<[Vec<Param>]>,
    number: usize,
    before: usize,
    outer: Option<BlockPlace>,
    keeps: bool,
}

impl Entered {
    /// Whether other processes keep parts of the block's parameters.
    pub(crate) fn is_sharded(&self) -> bool {
        self.params(self.number).iter().any(Param::is_sharded)
    }

    /// Lets the parameters stay when the pass ends.
    pub(crate) fn keep(&mut self) {
        self.keeps = true;
    }

    fn params(&self, number: usize) -> &[Param] {
        self.blocks.get(number).map_or(&[], Vec::as_slice)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        uses::leave(self.before);
        FORWARD.set(self.outer.take());
        if self.keeps {
            return;
        }
        let own = self.params(self.number).iter();
        for param in own.filter(|param| param.block() == Some(self.number)) {
            if let Err(error) = param.release_from_block() {
                tracing::error!("the memory of `{}` could not be freed: {error}", param.name());
            }
        }
    }
}

/// The block to whose forward pass an operation belongs that this thread creates now.
pub(crate) fn present_block() -> Option<BlockPlace> {
    FORWARD.with_borrow(Clone::clone)
}

/// Fetches the parameters of the block of an operation that is differentiated next. They are here until an operation of
/// another block is, or outside of [`hold_blocks`] as long as the returned value is.
///
/// # Errors
/// Values that another process should have sent.
pub(crate) fn enter_backward(place: Option<&BlockPlace>) -> Result<Option<Entered>> {
    match place {
        Some(place) if HOLDS.get() => hold(place).map(|()| None),
        Some(place) => place.enter(BlockPass::Backward).map(Some),
        None => Ok(None),
    }
}

/// Fetches the parameters of a block of which an operation of candle is differentiated next. It does nothing outside of
/// [`hold_blocks`], where nobody knows how long the operation needs them.
///
/// # Errors
/// Those of [`enter_backward`].
pub(crate) fn begin_backward(place: &BlockPlace) -> Result<()> {
    if HOLDS.get() { hold(place) } else { Ok(()) }
}

fn hold(place: &BlockPlace) -> Result<()> {
    if BACKWARD.with_borrow(|held| held.as_ref().is_none_or(|(block, _)| block != place)) {
        leave_backward();
        let entered = place.enter(BlockPass::Backward)?;
        BACKWARD.set(Some((place.clone(), entered)));
    }
    Ok(())
}

/// Gives back the parameters of the block whose operations were differentiated last.
pub(crate) fn leave_backward() {
    drop(BACKWARD.take());
}

/// Runs a backward pass in which a block keeps its parameters from one operation to the next. A pass in the middle of an
/// operation leaves those that the operation reads.
pub(crate) fn hold_blocks<R>(pass: impl FnOnce() -> R) -> R {
    struct Outer(Option<(BlockPlace, Entered)>);
    impl Drop for Outer {
        fn drop(&mut self) {
            leave_backward();
            BACKWARD.set(self.0.take());
        }
    }
    let _outer = Outer(BACKWARD.take());
    with_switch(&HOLDS, pass)
}

/// [`hold_blocks`] for the pass through a block that is computed again in the middle of a pass.
pub(crate) fn hold_inner_blocks<R>(pass: impl FnOnce() -> R) -> R {
    if HOLDS.get() { hold_blocks(pass) } else { pass() }
}

/// The parameters that are not here, with what is divided of each.
fn away(params: &[Param]) -> Vec<(Sharded, &Param)> {
    let away = params.iter().filter(|param| param.sharding().place() == Residency::Away);
    away.filter_map(|param| Some((param.sharding().sharded()?, param))).collect()
}

fn numbers(away: &[(Sharded, &Param)]) -> Vec<usize> {
    away.iter().map(|(sharded, _)| sharded.number).collect()
}

fn prefetch(params: &[Param]) {
    let away = away(params);
    if let Some((sharded, _)) = away.first() {
        sharded.values.prefetch(&numbers(&away));
    }
}

/// Fetches the values of these parameters that are not here.
fn gather(params: &[Param]) -> Result<()> {
    let away = away(params);
    let Some((sharded, _)) = away.first() else { return Ok(()) };
    let numbers = numbers(&away);
    let mut whole: Vec<WholeValues> =
        away.iter().map(|(_, param)| WholeValues::from_var(param.variable())).collect();
    sharded.values.read(&numbers, &mut |number, values| {
        if let Some(place) = numbers.iter().position(|other| *other == number) {
            whole[place].push(values);
        }
    })?;
    for ((_, param), whole) in away.iter().zip(whole) {
        whole.put(param.variable())?;
        param.sharding().set(Residency::Gathered);
    }
    Ok(())
}
