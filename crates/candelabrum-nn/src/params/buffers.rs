//! State of a model that is not trained: the running statistics of a normalisation.
//!
//! A buffer has a name and a value like a parameter, but it gets no gradient and no optimizer
//! updates it. [`Params::buffers`](crate::Params::buffers) lists the buffers, to save or share a
//! model.
//!
//! A buffer of ours is written through [`Buffer`] only. A *shared* buffer is a variable that other code
//! writes, too, as `candle_nn`'s `BatchNorm` does in its forward pass. Nobody announces such a change, so
//! the value that a failed step restores is copied beforehand, after every step.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candelabrum_memory::cuda::{self, CudaSpanMut};
use candle_core::{DType, Layout, Storage, Tensor, Var, bail};

use super::tensors::{VariableValues, with_variable};
use crate::autograd::recomputing;
use crate::{Error, Result};

/// One tensor of state and its name. A cheap handle: clones share the value.
///
/// ```
/// use candelabrum_nn::{Init, Params};
///
/// let params = Params::new(0);
/// let count = params.root().pp("norm").buffer("count", 2, Init::ZEROS)?;
/// count.update_in_place(|_, old| old + 1.0)?;
/// assert_eq!(params.buffers()[0].name(), "norm.count");
/// assert_eq!(params.buffers()[0].value().to_vec1::<f32>()?, [1.0, 1.0]);
/// assert!(params.is_empty());
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Buffer {
    name: Arc<str>,
    var: Var,
    before: Arc<Mutex<Before>>,
    /// Whether other code writes the variable, too.
    is_shared: bool,
}

/// The value after the last training step.
#[derive(Debug, Default)]
struct Before {
    /// Memory for the value. On a GPU the memory is kept, so that not every step allocates it.
    memory: Option<Tensor>,
    /// Whether the value is in the memory, because it has changed since. That of a shared buffer always is.
    holds: bool,
}

impl Before {
    /// Copies the value of `var`.
    fn write(&mut self, var: &Var) -> candle_core::Result<()> {
        let value = var.as_tensor().detach();
        match &self.memory {
            Some(memory) if memory.rank() > 0 => memory.slice_set(&value.contiguous()?, 0, 0)?,
            _ => self.memory = Some(value.copy()?),
        }
        self.holds = true;
        Ok(())
    }

    fn clear(&mut self) {
        self.holds = false;
        if self.memory.as_ref().is_some_and(|memory| memory.device().is_cpu()) {
            self.memory = None;
        }
    }
}

impl Buffer {
    pub(crate) fn new(name: Arc<str>, var: Var) -> Self {
        Self { name, var, before: Arc::default(), is_shared: false }
    }

    /// A buffer of a variable that other code writes, too.
    pub(crate) fn shared(name: Arc<str>, var: Var) -> Self {
        let buffer = Self { is_shared: true, ..Self::new(name, var) };
        buffer.keep();
        buffer
    }

    /// The variable, whose memory the model uses.
    pub(crate) fn var(&self) -> &Var {
        &self.var
    }

    /// The full name: the layers' names and the buffer's own, joined by dots, as in
    /// `norm1.running_mean`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value, outside of the graph. It is not a copy, so it changes with the buffer.
    pub fn value(&self) -> Tensor {
        self.var.as_tensor().detach()
    }

    /// Copies `value` into the buffer.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if shape or element type differ.
    pub fn set(&self, value: &Tensor) -> Result<()> {
        if value.shape() != self.var.shape() || value.dtype() != self.var.dtype() {
            return Err(Error::Mismatch {
                name: self.name.to_string(),
                expected: self.var.shape().clone(),
                expected_dtype: self.var.dtype(),
                got: value.shape().clone(),
                got_dtype: value.dtype(),
            });
        }
        self.var.set(&value.detach())?;
        self.keep();
        Ok(())
    }

    /// Replaces every element by `change(index, old)`, in row-major order. Does nothing in the second forward pass
    /// through a block ([`recompute`](crate::recompute)): the first one has changed the buffer.
    ///
    /// # Errors
    /// A buffer that is neither f32 nor f64, or not on the CPU.
    pub fn update_in_place(&self, mut change: impl FnMut(usize, f64) -> f64) -> Result<()> {
        if recomputing::is_active() {
            return Ok(());
        }
        self.remember()?;
        Ok(with_variable(&self.var, |values| {
            match values {
                VariableValues::F32(values) => {
                    let values = values.host()?;
                    for (index, value) in values.iter_mut().enumerate() {
                        *value = change(index, f64::from(*value)) as f32;
                    }
                }
                VariableValues::F64(values) => {
                    for (index, value) in values.iter_mut().enumerate() {
                        *value = change(index, *value);
                    }
                }
            }
            Ok(())
        })?)
    }

    /// Changes the value to `value`, of the same shape and type. [`Self::restore`] undoes this
    /// change like a change [in place](Self::update_in_place).
    pub(crate) fn replace(&self, value: &Tensor) -> Result<()> {
        if recomputing::is_active() {
            return Ok(());
        }
        self.remember()?;
        Ok(self.var.set(value)?)
    }

    fn before(&self) -> MutexGuard<'_, Before> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies the value for [`Self::restore`], unless there is a copy already.
    fn remember(&self) -> Result<()> {
        let mut before = self.before();
        if !before.holds {
            before.write(&self.var)?;
        }
        Ok(())
    }

    /// Makes the changes since the last call permanent.
    pub(crate) fn keep(&self) {
        let mut before = self.before();
        // A copy that cannot be made for want of memory leaves the buffer without one: a failed step then
        // does not restore it, as no step restores what it has not copied.
        if !self.is_shared || before.write(&self.var).is_err() {
            before.clear();
        }
    }

    /// A copy of the value, if other code writes the variable, too.
    pub(crate) fn copy_of_shared(&self) -> candle_core::Result<Option<Tensor>> {
        self.is_shared.then(|| self.value().copy()).transpose()
    }

    /// Undoes the changes since the last [`Self::keep`].
    pub(crate) fn restore(&self) -> Result<()> {
        let mut before = self.before();
        if before.holds
            && let Some(value) = &before.memory
        {
            self.var.set(value)?;
        }
        if !self.is_shared {
            before.clear();
        }
        Ok(())
    }
}

/// Changes the values of two buffers in f32 on a GPU in place. `change` gets the values, and for each the place where
/// the value before goes, unless that value is kept already. [`Buffer::restore`] undoes this change like every
/// change in place.
pub(crate) fn update_on_gpu(
    buffers: [&Buffer; 2],
    change: impl FnOnce([CudaSpanMut<'_>; 2], [Option<CudaSpanMut<'_>>; 2]) -> candle_core::Result<()>,
) -> candle_core::Result<()> {
    if Arc::ptr_eq(&buffers[0].before, &buffers[1].before) {
        bail!("`{}` is used as two buffers", buffers[0].name)
    }
    let mut before = buffers.map(Buffer::before);
    for (before, buffer) in before.iter_mut().zip(buffers) {
        if before.memory.is_none() {
            before.write(&buffer.var)?;
        }
    }
    let places = before.each_ref().map(|before| before.memory.as_ref().filter(|_| !before.holds));
    let [first, second] = places.map(|place| place.map(Tensor::storage_and_layout));
    let values = buffers.map(|buffer| buffer.var.storage_and_layout());
    let spans = [span(&values[0])?, span(&values[1])?];
    change(spans, [first.as_ref().map(span).transpose()?, second.as_ref().map(span).transpose()?])?;
    drop((first, second));
    before.iter_mut().for_each(|before| before.holds = true);
    Ok(())
}

/// The numbers of a tensor on a GPU.
fn span<'a>(
    (storage, layout): &'a (impl Deref<Target = Storage>, &Layout),
) -> candle_core::Result<CudaSpanMut<'a>> {
    match &**storage {
        Storage::Cuda(storage) => Ok(cuda::span_mut(storage, layout)?),
        _ => bail!("a buffer is not on a GPU, this is a bug"),
    }
}

/// Copies the values of buffers for [`Buffer::restore`], where there are no copies already. Those on a GPU are copied by
/// one kernel.
pub(crate) fn remember(buffers: &[Buffer]) -> candle_core::Result<()> {
    let mut together = Vec::new();
    for buffer in buffers {
        let value = buffer.var.as_tensor();
        let is_known = buffer.before().memory.is_some();
        if is_known && value.device().is_cuda() && value.dtype() == DType::F32 {
            together.push((buffer, buffer.before()));
        } else {
            buffer.remember()?;
        }
    }
    together.retain(|(_, before)| !before.holds);
    let places = together.iter().filter_map(|(buffer, before)| {
        let memory = before.memory.as_ref()?;
        Some((buffer.var.storage_and_layout(), memory.storage_and_layout()))
    });
    let places: Vec<_> = places.collect();
    let mut copies = Vec::new();
    for ((value, layout), (memory, place)) in &places {
        if let (Storage::Cuda(value), Storage::Cuda(memory)) = (&**value, &**memory) {
            copies.push((cuda::span(value, layout)?, memory, *place));
        }
    }
    cuda::round_all(&copies)?;
    drop(copies);
    drop(places);
    together.iter_mut().for_each(|(_, before)| before.holds = true);
    Ok(())
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::{Init, Params};

    #[test]
    fn names_are_shared_with_parameters_and_listed_in_order() -> Result<()> {
        let params = Params::new(0);
        let scope = params.root().pp("norm");
        scope.buffer("b", 1, Init::ZEROS)?;
        scope.buffer("a", 1, Init::ZEROS)?;
        scope.param("weight", 1, Init::ZEROS)?;
        assert!(scope.param("a", 1, Init::ZEROS).is_err());
        assert!(scope.buffer("b", 1, Init::ZEROS).is_err());
        let error = scope.buffer("weight", 1, Init::ZEROS).unwrap_err();
        assert!(error.to_string().contains("`norm.weight`"), "{error}");
        let names: Vec<_> = params.buffers().iter().map(|b| b.name().to_owned()).collect();
        assert_eq!(names, ["norm.b", "norm.a"]);
        assert_eq!(params.len(), 1);
        Ok(())
    }

    #[test]
    fn a_value_is_outside_of_the_graph_and_must_fit() -> Result<()> {
        let params = Params::on(0, DType::F64, &Device::Cpu);
        let buffer = params.root().buffer("state", 2, Init::Const(2.0))?;
        assert!(!buffer.value().track_op());
        buffer.update_in_place(|index, old| old * (index + 1) as f64)?;
        assert_eq!(buffer.value().to_vec1::<f64>()?, [2.0, 4.0]);
        buffer.set(&Tensor::new(&[7f64, 8.0], &Device::Cpu)?)?;
        assert_eq!(buffer.value().to_vec1::<f64>()?, [7.0, 8.0]);
        let error = buffer.set(&Tensor::new(&[7f32, 8.0], &Device::Cpu)?).unwrap_err();
        assert!(error.to_string().contains("`state`"), "{error}");
        Ok(())
    }
}
