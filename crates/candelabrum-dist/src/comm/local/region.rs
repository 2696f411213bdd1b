//! A region of the shared segment: a part of the same length for every rank of a group.

use std::any::Any;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use candelabrum_memory::SharedMemory;
use rustix::fs::FallocateFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::cell::BarrierCell;
use crate::comm::slice::slice;
use crate::{Error, Result};

/// Parts start at multiples of this number of bytes, the size of a page.
pub(super) const ALIGN: usize = 4096;

/// This rank as a member of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalMember {
    /// The number of the group, which is the start of its first region.
    pub(super) group: u64,
    pub(super) rank: usize,
    pub(super) world_size: usize,
}

impl LocalMember {
    /// The bytes of every rank's part that this rank reduces in a reduction of `bytes` bytes.
    pub(super) fn slice(self, bytes: usize) -> Range<usize> {
        slice(bytes, self.rank, self.world_size)
    }

    /// The other ranks of the group, in order.
    pub(super) fn others(self) -> impl Iterator<Item = usize> {
        (0..self.world_size).filter(move |&rank| rank != self.rank)
    }
}

/// The file that contains the regions.
#[derive(Debug)]
pub(super) struct SharedFile {
    pub(super) fd: OwnedFd,
    /// Whether an operation has failed. No memory is returned then, because other ranks may still
    /// write to it.
    pub(super) broken: AtomicBool,
}

/// The start of the file.
#[derive(Debug)]
#[repr(C)]
pub(super) struct SegmentStart {
    /// The number of allocated bytes of the file.
    pub(super) taken: AtomicU64,
}

/// The distance in bytes between the parts of two ranks.
pub(super) fn stride(part: usize) -> usize {
    part.next_multiple_of(ALIGN)
}

/// `part` bytes per rank, visible to all ranks of a group.
///
/// **Invariant (turns)**: between two barriers, either one rank writes a byte and no other rank
/// reads it, or all ranks only read it. Each part belongs to its rank, except between the barriers
/// of a collective on this region. Such a collective borrows the region until its last barrier.
#[derive(Debug)]
pub(super) struct MappedRegion {
    start: NonNull<u8>,
    part: usize,
    stride: usize,
    member: LocalMember,
    file: Arc<SharedFile>,
    offset: u64,
    given_back: bool,
}

// SAFETY: the mapping is valid in every thread of the process, and `MappedRegion` is its only owner here.
unsafe impl Send for MappedRegion {}

// SAFETY: through a shared reference, safe functions read only this rank's own part and atomics. Only
// `give_back` changes the part, when every rank has left the group and nothing borrows the part.
unsafe impl Sync for MappedRegion {}

impl MappedRegion {
    /// Maps the region of `file` that starts at `offset` and has `part` bytes per rank. All ranks
    /// have reserved their parts.
    pub(super) fn map(
        file: &Arc<SharedFile>,
        offset: u64,
        part: usize,
        member: LocalMember,
    ) -> Result<Self> {
        let stride = stride(part);
        let len = stride * member.world_size;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let mapped =
            unsafe { rustix::mm::mmap(none, len, protection, MapFlags::SHARED, &file.fd, offset) };
        let start = mapped.map_err(|error| Error::io("map shared memory", error))?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| {
            Error::io("map shared memory", std::io::Error::other("mapped at address 0"))
        })?;
        let file = Arc::clone(file);
        let region = Self { start, part, stride, member, file, offset, given_back: false };
        region.populate();
        Ok(region)
    }

    pub(super) fn member(&self) -> LocalMember {
        self.member
    }

    /// A number that no other region of this job has. It is not 0.
    pub(super) fn id(&self) -> u64 {
        self.offset
    }

    /// This rank's part.
    pub(super) fn own(&self) -> &[u8] {
        // SAFETY: by the turns, no other rank writes this rank's part outside of collectives on the
        // region, and a collective that lets other ranks write holds `&mut self`.
        unsafe { self.part(self.member.rank, 0, self.part) }
    }

    /// This rank's part, mutable.
    pub(super) fn own_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `own`, and `&mut self` excludes other references from this process.
        unsafe { self.part_mut(self.member.rank, 0, self.part) }
    }

    /// `count` bytes of `rank`'s part from `offset` on.
    ///
    /// # Safety
    /// Until the reference ends, no process may write these bytes.
    pub(super) unsafe fn part(&self, rank: usize, offset: usize, count: usize) -> &[u8] {
        let start = self.address(rank, offset, count);
        // SAFETY: `address` checked the bounds of the mapping; the caller excludes writers.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), count) }
    }

    /// `count` bytes of `rank`'s part from `offset` on, mutable.
    ///
    /// # Safety
    /// Until the reference ends, no other code in any process may read or write these bytes.
    #[expect(clippy::mut_from_ref, reason = "disjoint parts are borrowed at once; see # Safety")]
    pub(super) unsafe fn part_mut(&self, rank: usize, offset: usize, count: usize) -> &mut [u8] {
        let start = self.address(rank, offset, count);
        // SAFETY: `address` checked the bounds of the mapping; the caller excludes other accesses.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), count) }
    }

    /// `rank`'s cell, in a region of cells.
    pub(super) fn cell(&self, rank: usize) -> &BarrierCell {
        let start = self.address(rank, 0, size_of::<BarrierCell>()).cast::<BarrierCell>();
        // SAFETY: the address is in bounds and aligned to a page. A cell has only atomics, so zeros
        // are a valid cell and ranks may share it.
        unsafe { start.as_ref() }
    }

    /// The counter, in the first region of the file.
    pub(super) fn control(&self) -> &SegmentStart {
        let start = self.address(0, 0, size_of::<SegmentStart>()).cast::<SegmentStart>();
        // SAFETY: as for `cell`.
        unsafe { start.as_ref() }
    }

    fn address(&self, rank: usize, offset: usize, count: usize) -> NonNull<u8> {
        assert!(rank < self.member.world_size, "rank {rank} of {}", self.member.world_size);
        assert!(offset + count <= self.part, "{offset} + {count} bytes of {}", self.part);
        // SAFETY: the sum is inside the mapping, by the two lines above.
        unsafe { self.start.add(rank * self.stride + offset) }
    }

    /// Makes the drop of this region return its memory. Not for cells, because other ranks read
    /// them later.
    pub(super) fn give_back_on_drop(mut self) -> Self {
        self.given_back = true;
        self
    }

    /// Fills the page table for the bytes that this rank will certainly use: its own part, and the
    /// slice of every other part that it reduces. Other bytes cost a page fault at their first use.
    fn populate(&self) {
        let slice = self.member.slice(self.part);
        for rank in 0..self.member.world_size {
            let bytes = if rank == self.member.rank { 0..self.part } else { slice.clone() };
            if bytes.is_empty() {
                continue;
            }
            let page = bytes.start / ALIGN * ALIGN;
            let start = self.address(rank, page, bytes.end - page).as_ptr().cast();
            // SAFETY: the range is inside the mapping, and its bytes stay as they are.
            let filled =
                unsafe { rustix::mm::madvise(start, bytes.end - page, Advice::LinuxPopulateWrite) };
            // Kernels before 5.14 cannot do this. Page faults then fill the table.
            if filled.is_err() {
                return;
            }
        }
    }

    /// Returns the memory of this rank's part to the system, so that it reads as zeros. Each other
    /// rank returns its own part. To be called when every rank has left the group.
    pub(super) fn give_back(&self) {
        let start = self.offset + (self.member.rank * self.stride) as u64;
        give_back(&self.file.fd, start, self.stride as u64);
    }
}

/// Returns the memory of a part of the file to the system, so that it reads as zeros.
pub(super) fn give_back(file: &OwnedFd, start: u64, len: u64) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(error) = rustix::fs::fallocate(file, flags, start, len) {
        tracing::warn!(%error, "could not give shared memory back");
    }
}

impl SharedMemory for MappedRegion {
    fn bytes(&self) -> &[u8] {
        self.own()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.own_mut()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        if self.given_back && !self.file.broken.load(Ordering::Relaxed) {
            self.give_back();
        }
        let len = self.stride * self.member.world_size;
        // SAFETY: this region owns the mapping, and no borrow of the region is left.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), len) };
        if let Err(error) = unmapped {
            tracing::warn!(%error, "could not unmap shared memory");
        }
    }
}
