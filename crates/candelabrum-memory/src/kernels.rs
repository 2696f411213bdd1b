//! The texts of kernels for GPUs, which builds without `cuda` contain and do not compile.

/// Threads per block.
pub const BLOCK: usize = 256;

/// The text of some kernels in CUDA C++, each `extern "C"`. The last parameter of a kernel is the
/// count of its [`LaunchGrid`](crate::cuda::LaunchGrid), an `unsigned long long`. The text knows the type of the
/// launch as `number_t`. A number of 16 bits is converted to and from `float` where it is read and
/// assigned.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    /// The name of the text in errors. Two texts must have different names.
    pub name: &'static str,
    /// The text.
    pub text: &'static str,
}

/// The number of scalars that a formula gets.
pub const SCALARS: usize = 8;

/// The text of an optimizer's formula in CUDA C++.
#[derive(Clone, Copy, Debug)]
pub struct Formula {
    /// The name, different for each text.
    pub name: &'static str,
    /// The functions `sums` and `update` that cuda/kernels/formula.cu describes.
    pub text: &'static str,
    /// Whether `update` needs the sums over all elements.
    pub needs_sums: bool,
}
