//! The backward pass through a graph that has fused operations only.
//!
//! candle's own pass makes a tensor of zeros for the gradient of every token, to which it adds a token. On a GPU that
//! is an allocation, a fill and a free of no bytes for each operation of the model. In a graph without operations
//! of candle, nothing is left for candle to compute: this pass visits the operations in candle's order, so gradients
//! are added in the same order and have the same bits.

use std::collections::HashMap;
use std::sync::Arc;

use candelabrum_memory::cuda::Gpu;
use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor, TensorId};

use super::link::{self, Differentiable, GradientTarget, GraphLink};
use super::node::receive;
use crate::autograd::{hooks, pass};

/// What is done at a token.
enum TokenVisit {
    Differentiate(Arc<dyn Differentiable>),
    /// The gradient of a parameter is complete.
    Complete(TensorId),
}

/// Differentiates `loss`, as [`Tensor::backward`] does. `None`, and nothing is done, if an operation of candle or a
/// variable that is not a watched parameter is between the loss and the parameters.
pub(crate) fn backward(loss: &Tensor) -> Result<Option<GradStore>> {
    let Some(graph) = graph_of(loss) else { return Ok(None) };
    begin(loss, &graph.link)?;
    graph.differentiate(loss).map(Some)
}

/// Whether [`backward`] differentiates the loss, so that candle computes no gradient itself.
pub(crate) fn has_fused_operations_only(loss: &Tensor) -> bool {
    graph_of(loss).is_some()
}

fn graph_of(loss: &Tensor) -> Option<FusedGraph> {
    let whole =
        |graph: &FusedGraph| graph.link.view.is_none() && graph.link.elements == loss.elem_count();
    FusedGraph::below(loss).filter(whole)
}

/// The graph below a result that has fused operations and watched parameters only.
pub(super) struct FusedGraph {
    pub(super) link: GraphLink,
    /// By token.
    visits: HashMap<TensorId, TokenVisit>,
}

impl FusedGraph {
    /// `None` if an operation of candle or a variable that is not a watched parameter is in the graph.
    pub(super) fn below(ys: &Tensor) -> Option<Self> {
        let link = link::find(ys)?;
        let visits = visits(&link)?;
        Some(Self { link, visits })
    }

    /// The number of operations and parameters.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.visits.len()
    }

    /// Visits the operations, in candle's order, when the gradient of `ys` has been delivered to its link. Returns the
    /// gradients without a place in memory.
    pub(super) fn differentiate(&self, ys: &Tensor) -> Result<GradStore> {
        let mut store = GradStore::default();
        for token in ys.sorted_nodes() {
            match self.visits.get(&token.id()) {
                Some(TokenVisit::Differentiate(node)) => {
                    node.differentiate()?;
                    for (number, target) in node.targets().iter().enumerate() {
                        // A gradient without a place in memory, of a frozen parameter for instance.
                        if let Some(GradientTarget::Tensor(tensor)) = target
                            && let Some(gradient) = node.targets().gradient(number, tensor)
                        {
                            add(&mut store, tensor, &gradient)?;
                        }
                    }
                }
                Some(TokenVisit::Complete(variable)) => pass::complete(*variable)?,
                None => {} // Joins of more than three inputs, and views.
            }
        }
        Ok(store)
    }
}

/// Delivers the gradient of the loss by itself, which is 1.
fn begin(loss: &Tensor, link: &GraphLink) -> Result<()> {
    match Gpu::from_device(loss.device()).filter(|_| loss.dtype() == DType::F32) {
        Some(gpu) => {
            let mut one = gpu.numbers(link.elements)?;
            one.span_mut()?.fill(1.0)?;
            link.inbox.deliver_on_gpu(one)
        }
        None => receive("loss", &link.inbox, &loss.ones_like()?),
    }
}

/// As candle adds gradients: the first one to zeros.
fn add(store: &mut GradStore, tensor: &Tensor, gradient: &Tensor) -> Result<()> {
    let sum = match store.get(tensor) {
        Some(sum) => sum.add(gradient)?,
        None => tensor.zeros_like()?.add(gradient)?,
    };
    store.insert(tensor, sum);
    Ok(())
}

/// What is done at each token of the graph of a loss, if the graph has fused operations and watched parameters only.
fn visits(loss: &GraphLink) -> Option<HashMap<TensorId, TokenVisit>> {
    let mut visits = HashMap::new();
    let mut open = vec![loss.clone()];
    while let Some(link) = open.pop() {
        let token = link.token.id();
        if visits.contains_key(&token) {
            continue;
        }
        for target in link.node.targets().iter().flatten() {
            match target {
                GradientTarget::Link(link) => open.push(link.clone()),
                GradientTarget::Tensor(_) => {
                    let variable = target.variable()?;
                    let watched = hooks::watched(variable)?;
                    visits.insert(watched.token().id(), TokenVisit::Complete(variable));
                }
            }
        }
        visits.insert(token, TokenVisit::Differentiate(link.node));
    }
    Some(visits)
}
