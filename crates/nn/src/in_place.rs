//! Values of a variable that are changed where they are.

use std::cell::RefCell;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Var, bail};

/// The elements of a variable, in row-major order.
#[derive(Debug)]
pub(crate) enum Values<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
}

/// Lets `change` rewrite the values of `var`: no copy, no graph.
///
/// # Errors
/// A variable that is not contiguous, not on the CPU or neither f32 nor f64; what `change` refuses.
pub(crate) fn change_in_place(
    var: &Var,
    change: impl FnMut(Values<'_>) -> Result<()>,
) -> Result<()> {
    var.inplace_op1(&Change(RefCell::new(change)))
}

/// The change as an operation of candle, which alone gives access to the values.
struct Change<F>(RefCell<F>);

impl<F: FnMut(Values<'_>) -> Result<()>> InplaceOp1 for Change<F> {
    fn name(&self) -> &'static str {
        "change-in-place"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("values must be contiguous to be changed in place")
        };
        let values = match storage {
            CpuStorage::F32(values) => Values::F32(&mut values[start..end]),
            CpuStorage::F64(values) => Values::F64(&mut values[start..end]),
            other => {
                bail!("values must be f32 or f64 to be changed in place, not {:?}", other.dtype())
            }
        };
        (self.0.borrow_mut())(values)
    }
}
