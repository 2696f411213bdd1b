//! Links from tensors to the fused operations that computed them.
//!
//! A tensor is recognised by the address of its storage. The address belongs to a result as long as
//! the result's tensor lives. The [`Mark`] lives equally long, because it belongs to the tensor's
//! own operation. So an entry whose mark has been dropped is ignored, even if another tensor has
//! the address now.
//!
//! **Rule** A graph must be dropped on the thread that made it, or while that thread makes no
//! tensors. candle drops a tensor's storage before its operation. If another thread drops the last
//! reference to a result, the thread that made it may in between get the same address for a new
//! tensor, and find a mark that is about to be dropped.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use candle_core::{Result, Storage, Tensor};

use super::elements::with_inputs;
use super::inbox::Inbox;
use crate::ops::float::Float;
use crate::ops::pool::Pooled;
use crate::ops::view::View;

/// A result as an input of another operation: the token that replaces the tensor in candle's graph,
/// and the inbox of the result's gradient.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) token: Tensor,
    pub(super) inbox: Arc<Inbox>,
    /// The number of the result's elements.
    pub(super) elements: usize,
    /// The input's elements among those of the result. `None` for all of them in their order.
    pub(super) view: Option<View>,
}

impl Link {
    /// The number of the input's elements.
    pub(super) fn len(&self) -> usize {
        self.view.as_ref().map_or(self.elements, View::len)
    }

    /// Adds the gradient of the input to that of the result.
    pub(super) fn deliver<T: Float>(&self, gradient: Pooled<T>) {
        match &self.view {
            Some(view) => self.inbox.deliver_view(view, &gradient, self.elements),
            None => self.inbox.deliver(gradient),
        }
    }
}

/// A link that only the operation of the result in candle's graph owns.
#[derive(Debug)]
pub(super) struct Mark(pub(super) Link);

thread_local! {
    static RESULTS: RefCell<HashMap<usize, Weak<Mark>>> = RefCell::default();
}

impl Mark {
    pub(super) fn inbox(&self) -> &Inbox {
        &self.0.inbox
    }

    /// Registers the address of `tensor`, a result, with its mark.
    pub(super) fn register(self: &Arc<Self>, tensor: &Tensor) {
        let address = address(tensor);
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
pub(super) fn find(tensor: &Tensor) -> Option<Link> {
    if !tensor.track_op() || tensor.is_variable() {
        return None;
    }
    let address = address(tensor);
    let mark = RESULTS.with_borrow(|results| results.get(&address).and_then(Weak::upgrade))?;
    let elements = mark.0.elements;
    if tensor.layout().contiguous_offsets() == Some((0, elements)) {
        return Some(mark.0.clone());
    }
    let view = View::of_layout(tensor.layout()).filter(|_| tensor.device().is_cpu())?;
    Some(Link { view: Some(view), ..mark.0.clone() })
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
