//! The blocks of a model, as the parameters see them: which block uses a parameter, and when a block needs its
//! parameters' values.

use std::sync::{Arc, PoisonError, RwLock};

use candle_core::Result;

use super::param::Param;
use super::sharding::{Residency, Sharded};
use super::tensors::WholeValues;
use super::uses;

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

/// A pass through a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BlockPass {
    /// Whose parameters are not needed before the backward pass of the block.
    Forward,
    /// A forward pass whose results the backward pass reads, so that it needs the same parameters.
    Kept,
    Backward,
}

/// One of a model's blocks.
#[derive(Clone, Debug)]
pub(crate) struct BlockPlace {
    blocks: ShardedBlocks,
    number: usize,
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
        let before = uses::enter(self.number);
        let entered = Entered { blocks: self.blocks.get(), number: self.number, before, pass };
        gather(entered.params(self.number))?;
        let next = match pass {
            BlockPass::Forward | BlockPass::Kept => Some(self.number + 1),
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
    pass: BlockPass,
}

impl Entered {
    fn params(&self, number: usize) -> &[Param] {
        self.blocks.get(number).map_or(&[], Vec::as_slice)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        uses::leave(self.before);
        if self.pass == BlockPass::Kept {
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
