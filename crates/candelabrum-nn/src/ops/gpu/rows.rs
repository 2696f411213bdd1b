//! Kernels that work on the rows of a matrix, with a group of threads for each row (rows.cu).

use candelabrum_memory::cuda::{BLOCK, LaunchGrid};

/// The rows of a launch.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct GpuRows {
    /// The number of threads for each row.
    pub(in crate::ops) width: usize,
    /// A group of threads for each row.
    pub(in crate::ops) grid: LaunchGrid,
}

impl GpuRows {
    /// `count` rows of `len` elements.
    pub(in crate::ops) fn new(count: usize, len: usize) -> Self {
        let width = len.min(BLOCK).next_power_of_two();
        Self { width, grid: LaunchGrid::by_share(count, BLOCK / width) }
    }
}
