//! Gradient-ready hooks: they report complete gradients in the middle of a backward pass.
//!
//! candle's backward pass visits an operation after all operations that use its result. A *hook* is
//! an operation on a parameter. Its result, a scalar token, is an input of every fused operation
//! that uses the parameter. So the pass visits the hook after the last of these operations, when
//! the gradient of the parameter is complete. This holds for any number of uses.
//!
//! candle's own operations take no tokens. For them there is an identity operation, which copies
//! the values of a parameter once per step ([`Param::identity`](crate::Param::identity)). Where
//! they use a parameter directly, their part of its gradient is known only at the end of the pass.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use candelabrum_memory::cuda::Gpu;
use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, Device, Layout, Result, Shape, Tensor, TensorId,
    Var, bail,
};

use crate::autograd::{candle_pass, pass, profile};

/// The state of a watched parameter.
#[derive(Debug)]
pub(crate) struct Watched {
    name: Box<str>,
    /// The result of the hook. Operations created from now on take it as an input.
    token: Tensor,
    /// Counts the changes of the values, as PyTorch's version counter does.
    version: AtomicU64,
}

impl Watched {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn token(&self) -> &Tensor {
        &self.token
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

/// The state of a parameter once it is watched. Clones of a parameter share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ParamWatch(Arc<OnceLock<Arc<Watched>>>);

static WATCHED: OnceLock<RwLock<HashMap<TensorId, Weak<Watched>>>> = OnceLock::new();

fn all_watched() -> &'static RwLock<HashMap<TensorId, Weak<Watched>>> {
    WATCHED.get_or_init(RwLock::default)
}

impl ParamWatch {
    /// Watches `var`, a parameter called `name`.
    pub(crate) fn begin(&self, var: &Var, name: &str) -> Result<&Watched> {
        if let Some(watched) = self.0.get() {
            return Ok(watched);
        }
        candle_pass::check()?;
        let variable = var.as_tensor().id();
        let mut all = all_watched().write().unwrap_or_else(PoisonError::into_inner);
        // Two stores may contain one variable. They share its state.
        let known = all.get(&variable).and_then(Weak::upgrade);
        let watched = match known {
            Some(watched) => watched,
            None => Arc::new(Watched {
                name: name.into(),
                token: var.apply_op1(ParamHook { variable })?,
                version: AtomicU64::new(0),
            }),
        };
        if all.len() == all.capacity() {
            all.retain(|_, watched| watched.strong_count() > 0);
        }
        let watched = self.0.get_or_init(|| watched);
        all.insert(variable, Arc::downgrade(watched));
        Ok(watched)
    }

    /// Records a change of the parameter's values: a backward pass that needs the old values must
    /// not run any more.
    pub(crate) fn changed(&self, var: &Var) {
        let raise = |watched: &Watched| watched.version.fetch_add(1, Ordering::AcqRel);
        match self.0.get() {
            Some(watched) => drop(raise(watched)),
            // Another store may watch the same variable.
            None => drop(watched(var.as_tensor().id()).map(|watched| raise(&watched))),
        }
    }
}

/// Refuses a backward pass that needs parameters as they were at these versions, if one has changed since.
pub(crate) fn refuse_changed(name: &str, versions: &[(Arc<Watched>, u64)]) -> Result<()> {
    match versions.iter().find(|(watched, version)| watched.version() != *version) {
        None => Ok(()),
        Some((watched, _)) => bail!(
            "{name}: `{}` was changed after the forward pass: run every backward pass that needs \
             the old values before the parameter is updated, or run the forward pass again",
            watched.name()
        ),
    }
}

/// The state of a variable, if it is watched.
pub(crate) fn watched(variable: TensorId) -> Option<Arc<Watched>> {
    let all = all_watched().read().unwrap_or_else(PoisonError::into_inner);
    all.get(&variable)?.upgrade()
}

/// The values of `var` as the result of an operation of this step.
pub(crate) fn identity(tensor: &Tensor, watched: &Watched) -> Result<Tensor> {
    tensor.apply_op2(&watched.token, Identity { variable: tensor.id() })
}

/// The values of a watched variable as the result of an operation of this step. Any other tensor is
/// returned unchanged.
pub(crate) fn identity_if_watched(tensor: Tensor) -> Result<Tensor> {
    match if tensor.is_variable() { watched(tensor.id()) } else { None } {
        Some(watched) => identity(&tensor, &watched),
        None => Ok(tensor),
    }
}

/// The value of a token on a GPU. It has no elements, so candle adds the gradients of tokens without
/// a kernel. It has a byte of memory all the same: a GPU may refuse to record an allocation of nothing in a graph.
pub(crate) fn token_on_gpu(storage: &CudaStorage) -> Result<(CudaStorage, Shape)> {
    let Some(gpu) = Gpu::from_device(&Device::Cuda(storage.device().clone())) else {
        bail!("a token on a GPU needs a GPU")
    };
    Ok((gpu.storage(gpu.numbers(0)?)?, Shape::from(0)))
}

struct ParamHook {
    variable: TensorId,
}

impl CustomOp1 for ParamHook {
    fn name(&self) -> &'static str {
        "gradient-ready"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(())))
    }

    fn cuda_fwd(&self, storage: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        token_on_gpu(storage)
    }

    fn bwd(&self, _: &Tensor, token: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        profile::called(token, || pass::complete(self.variable))?;
        Ok(None)
    }
}

struct Identity {
    variable: TensorId,
}

impl CustomOp2 for Identity {
    fn name(&self) -> &'static str {
        "parameter"
    }

    fn cpu_fwd(
        &self,
        values: &CpuStorage,
        layout: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("a parameter must be contiguous")
        };
        let copy = match values {
            CpuStorage::F32(values) => CpuStorage::F32(values[start..end].to_vec()),
            CpuStorage::F64(values) => CpuStorage::F64(values[start..end].to_vec()),
            CpuStorage::F16(values) => CpuStorage::F16(values[start..end].to_vec()),
            CpuStorage::BF16(values) => CpuStorage::BF16(values[start..end].to_vec()),
            other => bail!("a parameter of {:?} cannot be trained", other.dtype()),
        };
        Ok((copy, layout.shape().clone()))
    }

    fn cuda_fwd(
        &self,
        values: &CudaStorage,
        layout: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        if layout.contiguous_offsets() != Some((0, layout.shape().elem_count())) {
            bail!("a parameter must be contiguous and the whole of its memory")
        }
        Ok((values.try_clone(layout)?, layout.shape().clone()))
    }

    fn bwd(
        &self,
        _: &Tensor,
        token: &Tensor,
        values: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let taken = profile::called(values, || pass::accept(self.variable, gradient))?;
        // A token is its own gradient: it is 0, or has no elements.
        Ok(((!taken).then(|| gradient.clone()), Some(token.detach())))
    }
}
