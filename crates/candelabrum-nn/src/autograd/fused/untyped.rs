//! An operation without its type: the code around kernels is compiled once, and not for each operation.

use candle_core::{Result, Tensor};

use super::on_gpu::GpuKernels;
use super::operation::{Backward, BackwardReads, FusedOp};
use crate::autograd::view::StridedView;
use crate::f64_kernels;
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;

/// A [`FusedOp`] without its type.
pub(super) trait Operation: Send + Sync {
    fn name(&self) -> &'static str;
    fn reads(&self) -> BackwardReads;
    fn forward_f32(&self, inputs: &[&[f32]], ys: &mut [f32]) -> Result<Pooled<f32>>;
    fn forward_f64(&self, inputs: &[&[f64]], ys: &mut [f64]) -> Result<Pooled<f64>>;
    fn backward_f32(&self, pass: Backward<'_, f32>) -> Result<()>;
    fn backward_f64(&self, pass: Backward<'_, f64>) -> Result<()>;
    fn view(&self) -> Option<&StridedView>;
    fn passes_gradient_to(&self) -> Option<usize>;
    fn on_gpu(&self) -> Option<&dyn GpuKernels>;
    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor>;
    fn has_effects(&self) -> bool;
}

impl<F: FusedOp> Operation for F {
    fn name(&self) -> &'static str {
        FusedOp::name(self)
    }

    fn reads(&self) -> BackwardReads {
        FusedOp::reads(self)
    }

    fn forward_f32(&self, inputs: &[&[f32]], ys: &mut [f32]) -> Result<Pooled<f32>> {
        self.forward(inputs, ys)
    }

    fn forward_f64(&self, inputs: &[&[f64]], ys: &mut [f64]) -> Result<Pooled<f64>> {
        f64_kernels::forward(self, inputs, ys)
    }

    fn backward_f32(&self, pass: Backward<'_, f32>) -> Result<()> {
        self.backward(pass)
    }

    fn backward_f64(&self, pass: Backward<'_, f64>) -> Result<()> {
        f64_kernels::backward(self, pass)
    }

    fn view(&self) -> Option<&StridedView> {
        FusedOp::view(self)
    }

    fn passes_gradient_to(&self) -> Option<usize> {
        FusedOp::passes_gradient_to(self)
    }

    fn on_gpu(&self) -> Option<&dyn GpuKernels> {
        FusedOp::on_gpu(self)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        FusedOp::composite(self, inputs)
    }

    fn has_effects(&self) -> bool {
        FusedOp::has_effects(self)
    }
}

/// The kernels of an [`Operation`] for this type of numbers.
pub(super) trait TypedKernels: Float {
    fn forward(op: &dyn Operation, inputs: &[&[Self]], ys: &mut [Self]) -> Result<Pooled<Self>>;
    fn backward(op: &dyn Operation, pass: Backward<'_, Self>) -> Result<()>;
}

impl TypedKernels for f32 {
    fn forward(op: &dyn Operation, inputs: &[&[f32]], ys: &mut [f32]) -> Result<Pooled<f32>> {
        op.forward_f32(inputs, ys)
    }

    fn backward(op: &dyn Operation, pass: Backward<'_, f32>) -> Result<()> {
        op.backward_f32(pass)
    }
}

impl TypedKernels for f64 {
    fn forward(op: &dyn Operation, inputs: &[&[f64]], ys: &mut [f64]) -> Result<Pooled<f64>> {
        op.forward_f64(inputs, ys)
    }

    fn backward(op: &dyn Operation, pass: Backward<'_, f64>) -> Result<()> {
        op.backward_f64(pass)
    }
}
