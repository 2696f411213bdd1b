//! The shared segment: one anonymous file in memory (`memfd`), mapped by every rank.
//!
//! The file is a row of *regions*; each region holds one equal part per rank, and every rank maps
//! regions in the same order. Rank 0 alone makes the file longer, and reserves the memory as it
//! does: where there is not enough, that is an error and not a SIGBUS later. The file has no name
//! and dies with its last process.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::SLOT;
use super::cells::Cell;
use crate::comm::buffer::SharedMemory;
use crate::{Error, Result};

/// Parts start at multiples of this, the largest page size that matters here.
const ALIGN: usize = 4096;

/// The file, and how much of it this rank has mapped.
#[derive(Debug)]
pub(super) struct Memory {
    file: OwnedFd,
    rank: usize,
    world_size: usize,
    /// Bytes reserved; followed on rank 0 alone.
    reserved: u64,
    /// Bytes mapped so far: where the next region starts.
    mapped: u64,
}

impl Memory {
    /// Makes the file with room for the cells and the slots.
    pub(super) fn create(rank: usize, world_size: usize) -> Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("candelabrum", flags)
            .map_err(|error| Error::io("create shared memory", error))?;
        // Nobody can shorten the file under another's feet.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)
            .map_err(|error| Error::io("seal shared memory", error))?;
        let mut memory = Self { file, rank, world_size, reserved: 0, mapped: 0 };
        memory.grow(size_of::<Cell>())?;
        memory.grow(SLOT)?;
        Ok(memory)
    }

    /// The file as rank 0 handed it over.
    pub(super) fn received(file: OwnedFd, rank: usize, world_size: usize) -> Self {
        Self { file, rank, world_size, reserved: 0, mapped: 0 }
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Reserves a region of `part` bytes per rank at the end of the file.
    pub(super) fn grow(&mut self, part: usize) -> Result<()> {
        let len = (stride(part) * self.world_size) as u64;
        rustix::fs::fallocate(&self.file, FallocateFlags::empty(), self.reserved, len)
            .map_err(|error| Error::io(format!("reserve {len} bytes of shared memory"), error))?;
        self.reserved += len;
        Ok(())
    }

    /// Maps the next region, of `part` bytes per rank, which must have been reserved.
    pub(super) fn map_next(&mut self, part: usize) -> Result<Region> {
        let stride = stride(part);
        let len = stride * self.world_size;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let mapped =
            unsafe { rustix::mm::mmap(none, len, protection, flags, &self.file, self.mapped) };
        let start = mapped.map_err(|error| Error::io("map shared memory", error))?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| {
            Error::io("map shared memory", std::io::Error::other("mapped at address 0"))
        })?;
        self.mapped += len as u64;
        Ok(Region { start, part, stride, rank: self.rank, world_size: self.world_size })
    }
}

fn stride(part: usize) -> usize {
    part.next_multiple_of(ALIGN)
}

/// `part` bytes per rank, visible to all ranks.
///
/// **Invariant (turns)**: between two barriers a byte is either written by one rank and looked at
/// by no other, or only read. The own part belongs to its rank except between the barriers of a
/// collective on this region, which holds the region borrowed for that long.
#[derive(Debug)]
pub(super) struct Region {
    start: NonNull<u8>,
    part: usize,
    stride: usize,
    rank: usize,
    world_size: usize,
}

// SAFETY: the mapping is valid in every thread of the process, and `Region` is its only owner here.
unsafe impl Send for Region {}

impl Region {
    pub(super) fn world_size(&self) -> usize {
        self.world_size
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// This rank's part.
    pub(super) fn own(&self) -> &[u8] {
        // SAFETY: by the turns, nobody else writes the own part outside collectives on the region,
        // and those hold `&mut self`.
        unsafe { self.part(self.rank, 0, self.part) }
    }

    /// This rank's part.
    pub(super) fn own_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `own`, and `&mut self` excludes other references from this process.
        unsafe { self.part_mut(self.rank, 0, self.part) }
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

    /// `count` bytes of `rank`'s part from `offset` on, to be changed.
    ///
    /// # Safety
    /// Until the reference ends, nothing else in any process may look at or write these bytes.
    #[expect(clippy::mut_from_ref, reason = "disjoint parts are borrowed at once; see # Safety")]
    pub(super) unsafe fn part_mut(&self, rank: usize, offset: usize, count: usize) -> &mut [u8] {
        let start = self.address(rank, offset, count);
        // SAFETY: `address` checked the bounds of the mapping; the caller excludes everybody else.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), count) }
    }

    /// `rank`'s cell, in a region made for cells.
    pub(super) fn cell(&self, rank: usize) -> &Cell {
        let start = self.address(rank, 0, size_of::<Cell>());
        // SAFETY: in bounds, aligned to a page, and a cell is made of atomics alone, for which any
        // bits are valid and sharing between processes is what they are for.
        unsafe { start.cast::<Cell>().as_ref() }
    }

    fn address(&self, rank: usize, offset: usize, count: usize) -> NonNull<u8> {
        assert!(rank < self.world_size, "rank {rank} of {}", self.world_size);
        assert!(offset + count <= self.part, "{offset} + {count} bytes of {}", self.part);
        // SAFETY: the sum is inside the mapping, by the two lines above.
        unsafe { self.start.add(rank * self.stride + offset) }
    }
}

impl SharedMemory for Region {
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

impl Drop for Region {
    fn drop(&mut self) {
        let len = self.stride * self.world_size;
        // SAFETY: the mapping is this region's own and nothing borrows from it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), len) };
        if let Err(error) = unmapped {
            tracing::warn!(%error, "could not unmap shared memory");
        }
    }
}
