//! The launch of a kernel with its arguments in the order in which the kernel declares them.

/// `launch!(gpu, element_type, KERNELS, "kernel", grid; arguments)`. An argument is memory, a size or a factor;
/// `..array` stands for those of an array.
macro_rules! launch {
    (@args [$($slices:tt)*]) => { [$($slices)*].concat() };
    (@args [$($slices:tt)*] ..$array:expr $(, $($rest:tt)*)?) => {
        launch!(@args [
            $($slices)* &$array.iter().map(|&arg| candelabrum_memory::cuda::KernelArg::from(arg)).collect::<Vec<_>>()[..],
        ] $($($rest)*)?)
    };
    (@args [$($slices:tt)*] $arg:expr $(, $($rest:tt)*)?) => {
        launch!(@args [$($slices)* &[candelabrum_memory::cuda::KernelArg::from($arg)][..],] $($($rest)*)?)
    };
    // One expression, so that borrowed memory may be a temporary value.
    ($gpu:expr, $element:expr, $kernels:expr, $name:expr, $grid:expr; $($args:tt)*) => {
        $gpu.launch_for($element, $kernels, $name, $grid, &launch!(@args [] $($args)*))
            .map_err(candle_core::Error::from)
    };
}
pub(in crate::ops) use launch;
