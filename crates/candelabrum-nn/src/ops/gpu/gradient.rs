//! The place of a parameter's gradient as two arguments of a kernel, `Gradient` in gradient.cu.

use candelabrum_memory::ElementType;
use candelabrum_memory::cuda::{Arg, CudaNumbersMut};

/// The place of a gradient in f32, and the place of one in the type of the numbers. One of them is nothing, and both
/// are without a gradient.
pub(in crate::ops) fn places<'a>(gradient: Option<&'a mut CudaNumbersMut<'_>>) -> [Arg<'a>; 2] {
    match gradient {
        Some(wide) if wide.element_type() == ElementType::F32 => [wide.into(), Arg::Nothing],
        narrow => [Arg::Nothing, narrow.into()],
    }
}
