//! The blocks of a network, one behind the other.

use std::ops::Deref;
use std::sync::Arc;

use candle_core::{Module, Result, Tensor};

use crate::autograd::fused::end_block;
use crate::autograd::recompute_at;
use crate::params::{BlockPass, BlockPlace};
use crate::{Params, Scope};

/// Blocks of which each takes the result of the one before. Those that [`Params::set_recompute`] chooses keep only their
/// input for the backward pass, which computes them again ([`recompute`](crate::recompute)).
///
/// ```
/// use candelabrum_nn::layers::{Blocks, TransformerBlock};
/// use candelabrum_nn::{Params, Recompute};
/// use candle_core::{DType, Device, Module, Tensor};
///
/// let params = Params::new(0);
/// let scope = params.root();
/// let block = |number: usize| TransformerBlock::new(&scope.pp("blocks").pp(number), 2);
/// let blocks = Blocks::new(&scope, (0..4).map(block));
/// params.set_recompute(Recompute::All);
/// let ys = blocks.forward(&Tensor::ones((1, 3, 8), DType::F32, &Device::Cpu)?)?;
/// assert_eq!(ys.dims(), [1, 3, 8]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Blocks<B> {
    params: Params,
    blocks: Vec<Arc<B>>,
    places: Vec<BlockPlace>,
}

impl<B: Send + Sync + 'static> Blocks<B> {
    /// These blocks, whose parameters are in the store of `scope`.
    pub fn new(scope: &Scope, blocks: impl IntoIterator<Item = B>) -> Self {
        let params = scope.params().clone();
        let blocks: Vec<Arc<B>> = blocks.into_iter().map(Arc::new).collect();
        let places = params.add_blocks(blocks.len());
        Self { params, blocks, places }
    }

    /// The result of the last block, where `forward` computes a block.
    ///
    /// # Errors
    /// Those of `forward`.
    pub fn forward_by(
        &self,
        xs: &Tensor,
        forward: impl Fn(&B, &Tensor) -> Result<Tensor> + Clone + Send + Sync + 'static,
    ) -> Result<Tensor> {
        let chosen = self.params.recompute();
        let mut xs = xs.clone();
        for (number, (block, place)) in self.blocks.iter().zip(&self.places).enumerate() {
            xs = if chosen.has(number) {
                let (block, forward) = (Arc::clone(block), forward.clone());
                let forward = move |inputs: &[Tensor]| forward(&block, &inputs[0]);
                recompute_at(Some(place.clone()), &self.params, &[&xs], forward)?
            } else {
                let mut entered = place.enter(BlockPass::Differentiated)?;
                let ys = forward(block, &xs)?;
                if entered.is_sharded() && ys.track_op() {
                    if number + 1 == self.blocks.len() {
                        // With this block the backward pass begins.
                        entered.keep();
                    }
                    end_block(ys, place)?
                } else {
                    ys
                }
            };
        }
        Ok(xs)
    }
}

impl<B> Blocks<B> {
    /// Calls `f` with each block and its number, in order, for a pass that no backward pass follows: one with a cache for
    /// each block, for instance. Where processes share the values of parameters, a block has its parameters during its
    /// call.
    ///
    /// # Errors
    /// That of `f`.
    pub fn try_for_each(&self, mut f: impl FnMut(usize, &B) -> Result<()>) -> Result<()> {
        for (number, (block, place)) in self.blocks.iter().zip(&self.places).enumerate() {
            let _entered = place.enter(BlockPass::Forward)?;
            f(number, block)?;
        }
        Ok(())
    }
}

impl<B> Deref for Blocks<B> {
    type Target = [Arc<B>];

    fn deref(&self) -> &[Arc<B>] {
        &self.blocks
    }
}

impl<B: Module + Send + Sync + 'static> Module for Blocks<B> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.forward_by(xs, B::forward)
    }
}
