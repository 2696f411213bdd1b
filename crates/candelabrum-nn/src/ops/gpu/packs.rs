//! Packs of numbers that a thread of a kernel loads and stores at once.

use candelabrum_memory::cuda::{CudaNumbers, KernelArg, LaunchGrid};

/// The bytes of a load.
const BYTES: usize = 16;

/// How a kernel takes its numbers (`packs` in packs.cu).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) struct PackWidth {
    /// The numbers of a pack.
    width: usize,
}

impl PackWidth {
    /// Wide packs, if each run of numbers that is given is aligned and each of these lengths is a multiple of a
    /// pack.
    pub(in crate::ops) fn new(numbers: &[Option<CudaNumbers<'_>>], lengths: &[usize]) -> Self {
        let numbers = || numbers.iter().flatten();
        let sizes = numbers().map(|numbers| numbers.element_type().size());
        let width = sizes.min().map_or(1, |size| BYTES / size);
        let is_aligned = |numbers: &CudaNumbers<'_>| {
            numbers.address().is_multiple_of(BYTES as u64)
                && numbers.element_type().size() * width == BYTES
        };
        let fits = |length: &usize| length.is_multiple_of(width);
        let is_wide = numbers().all(is_aligned) && lengths.iter().all(fits);
        Self { width: if is_wide { width } else { 1 } }
    }

    /// A thread for each pack of `count` numbers. The count is the kernel's last argument.
    pub(in crate::ops) fn grid(self, count: usize) -> LaunchGrid {
        LaunchGrid::for_packs(count, self.width)
    }
}

impl From<PackWidth> for KernelArg<'_> {
    fn from(packs: PackWidth) -> Self {
        usize::from(packs.width > 1).into()
    }
}
