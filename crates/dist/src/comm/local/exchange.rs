//! Barriers with a deadline, and the two ways in which ranks touch each other's memory between
//! them. All sharing of payload happens here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cells::Cells;
use super::memory::Region;
use super::mesh::Watcher;
use crate::comm::collective::{Collective, Header, ReduceOp, check_agreement};
use crate::comm::element::ElementType;
use crate::comm::reduce::reduce_into_all;
use crate::{Error, Result};

/// Slices of a reduction start at multiples of this many bytes: a cache line belongs to one rank.
const LINE: usize = 64;

/// This rank's side of every barrier.
pub(super) struct Exchange {
    cells: Cells,
    watcher: Arc<Watcher>,
    deadline: Duration,
    /// What the current operation is, for error messages.
    current: Header,
}

impl Exchange {
    pub(super) fn new(cells: Cells, watcher: Arc<Watcher>, deadline: Duration) -> Self {
        let current =
            Header { sequence: 0, op: Collective::Barrier, element: ElementType::U8, len: 0 };
        Self { cells, watcher, deadline, current }
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Names the operation that the next barriers belong to.
    pub(super) fn begin(&mut self, header: Header) {
        self.current = header;
    }

    /// A barrier after which every rank knows that all do the same; gives all ranks' headers.
    pub(super) fn agree(&mut self, header: Header) -> Result<Vec<Header>> {
        self.cells.show_header(header.encode());
        self.meet()?;
        let headers = self.cells.headers();
        let ranks: Vec<usize> = (0..headers.len()).collect();
        check_agreement(&headers, &ranks)?;
        Ok(headers.into_iter().filter_map(Header::decode).collect())
    }

    /// A barrier.
    pub(super) fn meet(&mut self) -> Result<()> {
        self.cells.arrive();
        let mut start = None;
        for rank in (0..self.cells.world_size()).filter(|&rank| rank != self.cells.rank()) {
            while !self.cells.wait_a_while(rank) {
                let start = *start.get_or_insert_with(Instant::now);
                self.check(rank, start)?;
            }
        }
        Ok(())
    }

    /// Says why waiting for `rank`, which is not here yet, makes no sense any more.
    fn check(&self, rank: usize, start: Instant) -> Result<()> {
        let during = || self.current.to_string();
        if let Some(error) = self.watcher.trouble(rank, during) {
            // It may have arrived and left in order since the last look.
            return if self.cells.has_arrived(rank) { Ok(()) } else { Err(error) };
        }
        let waited = start.elapsed();
        if waited < self.deadline {
            return Ok(());
        }
        let missing = (0..self.cells.world_size()).filter(|&rank| !self.cells.has_arrived(rank));
        let missing = missing.map(|rank| rank.to_string()).collect::<Vec<_>>().join(", ");
        Err(Error::Timeout { rank: self.cells.rank(), during: during(), missing, waited })
    }

    /// Reduces the first `bytes` of all ranks' parts of `region` into each of them. Every rank has
    /// passed a barrier since it wrote its part.
    pub(super) fn reduce(
        &mut self,
        region: &mut Region,
        bytes: usize,
        element: ElementType,
        op: ReduceOp,
    ) -> Result<()> {
        let world_size = region.world_size();
        let slice = bytes.div_ceil(world_size).next_multiple_of(LINE);
        let start = (region.rank() * slice).min(bytes);
        let count = slice.min(bytes - start);
        let mut parts: Vec<&mut [u8]> = (0..world_size)
            .map(|rank| {
                // SAFETY: until the barrier below, this range of every part is this rank's turn:
                // ranks take ranges that do not overlap, and no rank looks at its own part before
                // it passed that barrier (`region` is borrowed until then).
                unsafe { region.part_mut(rank, start, count) }
            })
            .collect();
        reduce_into_all(element, op, &mut parts);
        self.meet()
    }

    /// Lets every rank look at the first `bytes` of all parts of `region`, then waits until all
    /// have looked.
    pub(super) fn show(
        &mut self,
        region: &Region,
        bytes: usize,
        look: impl FnOnce(&[&[u8]]),
    ) -> Result<()> {
        self.meet()?;
        let parts: Vec<&[u8]> = (0..region.world_size())
            .map(|rank| {
                // SAFETY: between these two barriers all ranks only read (`region` is borrowed).
                unsafe { region.part(rank, 0, bytes) }
            })
            .collect();
        look(&parts);
        self.meet()
    }
}
