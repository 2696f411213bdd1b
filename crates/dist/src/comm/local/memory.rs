//! The shared segment: one anonymous file in memory (`memfd`), mapped by every rank.
//!
//! The file is a row of *regions*; each holds one equal part per rank of a group. Whoever needs one
//! takes the next bytes of the file from a counter at its start that all ranks share, and reserves
//! their memory: where there is not enough, that is an error and not a SIGBUS later. A dropped
//! region gives its memory back, its place in the file stays empty. The file has no name and dies
//! with its last process.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use candelabrum_memory::SharedMemory;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::cells::Cell;
use crate::{Error, Result};

/// Parts start at multiples of this, the page size that matters here.
const ALIGN: usize = 4096;

/// Where the first region starts: after the counter.
pub(super) const FIRST: u64 = ALIGN as u64;

/// A rank's access to the file.
#[derive(Debug)]
pub(super) struct Memory {
    file: Arc<File>,
    control: Region,
}

#[derive(Debug)]
struct File {
    fd: OwnedFd,
    /// Ranks no longer agree on whose turn it is: nothing is given back any more.
    broken: AtomicBool,
}

/// The start of the file.
#[derive(Debug)]
#[repr(C)]
struct Control {
    /// Bytes of the file that are taken.
    taken: AtomicU64,
}

/// Whose parts a region has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The number of the group: where its first region starts.
    pub(super) group: u64,
    pub(super) rank: usize,
    pub(super) world_size: usize,
}

impl Memory {
    /// Makes the file.
    pub(super) fn create() -> Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("candelabrum", flags)
            .map_err(|error| Error::io("create shared memory", error))?;
        // Nobody can shorten the file under another's feet.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK)
            .map_err(|error| Error::io("seal shared memory", error))?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, FIRST)
            .map_err(|error| Error::io("reserve shared memory", error))?;
        let memory = Self::received(fd)?;
        memory.control.control().taken.store(FIRST, Ordering::SeqCst);
        Ok(memory)
    }

    /// The file as another rank made it.
    pub(super) fn received(fd: OwnedFd) -> Result<Self> {
        let file = Arc::new(File { fd, broken: AtomicBool::new(false) });
        let alone = Place { group: 0, rank: 0, world_size: 1 };
        let control = map(&file, 0, size_of::<Control>(), alone)?;
        Ok(Self { file, control })
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.file.fd
    }

    /// Reserves regions of `parts` bytes for each of `world_size` ranks, one after the other; gives
    /// where the first starts.
    pub(super) fn reserve(&self, parts: &[usize], world_size: usize) -> Result<u64> {
        let len: usize = parts.iter().map(|&part| stride(part) * world_size).sum();
        let len = len as u64;
        let start = self.control.control().taken.fetch_add(len, Ordering::SeqCst);
        rustix::fs::fallocate(&self.file.fd, FallocateFlags::empty(), start, len)
            .map_err(|error| Error::io(format!("reserve {len} bytes of shared memory"), error))?;
        Ok(start)
    }

    /// Maps a region that has been reserved, of `part` bytes per rank.
    pub(super) fn map(&self, start: u64, part: usize, place: Place) -> Result<Region> {
        map(&self.file, start, part, place)
    }

    /// From now on dropped regions keep their memory: another rank may still write to them.
    pub(super) fn keep_everything(&self) {
        self.file.broken.store(true, Ordering::Relaxed);
    }
}

fn map(file: &Arc<File>, offset: u64, part: usize, place: Place) -> Result<Region> {
    let stride = stride(part);
    let len = stride * place.world_size;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // The memory is reserved: to fill the page table now saves a fault per page later.
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    let none = std::ptr::null_mut();
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let mapped = unsafe { rustix::mm::mmap(none, len, protection, flags, &file.fd, offset) };
    let start = mapped.map_err(|error| Error::io("map shared memory", error))?;
    let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| {
        Error::io("map shared memory", std::io::Error::other("mapped at address 0"))
    })?;
    let file = Arc::clone(file);
    Ok(Region { start, part, stride, place, file, offset, given_back: false })
}

/// Bytes from one rank's part to the next.
pub(super) fn stride(part: usize) -> usize {
    part.next_multiple_of(ALIGN)
}

/// `part` bytes per rank, visible to all ranks of a group.
///
/// **Invariant (turns)**: between two barriers a byte is either written by one rank and looked at
/// by no other, or only read. The own part belongs to its rank except between the barriers of a
/// collective on this region, which holds the region borrowed for that long.
#[derive(Debug)]
pub(super) struct Region {
    start: NonNull<u8>,
    part: usize,
    stride: usize,
    place: Place,
    file: Arc<File>,
    offset: u64,
    given_back: bool,
}

// SAFETY: the mapping is valid in every thread of the process, and `Region` is its only owner here.
unsafe impl Send for Region {}

// SAFETY: a shared reference only reads the own part, or atomics; what does more is unsafe to call.
unsafe impl Sync for Region {}

impl Region {
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// A number that no other region of this job has; not 0.
    pub(super) fn id(&self) -> u64 {
        self.offset
    }

    /// This rank's part.
    pub(super) fn own(&self) -> &[u8] {
        // SAFETY: by the turns, nobody else writes the own part outside collectives on the region,
        // and those hold `&mut self`.
        unsafe { self.part(self.place.rank, 0, self.part) }
    }

    /// This rank's part.
    pub(super) fn own_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `own`, and `&mut self` excludes other references from this process.
        unsafe { self.part_mut(self.place.rank, 0, self.part) }
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
        let start = self.address(rank, 0, size_of::<Cell>()).cast::<Cell>();
        // SAFETY: in bounds, aligned to a page, and a cell has only atomics: zeros are a valid cell
        // and sharing it is what it is for.
        unsafe { start.as_ref() }
    }

    fn control(&self) -> &Control {
        let start = self.address(0, 0, size_of::<Control>()).cast::<Control>();
        // SAFETY: as for `cell`.
        unsafe { start.as_ref() }
    }

    fn address(&self, rank: usize, offset: usize, count: usize) -> NonNull<u8> {
        assert!(rank < self.place.world_size, "rank {rank} of {}", self.place.world_size);
        assert!(offset + count <= self.part, "{offset} + {count} bytes of {}", self.part);
        // SAFETY: the sum is inside the mapping, by the two lines above.
        unsafe { self.start.add(rank * self.stride + offset) }
    }

    /// Lets the file have its memory back once this rank uses it no more. Not for cells: others look
    /// at them later.
    pub(super) fn give_back_on_drop(mut self) -> Self {
        self.given_back = true;
        self
    }

    /// Gives the own part's memory back to the system; the other ranks do the same with theirs.
    pub(super) fn give_back(&self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let start = self.offset + (self.place.rank * self.stride) as u64;
        if let Err(error) = rustix::fs::fallocate(&self.file.fd, flags, start, self.stride as u64) {
            tracing::warn!(%error, "could not give shared memory back");
        }
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
        if self.given_back && !self.file.broken.load(Ordering::Relaxed) {
            self.give_back();
        }
        let len = self.stride * self.place.world_size;
        // SAFETY: the mapping is this region's own and nothing borrows from it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), len) };
        if let Err(error) = unmapped {
            tracing::warn!(%error, "could not unmap shared memory");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_region_gives_its_memory_back() -> Result<()> {
        let memory = Memory::create()?;
        let blocks = || rustix::fs::fstat(memory.fd()).expect("an open file").st_blocks;
        let before = blocks();
        let alone = Place { group: FIRST, rank: 0, world_size: 1 };
        let start = memory.reserve(&[1 << 20], 1)?;
        let region = memory.map(start, 1 << 20, alone)?.give_back_on_drop();
        assert!(blocks() > before);
        drop(region);
        assert_eq!(blocks(), before);
        assert!(memory.reserve(&[1 << 20], 1)? > start, "its place is not used again");
        Ok(())
    }
}
