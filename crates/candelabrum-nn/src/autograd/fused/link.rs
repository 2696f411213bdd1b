//! Links from tensors to the fused operations that computed them.
//!
//! A tensor is recognised by the address of its storage. The [`LinkMark`] belongs to the tensor's own
//! operation, so it lives as long as the result. An entry whose mark has been dropped is ignored, even
//! if another tensor has the address now.
//!
//! **Invariant** The address of an entry whose mark lives belongs to the result, because the mark owns
//! the result's storage, too. The order of drops alone would not do: candle drops a tensor's storage
//! before its operation. If another thread dropped a graph, the thread that made it could in between get
//! the same address for a new tensor, and find the mark of the result.

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use candle_core::{Result, Storage, Tensor, TensorId};

use super::elements::with_inputs;
use super::inbox::GradientInbox;
use crate::autograd::hooks::{self, Watched};
use crate::autograd::recomputing::Unread;
use crate::autograd::view::StridedView;
use crate::kernels::float::Float;
use crate::kernels::scratch::{Pooled, PooledValues};

/// A result as an input of another operation: the token that replaces the tensor in candle's graph,
/// and the inbox of the result's gradient.
#[derive(Clone)]
pub(super) struct GraphLink {
    pub(super) token: Tensor,
    /// The operation that computed the result.
    pub(super) node: Arc<dyn Differentiable>,
    pub(super) inbox: Arc<GradientInbox>,
    /// The number of the result's elements.
    pub(super) elements: usize,
    /// The input's elements among those of the result. `None` for all of them in their order.
    pub(super) view: Option<StridedView>,
}

impl GraphLink {
    /// The number of the input's elements.
    pub(super) fn len(&self) -> usize {
        self.view.as_ref().map_or(self.elements, StridedView::len)
    }

    /// Adds the gradient of the input to that of the result.
    pub(super) fn deliver<T: Float>(&self, gradient: Pooled<T>) {
        match &self.view {
            Some(view) => self.inbox.deliver_view(view, &gradient, self.elements),
            None => self.inbox.deliver(gradient),
        }
    }

    /// As [`Self::deliver`], for numbers of any type and place.
    pub(super) fn deliver_values(&self, gradient: PooledValues) -> Result<()> {
        match gradient {
            PooledValues::F32(gradient) => self.deliver(gradient),
            PooledValues::F64(gradient) => self.deliver(gradient),
            PooledValues::Gpu(gradient) => self.inbox.deliver_on_gpu(gradient)?,
        }
        Ok(())
    }
}

/// A call of an operation, kept for the backward pass.
pub(super) trait Differentiable: Send + Sync {
    /// The operation's name in errors.
    fn name(&self) -> &'static str;
    /// The call's number: later calls have larger ones.
    fn number(&self) -> u64;
    /// What need not be computed of it where its result is known. `None` unless it is the last operation that this
    /// thread has computed.
    fn unread_as_last(&self) -> Option<Unread> {
        None
    }
    fn targets(&self) -> &LinkTargets;
    /// Runs the backward. Gradients are written to their places, and those for candle are [put](Targets::put) to their
    /// targets.
    fn differentiate(&self) -> Result<()>;
}

/// An input that needs a gradient.
pub(super) enum GradientTarget {
    /// The result of another fused operation.
    Link(GraphLink),
    /// Any other tensor of candle's graph.
    Tensor(Tensor),
}

impl GradientTarget {
    pub(super) fn new(input: Option<&Tensor>) -> Option<Self> {
        let input = input.filter(|input| input.track_op())?;
        Some(find(input).map_or_else(|| Self::Tensor(input.clone()), Self::Link))
    }

    /// The tensor that represents this input in candle's graph.
    pub(super) fn graph_tensor(&self) -> &Tensor {
        match self {
            Self::Link(link) => &link.token,
            Self::Tensor(tensor) => tensor,
        }
    }

    pub(super) fn variable(&self) -> Option<TensorId> {
        match self {
            Self::Tensor(tensor) if tensor.is_variable() => Some(tensor.id()),
            _ => None,
        }
    }
}

/// The inputs of an operation, by number. `None` for an input that needs no gradient.
#[derive(Default)]
pub(super) struct LinkTargets {
    by_input: Vec<Option<GradientTarget>>,
    /// Gradients for candle, by input, until candle fetches them.
    ready: Mutex<Vec<Option<Tensor>>>,
}

/// A parameter, and its version in the forward pass.
pub(super) type Versioned = (Arc<Watched>, u64);

impl LinkTargets {
    pub(super) fn new(by_input: Vec<Option<GradientTarget>>) -> Self {
        Self { by_input, ready: Mutex::default() }
    }

    /// What represents the inputs in candle's graph: each with its number, and the hook of each watched parameter. Then
    /// the parameters whose values the backward reads, as `is_read` says by number.
    pub(super) fn parents(
        &self,
        is_read: impl Fn(usize) -> bool,
    ) -> (Vec<(Option<usize>, Tensor)>, Vec<Versioned>) {
        let (mut parents, mut versions) = (Vec::new(), Vec::new());
        for (number, target) in self.by_input.iter().enumerate() {
            let Some(target) = target else { continue };
            parents.push((Some(number), target.graph_tensor().clone()));
            let Some(watched) = target.variable().and_then(hooks::watched) else { continue };
            parents.push((None, watched.token().clone()));
            if is_read(number) {
                let version = watched.version();
                versions.push((watched, version));
            }
        }
        (parents, versions)
    }

    /// Keeps the gradients that candle adds.
    pub(super) fn put(&self, gradients: Vec<Option<Tensor>>) {
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = gradients;
    }

    /// The gradient that candle receives for an input, which `argument` represents in the graph. A
    /// token is its own gradient.
    pub(super) fn gradient(&self, number: usize, argument: &Tensor) -> Option<Tensor> {
        if let Some(GradientTarget::Link(_)) = self.by_input[number] {
            return Some(argument.detach());
        }
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.get_mut(number).and_then(Option::take)
    }
}

impl Deref for LinkTargets {
    type Target = [Option<GradientTarget>];

    fn deref(&self) -> &Self::Target {
        &self.by_input
    }
}

thread_local! {
    /// The targets of dropped operations, while this thread is dropping one.
    static ENDED: RefCell<Option<Vec<Option<GradientTarget>>>> = const { RefCell::new(None) };
}

/// Drops the operations of a chain one after the other. Recursion over a long chain of operations would
/// need a deep stack.
impl Drop for LinkTargets {
    fn drop(&mut self) {
        let mut targets = mem::take(&mut self.by_input);
        let outermost = ENDED.try_with(|ended| match &mut *ended.borrow_mut() {
            Some(waiting) => {
                waiting.append(&mut targets);
                false
            }
            none => {
                *none = Some(Vec::new());
                true
            }
        });
        if !outermost.unwrap_or(false) {
            return;
        }
        while let Some(target) = targets.pop() {
            drop(target);
            let more = ENDED.with_borrow_mut(|ended| ended.as_mut().map(mem::take));
            targets.extend(more.into_iter().flatten());
        }
        ENDED.set(None);
    }
}

/// A link that only the operation of the result in candle's graph owns. So it frees the result's storage
/// when the result is dropped.
pub(super) struct LinkMark {
    link: GraphLink,
    /// The numbers of the result, once it has been registered.
    numbers: OnceLock<Tensor>,
}

thread_local! {
    static RESULTS: RefCell<HashMap<usize, Weak<LinkMark>>> = RefCell::default();
}

impl LinkMark {
    pub(super) fn new(link: GraphLink) -> Self {
        Self { link, numbers: OnceLock::new() }
    }

    pub(super) fn inbox(&self) -> &GradientInbox {
        &self.link.inbox
    }

    /// Registers the address of a result with its mark. `numbers` is the detached result.
    pub(super) fn register(self: &Arc<Self>, numbers: Tensor) {
        let address = address(&numbers);
        drop(self.numbers.set(numbers));
        RESULTS.with_borrow_mut(|results| {
            // Before the table would grow, entries of dropped results are removed.
            if results.len() == results.capacity() {
                results.retain(|_, mark| mark.strong_count() > 0);
            }
            results.insert(address, Arc::downgrade(self));
        });
    }
}

/// The link of `tensor`, if the tensor is the result of a fused operation, or a view of it: candle's
/// views do not change a gradient. On a GPU, only a view of all elements in their order has a link. A
/// detached tensor has no link.
pub(super) fn find(tensor: &Tensor) -> Option<GraphLink> {
    if !tensor.track_op() || tensor.is_variable() {
        return None;
    }
    let address = address(tensor);
    let mark = RESULTS.with_borrow(|results| results.get(&address).and_then(Weak::upgrade))?;
    let elements = mark.link.elements;
    if tensor.layout().contiguous_offsets() == Some((0, elements)) {
        return Some(mark.link.clone());
    }
    let view = StridedView::of_layout(tensor.layout()).filter(|_| tensor.device().is_cpu())?;
    Some(GraphLink { view: Some(view), ..mark.link.clone() })
}

fn address(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref::<Storage>(&storage).addr()
}

/// The elements of a gradient that candle computed.
pub(super) fn values_of<T: Float>(gradient: &Tensor) -> Result<Pooled<T>> {
    let gradient = gradient.contiguous()?;
    with_inputs(&[Some(&gradient)], "gradient", |slices: &[&[T]]| Ok(Pooled::copy_of(slices[0])))
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};

    use super::*;
    use crate::ops::gelu;

    /// candle drops a tensor's storage before its operation, which owns the mark. If another thread drops
    /// the graph, this thread may look between the two, as the test does by a reference to the mark.
    #[test]
    fn a_result_that_is_being_dropped_gives_its_link_to_no_other_tensor() -> Result<()> {
        for _ in 0..10 {
            let xs = Var::from_tensor(&Tensor::ones((3, 5), DType::F32, &Device::Cpu)?)?;
            let result = gelu(&xs)?; // It keeps its input, not its result.
            let mark = RESULTS.with_borrow(|results| results.get(&address(&result)).cloned());
            let mark = mark.and_then(|mark| mark.upgrade()).expect("the result was registered");
            drop(result);
            // The result alone owned it, so the storage was not kept for longer than the result.
            assert_eq!(Arc::strong_count(&mark), 1);
            let others: Vec<Tensor> =
                (0..50).map(|_| xs.affine(2.0, 0.0)).collect::<Result<_>>()?;
            for other in &others {
                assert!(find(other).is_none(), "a link to a result that is no more");
            }
        }
        Ok(())
    }
}
