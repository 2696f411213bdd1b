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
use std::sync::{Arc, Mutex, PoisonError, Weak};

use candelabrum_memory::Flat;
use candle_core::{Result, Storage, Tensor};

use super::elements::with_inputs;
use crate::ops::elementwise::add_assign;
use crate::ops::float::Float;
use crate::ops::pool::{Pooled, Values};
use crate::pass;

/// Collects the gradient of a result during a backward pass, with the number of the pass.
#[derive(Debug, Default)]
pub(in crate::ops) struct Inbox(Mutex<Option<(u64, Values)>>);

impl Inbox {
    /// Adds `gradient` to the earlier ones of the same pass.
    pub(in crate::ops) fn deliver<T: Float>(&self, gradient: Pooled<T>) {
        let pass = pass::number();
        let mut inbox = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = inbox.take().filter(|(number, _)| *number == pass);
        let sum = match before.and_then(|(_, values)| T::of_values(values)) {
            None => gradient,
            Some(mut sum) => {
                add_assign(&mut sum, &gradient);
                sum
            }
        };
        *inbox = Some((pass, T::into_values(sum)));
    }

    /// As [`Self::deliver`], on a GPU.
    pub(in crate::ops) fn deliver_on_gpu(&self, gradient: Flat) -> Result<()> {
        let sum = match self.take() {
            Some(Values::Gpu(mut sum)) => {
                sum.cuda_numbers_mut()?.add(gradient.cuda_numbers()?)?;
                sum
            }
            _ => gradient,
        };
        let mut inbox = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *inbox = Some((pass::number(), Values::Gpu(sum)));
        Ok(())
    }

    /// The sum of the gradients of this pass.
    pub(in crate::ops) fn take(&self) -> Option<Values> {
        let mut inbox = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.take().filter(|(pass, _)| *pass == pass::number()).map(|(_, values)| values)
    }
}

/// A result as an input of another operation: the token that replaces the tensor in candle's graph,
/// and the inbox of the result's gradient.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) token: Tensor,
    pub(super) inbox: Arc<Inbox>,
    pub(super) elements: usize,
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

/// The link of `tensor`, if the tensor is the result of a fused operation, or a view of all its
/// elements in their order. candle's views do not change a gradient. A detached tensor has no link.
pub(super) fn find(tensor: &Tensor) -> Option<Link> {
    if !tensor.track_op() || tensor.is_variable() {
        return None;
    }
    if tensor.layout().contiguous_offsets() != Some((0, tensor.elem_count())) {
        return None;
    }
    let address = address(tensor);
    let mark = RESULTS.with_borrow(|results| results.get(&address).and_then(Weak::upgrade))?;
    (mark.0.elements == tensor.elem_count()).then(|| mark.0.clone())
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
