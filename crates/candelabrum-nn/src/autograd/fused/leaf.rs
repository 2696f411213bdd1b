//! The ends of a recomputed block's graph.

use std::sync::Arc;

use candelabrum_memory::cuda::Gpu;
use candle_core::backprop::GradStore;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, DType, Layout, Result, Shape, Storage, Tensor, Var,
    WithDType, bail,
};

use super::elements::{contiguous, to_flat, with_inputs};
use super::inbox::GradientInbox;
use super::link::{Differentiable, GradientTarget, LinkTargets};
use super::node;
use crate::autograd::hooks;
use crate::f64_kernels;
use crate::kernels::float::for_float;
use crate::kernels::scratch::{Poolable, Pooled, PooledValues};

const NAME: &str = "input of a block";

/// What stands for an input inside the block: a tensor with its numbers, at which the block's graph ends.
pub(super) enum Leaf {
    /// A result of which fused operations know where its gradient goes.
    Linked { tensor: Tensor, variable: Var, inbox: Arc<GradientInbox>, is_inputs_own: bool },
    /// A variable of candle, for values of which inboxes have none: those of types without kernels on the CPU.
    Variable(Var),
}

impl Leaf {
    /// The leaf of an input, whose gradient goes to `target`.
    pub(super) fn new(input: &Tensor, target: &GradientTarget) -> Result<Self> {
        let has_inbox = match input.dtype() {
            DType::F32 => true,
            DType::F64 => f64_kernels::AVAILABLE && input.device().is_cpu(),
            DType::F16 | DType::BF16 => input.device().is_cuda(),
            _ => false,
        };
        if !has_inbox {
            return Var::from_tensor(input).map(Self::Variable);
        }
        let (inbox, is_inputs_own) = match target {
            GradientTarget::Link(link) if link.view.is_none() => (Arc::clone(&link.inbox), true),
            _ => (Arc::default(), false),
        };
        let numbers: Arc<dyn Differentiable> =
            Arc::new(LeafValues { number: node::next_number(), targets: LinkTargets::default() });
        let variable = Var::zeros(1, DType::F32, input.device())?;
        let token = variable.apply_op1(LeafToken)?;
        let (shape, storage) = (input.shape().clone(), copy(input)?);
        let tensor = node::emit(NAME, &numbers, &token, Arc::clone(&inbox), shape, storage)?;
        Ok(Self::Linked { tensor, variable, inbox, is_inputs_own })
    }

    pub(super) fn tensor(&self) -> &Tensor {
        match self {
            Self::Linked { tensor, .. } => tensor,
            Self::Variable(variable) => variable,
        }
    }

    /// The variable of candle at the end of the graph.
    pub(super) fn variable(&self) -> &Var {
        match self {
            Self::Linked { variable, .. } | Self::Variable(variable) => variable,
        }
    }

    /// Gives the gradient to the input. Returns the gradient of an input to which candle adds it.
    pub(super) fn pass_on(
        &self,
        target: &GradientTarget,
        store: &GradStore,
    ) -> Result<Option<Tensor>> {
        match (self, target) {
            (Self::Linked { tensor, inbox, is_inputs_own, .. }, GradientTarget::Link(link)) => {
                if *is_inputs_own && !inbox.is_empty() {
                    return Ok(None);
                }
                // Of an input that the block has not used, the gradient is zero.
                let gradient = inbox.take().map(Ok).unwrap_or_else(|| zeros(tensor))?;
                link.deliver_values(gradient)?;
                Ok(None)
            }
            (Self::Linked { tensor, inbox, .. }, GradientTarget::Tensor(_)) => {
                inbox.take().map(|gradient| to_tensor(gradient, tensor)).transpose()
            }
            (Self::Variable(variable), GradientTarget::Tensor(_)) => {
                Ok(store.get(variable).cloned())
            }
            (Self::Variable(variable), GradientTarget::Link(_)) => {
                bail!("{NAME}: no inbox for numbers of {:?}, this is a bug", variable.dtype())
            }
        }
    }
}

/// A copy of a tensor's numbers.
pub(super) fn copy(tensor: &Tensor) -> Result<Storage> {
    if let Some(gpu) = Gpu::from_device(tensor.device()) {
        return Ok(Storage::Cuda(gpu.storage(to_flat(tensor)?)?));
    }
    for_float!(tensor.dtype(), NAME, T => {
        let numbers = contiguous::<T>(tensor)?;
        let numbers = with_inputs(&[Some(&numbers)], NAME, |slices: &[&[T]]| Ok(slices[0].to_vec()))?;
        Ok(Storage::Cpu(T::to_cpu_storage_owned(numbers)))
    })
}

/// The numbers of a gradient as a tensor with the shape of `like`.
pub(super) fn to_tensor(values: PooledValues, like: &Tensor) -> Result<Tensor> {
    let storage = match values {
        PooledValues::F32(values) => Storage::Cpu(CpuStorage::F32(values.to_vec())),
        PooledValues::F64(values) => Storage::Cpu(CpuStorage::F64(values.to_vec())),
        PooledValues::Gpu(values) => match Gpu::from_device(like.device()) {
            Some(gpu) => Storage::Cuda(gpu.storage(values)?),
            None => bail!("{NAME}: a gradient on another device than the result"),
        },
    };
    node::result(&like.detach(), storage, like.shape().clone())
}

/// A gradient of zeros for a tensor.
fn zeros(tensor: &Tensor) -> Result<PooledValues> {
    if tensor.device().is_cuda() {
        return to_flat(&tensor.zeros_like()?).map(PooledValues::Gpu);
    }
    for_float!(tensor.dtype(), NAME, T => Ok(T::into_values(Pooled::zeros(tensor.elem_count()))))
}

/// The operation of a leaf's numbers. Nothing is below them.
struct LeafValues {
    number: u64,
    targets: LinkTargets,
}

impl Differentiable for LeafValues {
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
        Ok(())
    }
}

/// Makes a token of a variable.
struct LeafToken;

impl CustomOp1 for LeafToken {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok(node::token())
    }

    fn cuda_fwd(&self, storage: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        hooks::token_on_gpu(storage)
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        Ok(None)
    }
}
