//! Sums over the values of each channel on a GPU, in a fixed order.

use candelabrum_memory::cuda::{
    BLOCK, CudaNumbers, CudaNumbersMut, Gpu, Kernels, LaunchGrid, Scratch,
};
use candle_core::Result;

use super::launch::launch;
use super::packs::PackWidth;

const KERNELS: Kernels = Kernels {
    name: "channels",
    text: concat!(include_str!("packs.cu"), include_str!("channels.cu")),
};

/// `CARRY` in channels.cu: how many values a thread adds in f32. A slice has about as many for each of
/// its threads.
const CARRY: usize = 32;

/// The fewest threads of a slice.
const FEWEST_LANES: usize = 32;

/// `MOST_SLICES` in channels.cu: the most slices of a channel. One thread adds their sums.
const MOST_SLICES: usize = 64;

/// A slice has a multiple of so many values, so a pack is in one slice.
const STEP: usize = 8;

/// Values of the shape (N, C, P) one after the other.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Channels {
    pub(in crate::ops) batch: usize,
    pub(in crate::ops) channels: usize,
    pub(in crate::ops) plane: usize,
}

impl Channels {
    /// The number of values of a channel.
    pub(in crate::ops) fn count(self) -> usize {
        self.batch * self.plane
    }

    fn share(self) -> usize {
        self.count().div_ceil(MOST_SLICES).max(BLOCK * CARRY).next_multiple_of(STEP)
    }

    /// The number of slices of a channel. 0 for a channel without values.
    pub(in crate::ops) fn slices(self) -> usize {
        self.count().div_ceil(self.share())
    }

    /// The threads of a slice, a divisor of [`BLOCK`].
    fn lanes(self) -> usize {
        (self.count() / CARRY).next_power_of_two().clamp(FEWEST_LANES, BLOCK)
    }

    /// [`Self::lanes`] threads for each slice of each channel.
    pub(in crate::ops) fn grid(self) -> LaunchGrid {
        LaunchGrid::by_share(self.channels * self.slices(), BLOCK / self.lanes())
    }

    /// How the threads take these values.
    pub(in crate::ops) fn packs(self, values: &[Option<CudaNumbers<'_>>]) -> PackWidth {
        PackWidth::new(values, &[self.plane])
    }

    /// The sizes as arguments (`SIZES` in channels.cu, of which the packs are the last).
    pub(in crate::ops) fn sizes(self) -> [usize; 6] {
        let Self { batch, channels, plane } = self;
        [batch, channels, plane, self.slices(), self.share(), self.lanes()]
    }

    /// Memory for `width` doubles for each slice.
    pub(in crate::ops) fn partials(self, gpu: &Gpu, width: usize) -> Result<Scratch> {
        const FLOATS: usize = size_of::<f64>() / size_of::<f32>();
        Ok(gpu.scratch(self.channels * self.slices() * width * FLOATS)?)
    }

    /// `sums[c]` = the sum of the values of channel `c`.
    pub(in crate::ops) fn sums(
        self,
        gpu: &Gpu,
        mut sums: CudaNumbersMut<'_>,
        values: CudaNumbers<'_>,
    ) -> Result<()> {
        let (number, packs) = (values.element_type(), self.packs(&[Some(values)]));
        let mut partials = self.partials(gpu, 1)?;
        launch!(gpu, number, KERNELS, "sum_slices", self.grid();
            &mut partials.span_mut(), values, ..self.sizes(), packs
        )?;
        let (number, grid) = (sums.element_type(), LaunchGrid::for_each(self.channels));
        launch!(gpu, number, KERNELS, "add_slices", grid; &mut sums, partials.span(), self.slices())
    }
}
