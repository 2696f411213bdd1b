//! Elements replaced by a constant where a mask says so: the future in causal attention, or padding.

use candle_core::{Result, Shape, Tensor, bail};

use super::broadcast::Broadcast;
use super::sizes::is_index;
use crate::autograd::fused::{self, Backward, FusedOp};
use crate::kernels::float::Float;
use crate::kernels::scratch::Pooled;

const NAME: &str = "masked_fill";

/// `value` where `mask` is not 0, and `xs` elsewhere, as PyTorch's `masked_fill`. The elements that are
/// replaced get the gradient 0.
///
/// # Shapes
///
/// `xs` (..), `mask` in u8, u32 or i64, which is broadcast to the shape of `xs`: (T, T) for scores (N, H,
/// T, T), for instance.
///
/// # Errors
///
/// If the mask has another dtype or does not fit, or the dtype of `xs` is no float.
pub fn masked_fill(xs: &Tensor, mask: &Tensor, value: f64) -> Result<Tensor> {
    if !is_index(mask.dtype()) {
        bail!("{NAME}: a mask of dtype {:?}, expected u8, u32 or i64", mask.dtype());
    }
    let broadcast = Broadcast::new(xs.shape(), mask.shape(), NAME)?;
    if broadcast.shape() != xs.shape() {
        bail!("{NAME}: a mask of shape {:?} for {:?}", mask.shape(), xs.shape());
    }
    let mask = mask.ne(&mask.zeros_like()?)?;
    let on_host = match xs.device().is_cpu() {
        true => mask.flatten_all()?.to_vec1::<u8>()?,
        false => Vec::new(),
    };
    let mask = mask.to_device(xs.device())?;
    let op = MaskedFill { shape: xs.shape().clone(), broadcast, mask, on_host, value };
    fused::run(op, xs.shape(), &[Some(xs)])
}

struct MaskedFill {
    shape: Shape,
    broadcast: Broadcast,
    mask: Tensor,
    /// The elements of the mask, for the kernel.
    on_host: Vec<u8>,
    value: f64,
}

impl MaskedFill {
    fn apply<T: Float>(&self, xs: &[T], value: T, ys: &mut [T]) {
        let choose = |x: T, masked: u8| if masked == 0 { x } else { value };
        self.broadcast.combine((xs, &self.on_host), ys, choose, |_| {});
    }
}

impl FusedOp for MaskedFill {
    const NAME: &'static str = NAME;

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        self.apply(inputs[0], T::from_f64(self.value), ys);
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        if let Some(dxs) = pass.grads.take(0) {
            self.apply(pass.dys, T::zero(), dxs);
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs)] = inputs else { unreachable!("one input") };
        let value = Tensor::full(self.value, (), xs.device())?.to_dtype(xs.dtype())?;
        let value = value.broadcast_as(&self.shape)?;
        self.mask.broadcast_as(&self.shape)?.where_cond(&value, xs)
    }
}
