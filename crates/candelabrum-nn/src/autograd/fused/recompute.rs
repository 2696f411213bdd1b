//! Blocks whose results inside are not kept for the backward pass, but computed again there: activation
//! checkpointing (Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost*, arXiv:1604.06174).
//!
//! In the graph a block is one operation, which keeps its inputs. Its backward runs the block again, on *leaves* that
//! have the inputs' numbers, and then a backward pass from the new result to the leaves. Gradients of parameters go
//! where those of the outer pass go. A leaf takes the inbox of the input for which it stands, so the gradients of
//! an input arrive in the order in which they would without recomputation, and their sum has the same bits.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Shape, Tensor, TensorId, bail};

use super::inbox::GradientInbox;
use super::leaf::{Leaf, copy, to_tensor};
use super::link::{self, Differentiable, GradientTarget, GraphLink, LinkTargets, Versioned};
use super::node::{self, JoinInputs};
use super::walk::FusedGraph;
use crate::autograd::hooks;
use crate::autograd::recomputing::Script;
use crate::autograd::saved::{self, SavesTensors};
use crate::autograd::{candle_pass, pass, recomputing};
use crate::kernels::scratch::PooledValues;
use crate::params::{self, BlockPass, BlockPlace, is_half};
use crate::{Error, Params};

const NAME: &str = "recompute";

/// Computes `block` of the inputs, and keeps nothing but the inputs for the backward pass, which computes the block
/// again: less memory for more time. The last operation of the block is not computed again where its backward pass does
/// not need it.
///
/// Result and gradients have the bits that they have without recomputation, also in a block with dropout. An exception
/// is the gradient of an input that other operations use, too, if that input is a view or the result of one of candle's
/// operations: its parts are added in another order. Running statistics change once. Blocks may be inside blocks.
///
/// The block must compute the same in both calls: its noise must come from
/// [`Scope::noise_seed`](crate::Scope::noise_seed), as that of the layers does. Every tensor that the block reads and
/// that needs a gradient must be a parameter or among the `inputs`. `params` are those of the block's layers.
///
/// ```
/// use candelabrum_nn::layers::{Linear, ReLU};
/// use candelabrum_nn::{Params, recompute};
/// use candle_core::{DType, Device, Module, Tensor};
///
/// let params = Params::new(0);
/// let (wide, narrow) = (Linear::new(&params.root().pp("wide"), 64), Linear::new(&params.root().pp("narrow"), 8));
/// let xs = Tensor::ones((2, 8), DType::F32, &Device::Cpu)?;
/// // The 64 features of each row are not kept.
/// let ys = recompute(&params, &[&xs], move |inputs| narrow.forward(&ReLU.forward(&wide.forward(&inputs[0])?)?))?;
/// let gradients = ys.sum_all()?.backward()?;
/// assert!(gradients.get(params.get("wide.weight")?.var()).is_some());
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Those of the block. [`Error::RecomputedBlock`] if the block reads another tensor of the graph, and in the backward
/// pass if the block draws other noise than before.
pub fn recompute(
    params: &Params,
    inputs: &[&Tensor],
    block: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    recompute_at(None, params, inputs, block)
}

/// As [`recompute`], for a block of a model, which has its parameters only while it is computed.
pub(crate) fn recompute_at(
    place: Option<BlockPlace>,
    params: &Params,
    inputs: &[&Tensor],
    block: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    candle_pass::check()?;
    let entered = place.as_ref().map(|place| place.enter(BlockPass::Forward)).transpose()?;
    let mut targets: Vec<_> = inputs.iter().map(|input| GradientTarget::new(Some(input))).collect();
    let block = RecomputedBlock {
        place,
        params: params.clone(),
        is_training: params.is_training(),
        inputs: inputs.iter().map(|input| input.detach()).collect(),
        function: Box::new(block),
    };
    let (first, layers) = (node::next_number(), saved::ended_layers());
    let (computed, mut script) = recomputing::record(|| block.compute(&targets));
    let Computed { leaves, ys } = computed?;
    drop(entered);
    if !ys.track_op() {
        return Ok(ys);
    }
    let nodes = ys.sorted_nodes();
    refuse_others(&ys, &nodes, first)?;
    script.unread = link::find(&ys).and_then(|link| link.node.unread_as_last());
    targets.extend(variables(&nodes, &leaves).map(GradientTarget::Tensor).map(Some));
    let result = attach(block, targets, &ys, script);
    saved::block_ends(layers);
    result
}

/// A block and its inputs, outside of the graph.
struct RecomputedBlock {
    place: Option<BlockPlace>,
    params: Params,
    /// The mode of the first pass.
    is_training: bool,
    inputs: Vec<Tensor>,
    function: Box<BlockFunction>,
}

type BlockFunction = dyn Fn(&[Tensor]) -> Result<Tensor> + Send + Sync;

/// A computed block.
struct Computed {
    /// By input. `None` for an input that needs no gradient.
    leaves: Vec<Option<Leaf>>,
    ys: Tensor,
}

impl RecomputedBlock {
    fn compute(&self, targets: &[Option<GradientTarget>]) -> Result<Computed> {
        let mut tensors = self.inputs.clone();
        let mut leaves = Vec::with_capacity(tensors.len());
        for (tensor, target) in tensors.iter_mut().zip(targets) {
            let leaf = target.as_ref().map(|target| Leaf::new(tensor, target)).transpose()?;
            if let Some(leaf) = &leaf {
                *tensor = leaf.tensor().clone();
            }
            leaves.push(leaf);
        }
        let ys = (self.function)(&tensors)?;
        Ok(Computed { leaves, ys })
    }
}

/// Refuses a block with operations that were there before the block. A backward pass through the block would go on into
/// them.
fn refuse_others(ys: &Tensor, nodes: &[&Tensor], first: u64) -> Result<()> {
    let mut open: Vec<GraphLink> = nodes.iter().filter_map(|node| link::find(node)).collect();
    open.extend(link::find(ys));
    let mut known = HashSet::new();
    while let Some(link) = open.pop() {
        let node = link.node;
        if node.number() < first {
            let what = format!(
                "it reads the result of another operation ({}) that is not among its inputs: pass \
                 this tensor as an input of the block",
                node.name()
            );
            return Err(Error::RecomputedBlock { what }.into());
        }
        if known.insert(node.number()) {
            open.extend(node.targets().iter().flatten().filter_map(|target| match target {
                GradientTarget::Link(link) => Some(link.clone()),
                GradientTarget::Tensor(tensor) => link::find(tensor),
            }));
        }
    }
    Ok(())
}

/// Puts a computed block into the graph, as one operation.
fn attach(
    block: RecomputedBlock,
    targets: Vec<Option<GradientTarget>>,
    ys: &Tensor,
    script: Script,
) -> Result<Tensor> {
    let targets = LinkTargets::new(targets);
    let (parents, versions) = targets.parents(|_| true);
    // Inboxes have no numbers of 16 bits on the CPU.
    let dtype = ys.dtype();
    let is_rounded = is_half(dtype) && ys.device().is_cpu();
    let numbers = if is_rounded { ys.detach().to_dtype(DType::F32)? } else { ys.detach() };
    let inbox = Arc::<GradientInbox>::default();
    let node = Arc::new(Recomputed {
        number: node::next_number(),
        block,
        script,
        shape: ys.shape().clone(),
        targets,
        versions,
        inbox: Arc::clone(&inbox),
        around: params::present_block(),
    });
    saved::begun(&node);
    let node: Arc<dyn Differentiable> = node;
    let token = JoinInputs::all(&node, NAME, parents)?;
    let result = node::emit(NAME, &node, &token, inbox, ys.shape().clone(), copy(&numbers)?)?;
    if is_rounded { result.to_dtype(dtype) } else { Ok(result) }
}

/// The variables of a computed block, but not its leaves. A backward pass reports their gradients from the last one to
/// the first one: in the order in which a pass through the block would.
fn variables(nodes: &[&Tensor], leaves: &[Option<Leaf>]) -> impl Iterator<Item = Tensor> {
    let places: HashMap<TensorId, usize> =
        nodes.iter().enumerate().map(|(place, node)| (node.id(), place)).collect();
    let is_leaf = |variable: &Tensor| {
        leaves.iter().flatten().any(|leaf| leaf.variable().id() == variable.id())
    };
    let mut variables: Vec<(usize, Tensor)> = Vec::new();
    for (place, node) in nodes.iter().enumerate() {
        if node.is_variable() && !is_leaf(node) {
            // The hook of a watched parameter is elsewhere than the parameter.
            let hook = hooks::watched(node.id());
            let hook = hook.and_then(|watched| places.get(&watched.token().id()).copied());
            variables.push((hook.unwrap_or(place), Tensor::clone(node)));
        }
    }
    variables.sort_by_key(|(place, _)| Reverse(*place));
    variables.into_iter().map(|(_, variable)| variable)
}

/// A block in the graph.
struct Recomputed {
    number: u64,
    block: RecomputedBlock,
    /// What the first pass has drawn and computed.
    script: Script,
    shape: Shape,
    /// The inputs, and behind them the variables of the block.
    targets: LinkTargets,
    /// The parameters and their versions in the first pass.
    versions: Vec<Versioned>,
    inbox: Arc<GradientInbox>,
    /// The block around it.
    around: Option<BlockPlace>,
}

impl SavesTensors for Recomputed {
    fn each_kept(&self, f: &mut dyn FnMut(&Tensor)) {
        self.block.inputs.iter().for_each(f);
    }
}

impl Differentiable for Recomputed {
    fn name(&self) -> &'static str {
        NAME
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn targets(&self) -> &LinkTargets {
        &self.targets
    }

    fn differentiate(&self) -> Result<()> {
        hooks::refuse_changed(NAME, &self.versions)?;
        let Some(dys) = self.inbox.take() else {
            bail!("{NAME}: the result has no gradient, this is a bug")
        };
        if self.block.place.is_some() || self.around.is_none() {
            params::leave_backward();
        }
        let _entered = match &self.block.place {
            Some(place) => Some(place.enter(BlockPass::Backward)?),
            None => params::enter_backward(self.around.as_ref())?,
        };
        let (leaves, store) = params::hold_inner_blocks(|| {
            let Computed { leaves, ys } = self.compute_again()?;
            Ok::<_, candle_core::Error>((leaves, pass::in_block(|| differentiate(&ys, dys))?))
        })?;
        let gradient = |(number, target): (usize, &Option<GradientTarget>)| {
            let Some(target) = target else { return Ok(None) };
            match leaves.get(number).and_then(Option::as_ref) {
                Some(leaf) => leaf.pass_on(target, &store),
                None => Ok(store.get(target.graph_tensor()).cloned()),
            }
        };
        self.targets.put(self.targets.iter().enumerate().map(gradient).collect::<Result<_>>()?);
        Ok(())
    }
}

impl Recomputed {
    fn compute_again(&self) -> Result<Computed> {
        let RecomputedBlock { params, is_training, .. } = &self.block;
        let targets = &self.targets[..self.block.inputs.len()];
        let (computed, difference) = params.keeping_shared_buffers(|| {
            recomputing::replay(&self.script, || {
                params.in_mode(*is_training, || self.block.compute(targets))
            })
        })?;
        let computed = computed?;
        let shape = computed.ys.shape();
        let what = match difference {
            Some(difference) => difference,
            None if *shape == self.shape => return Ok(computed),
            None => format!(
                "its result had the shape {:?} in the forward pass, and {shape:?} when it was computed again",
                self.shape
            ),
        };
        Err(Error::RecomputedBlock { what }.into())
    }
}

/// The backward pass of a computed block, whose result has the gradient `dys`. Returns the gradients without a place in
/// memory.
fn differentiate(ys: &Tensor, dys: PooledValues) -> Result<GradStore> {
    if let Some(graph) = FusedGraph::below(ys) {
        graph.link.deliver_values(dys)?;
        return graph.differentiate(ys);
    }
    // The gradient of this sum is `dys`, times one.
    let dys = to_tensor(dys, ys)?.to_dtype(ys.dtype())?;
    (ys * dys)?.sum_all()?.backward()
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Module};

    use super::*;
    use crate::Param;
    use crate::layers::{Linear, ReLU};

    /// A pass that visits all of candle's graph makes zeros for the gradient of every token.
    #[test]
    fn blocks_of_fused_operations_do_without_candles_pass() -> Result<()> {
        let params = Params::new(0);
        let layers = Arc::new(["a", "b", "c"].map(|name| Linear::new(&params.root().pp(name), 4)));
        let xs = Tensor::ones((2, 4), DType::F32, &Device::Cpu)?;
        let forward = || -> Result<Tensor> {
            let [b, c] = [1, 2].map(|number| {
                let layers = Arc::clone(&layers);
                move |inputs: &[Tensor]| ReLU.forward(&layers[number].forward(&inputs[0])?)
            });
            let ys = recompute(&params, &[&layers[0].forward(&xs)?], b)?;
            recompute(&params, &[&ys], c)
        };
        forward()?;
        params.list().iter().try_for_each(Param::watch)?;
        let ys = forward()?;
        let Some(graph) = FusedGraph::below(&ys) else {
            bail!("an operation of candle is in the graph")
        };
        // Two blocks and a layer, and three times a weight and a bias.
        assert_eq!(graph.len(), 3 + 6);
        Ok(())
    }
}
