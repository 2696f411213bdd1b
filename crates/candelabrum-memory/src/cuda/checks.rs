//! The norm of spans on a GPU, and the search for a number that is not finite. Their results stay
//! on the GPU until the program asks for them.

use cudarc::driver::CudaSlice;

use super::compiler::KernelSource;
use super::launch::{KernelArg, LaunchGrid, SHARE, launch};
use super::memory::allocate;
use super::region::Region;
use super::{CudaSpan, Scratch};
use crate::{ElementType, Result};

const KERNELS: KernelSource = KernelSource {
    number: ElementType::F32,
    name: "checks",
    text: [include_str!("kernels/sums.cu"), include_str!("kernels/checks.cu")],
};

/// The bits of a key that hold the position in a bucket.
const POSITION_BITS: u32 = 40;

/// The sum of the squares of spans on a GPU, in f64 and in a fixed order.
#[derive(Debug)]
pub struct CudaNorm {
    total: CudaSlice<u8>,
}

impl CudaNorm {
    /// Zero, on the device of `values`.
    pub(crate) fn new(values: CudaSpan<'_>) -> Result<Self> {
        Ok(Self { total: allocate(values.region().stream(), size_of::<f64>())? })
    }

    /// Adds the squares of `values`.
    pub(crate) fn add(&mut self, values: CudaSpan<'_>) -> Result<()> {
        let stream = values.region().stream();
        let grid = LaunchGrid::by_share(values.len(), SHARE);
        let blocks = grid.blocks();
        let partials = Scratch::new(stream, blocks * (size_of::<f64>() / size_of::<f32>()))?;
        let partials = KernelArg::Memory(partials.span().region());
        launch(
            stream,
            KERNELS,
            "partial_squares",
            grid,
            &[partials, KernelArg::Memory(values.region())],
        )?;
        let total = KernelArg::Memory(Region::new(&self.total));
        launch(stream, KERNELS, "add_partials", LaunchGrid::one_block(blocks), &[total, partials])
    }

    /// The sum. Waits for the device.
    pub(crate) fn sum_of_squares(&self) -> Result<f64> {
        let mut bytes = [0; size_of::<f64>()];
        Region::new(&self.total).download(&mut bytes)?;
        Ok(f64::from_ne_bytes(bytes))
    }
}

/// A search for the first number that is not finite in spans on a GPU.
#[derive(Debug)]
pub struct CudaSearch {
    found: CudaSlice<u8>,
}

impl CudaSearch {
    /// A search on the device of `values`, that has found nothing yet.
    pub(crate) fn new(values: CudaSpan<'_>) -> Result<Self> {
        Ok(Self { found: allocate(values.region().stream(), size_of::<u64>())? })
    }

    /// Checks the numbers of `bucket`.
    pub(crate) fn look(&mut self, bucket: usize, values: CudaSpan<'_>) -> Result<()> {
        let region = values.region();
        let found = KernelArg::Memory(Region::new(&self.found));
        let first_key = KernelArg::U64((bucket as u64) << POSITION_BITS);
        let args = [found, KernelArg::Memory(region), first_key];
        launch(region.stream(), KERNELS, "search", LaunchGrid::for_each(values.len()), &args)
    }

    /// The lowest bucket with a bad number, and the position of its first bad number. Waits for the
    /// device.
    pub(crate) fn first(&self) -> Result<Option<(usize, usize)>> {
        let mut bytes = [0; size_of::<u64>()];
        Region::new(&self.found).download(&mut bytes)?;
        let found = u64::from_ne_bytes(bytes);
        let position = |key: u64| key & ((1 << POSITION_BITS) - 1);
        Ok((found != 0).then(|| ((!found >> POSITION_BITS) as usize, position(!found) as usize)))
    }
}
