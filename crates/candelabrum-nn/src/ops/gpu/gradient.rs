//! The place of a parameter's gradient as two arguments of a kernel, `Gradient` in gradient.cu.

use candelabrum_memory::ElementType;
use candelabrum_memory::cuda::{CudaNumbersMut, KernelArg};

/// The place of a gradient in f32, and the place of one in the type of the numbers. One of them is nothing, and both
/// are without a gradient.
pub(in crate::ops) fn places<'a>(
    gradient: Option<&'a mut CudaNumbersMut<'_>>,
) -> [KernelArg<'a>; 2] {
    match gradient {
        Some(wide) if wide.element_type() == ElementType::F32 => [wide.into(), KernelArg::Nothing],
        narrow => [KernelArg::Nothing, narrow.into()],
    }
}
