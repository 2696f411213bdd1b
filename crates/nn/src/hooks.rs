//! Gradient-ready hooks: which gradients are complete in the middle of a backward pass.
//!
//! candle's backward pass visits an operation when it has visited everything that uses the
//! operation's result. A *hook* is an operation on a parameter; its result, a scalar token, joins
//! every fused operation that uses the parameter. So the hook is visited after the last of them:
//! then the gradient of the parameter is complete, however often it is used.
//!
//! candle's own operations take no tokens. For them there is an identity operation, which copies
//! the values of a parameter once per step ([`Param::identity`](crate::Param::identity)); what they
//! compute from a parameter directly is known only at the end of the pass.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Device, Layout, Result, Shape, Tensor, Var};
use candle_core::{TensorId, bail};

use crate::pass;

/// A parameter's token, once it is watched; clones of a parameter share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch(Arc<OnceLock<Arc<Tensor>>>);

static TOKENS: OnceLock<RwLock<HashMap<TensorId, Weak<Tensor>>>> = OnceLock::new();

fn tokens() -> &'static RwLock<HashMap<TensorId, Weak<Tensor>>> {
    TOKENS.get_or_init(RwLock::default)
}

impl Watch {
    /// The token of `var`: operations made from now on join it.
    pub(crate) fn begin(&self, var: &Var) -> Result<Tensor> {
        if let Some(token) = self.0.get() {
            return Ok(Tensor::clone(token));
        }
        let variable = var.as_tensor().id();
        let mut tokens = tokens().write().unwrap_or_else(PoisonError::into_inner);
        // Two stores may hold one variable; they share its token.
        let known = tokens.get(&variable).and_then(Weak::upgrade);
        let token = match known {
            Some(token) => token,
            None => Arc::new(var.apply_op1(Hook { variable })?),
        };
        if tokens.len() == tokens.capacity() {
            tokens.retain(|_, token| token.strong_count() > 0);
        }
        let token = self.0.get_or_init(|| token);
        tokens.insert(variable, Arc::downgrade(token));
        Ok(Tensor::clone(token))
    }
}

/// The token of a variable that is watched.
pub(crate) fn token(variable: TensorId) -> Option<Tensor> {
    let tokens = tokens().read().unwrap_or_else(PoisonError::into_inner);
    tokens.get(&variable)?.upgrade().map(|token| Tensor::clone(&token))
}

/// The values of `var` as the result of an operation of this step.
pub(crate) fn identity(var: &Var, watch: &Watch) -> Result<Tensor> {
    let token = watch.begin(var)?;
    var.apply_op2(&token, Identity { variable: var.as_tensor().id() })
}

/// The value of a token, and its gradient.
fn scalar() -> Result<Tensor> {
    Tensor::new(0.0_f32, &Device::Cpu)
}

struct Hook {
    variable: TensorId,
}

impl CustomOp1 for Hook {
    fn name(&self) -> &'static str {
        "gradient-ready"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(())))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        pass::complete(self.variable)?;
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
            other => bail!("a parameter of {:?} cannot be trained", other.dtype()),
        };
        Ok((copy, layout.shape().clone()))
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let taken = pass::accept(self.variable, gradient)?;
        Ok(((!taken).then(|| gradient.clone()), Some(scalar()?)))
    }
}
