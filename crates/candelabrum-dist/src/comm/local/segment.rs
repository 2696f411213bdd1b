//! The shared segment: one anonymous file in memory (`memfd`), mapped by every rank.
//!
//! The file is a sequence of *regions*. A region has one part for every rank of a group, all of the
//! same length. One rank of the group allocates the next bytes of the file for a region, and a
//! counter at the start of the file holds the next free byte. Then every rank reserves its own
//! part. So the kernel takes memory near the rank's processor, and a shortage of memory is an error
//! at once and not a SIGBUS later. A dropped region returns its memory, and its place in the file
//! stays empty. The file has no name and vanishes with its last process.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::cell::BarrierCell;
use super::region::{
    ALIGN, LocalMember, MappedRegion, SegmentStart, SharedFile, give_back, stride,
};
use crate::{Error, Result};

/// The start of the first region, after the counter.
const FIRST: u64 = ALIGN as u64;

/// The number of the group of all ranks, whose regions are the first.
pub(super) const WORLD: u64 = FIRST;

/// A rank's access to the file.
#[derive(Debug)]
pub(super) struct Segment {
    file: Arc<SharedFile>,
    control: MappedRegion,
}

impl Segment {
    /// Creates the file.
    pub(super) fn create() -> Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Some hosts demand that such a file can never be executed. Kernels before 6.3 do not know
        // the flag.
        let fd = match rustix::fs::memfd_create("candelabrum", flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => rustix::fs::memfd_create("candelabrum", flags),
            other => other,
        };
        let fd = fd.map_err(|error| Error::io("create shared memory", error))?;
        // If a mapped file becomes shorter, a process that uses the missing part dies of SIGBUS.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK)
            .map_err(|error| Error::io("seal shared memory", error))?;
        reserve(&fd, 0, FIRST)?;
        let segment = Self::open(fd)?;
        segment.control.control().taken.store(FIRST, Ordering::SeqCst);
        Ok(segment)
    }

    /// Accepts the file that another rank has created for a world of `world_size` ranks.
    ///
    /// # Errors
    /// A file that is too short, or can become shorter. Its use could end this process by SIGBUS.
    pub(super) fn received(fd: OwnedFd, world_size: usize) -> Result<Self> {
        let ask = |error| Error::io("look at the shared memory that was received", error);
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(ask)?;
        let size = rustix::fs::fstat(&fd).map_err(ask)?.st_size;
        let least = FIRST as usize + world_size * stride(size_of::<BarrierCell>());
        if !seals.contains(SealFlags::SHRINK) || usize::try_from(size).is_ok_and(|s| s < least) {
            let what = format!("shared memory of {size} bytes with the seals {seals:?}");
            return Err(Error::Protocol { what });
        }
        Self::open(fd)
    }

    fn open(fd: OwnedFd) -> Result<Self> {
        let file = Arc::new(SharedFile { fd, broken: AtomicBool::new(false) });
        let alone = LocalMember { group: 0, rank: 0, world_size: 1 };
        let control = MappedRegion::map(&file, 0, size_of::<SegmentStart>(), alone)?;
        Ok(Self { file, control })
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.file.fd
    }

    /// Allocates room in the file for one region per element of `parts`. A region has that number
    /// of bytes for each of `world_size` ranks. Returns the start of the first region. Only one
    /// rank of a group calls this function.
    ///
    /// # Errors
    /// More bytes than a file can have.
    pub(super) fn take(&self, parts: &[usize], world_size: usize) -> Result<u64> {
        let len: u128 = parts.iter().map(|&part| stride(part) as u128 * world_size as u128).sum();
        let taken = &self.control.control().taken;
        let next = |start: u64| {
            let end = u128::from(start) + len;
            u64::try_from(end).ok().filter(|&end| end <= i64::MAX as u64)
        };
        taken
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next)
            .map_err(|_| Error::io(format!("reserve {len} bytes of shared memory"), Errno::FBIG))
    }

    /// Reserves the parts of `ranks` in a region of `part` bytes per rank.
    pub(super) fn reserve(&self, start: u64, part: usize, ranks: Range<usize>) -> Result<()> {
        let stride = stride(part) as u64;
        reserve(&self.file.fd, start + ranks.start as u64 * stride, ranks.len() as u64 * stride)
    }

    /// Returns the memory of a region of one part, which nobody has mapped, to the system.
    pub(super) fn give_back(&self, start: u64, part: usize) {
        give_back(&self.file.fd, start, stride(part) as u64);
    }

    /// Maps a region of `part` bytes per rank, whose parts all ranks have reserved.
    pub(super) fn map(&self, start: u64, part: usize, member: LocalMember) -> Result<MappedRegion> {
        MappedRegion::map(&self.file, start, part, member)
    }

    /// Refuses a region that is not wholly in the file. Its use could end this process by SIGBUS.
    pub(super) fn check(&self, start: u64, len: u64) -> Result<()> {
        let size = rustix::fs::fstat(&self.file.fd)
            .map_err(|error| Error::io("look at the shared memory", error))?
            .st_size;
        let end = start.checked_add(len).and_then(|end| i64::try_from(end).ok());
        let is_region = start >= FIRST && start.is_multiple_of(ALIGN as u64);
        match end {
            Some(end) if end <= size && is_region => Ok(()),
            _ => {
                let what = format!("{len} bytes at {start} of shared memory of {size} bytes");
                Err(Error::Protocol { what })
            }
        }
    }

    /// From now on dropped regions keep their memory, because another rank may still write to them.
    pub(super) fn keep_everything(&self) {
        self.file.broken.store(true, Ordering::Relaxed);
    }
}

fn reserve(fd: &OwnedFd, start: u64, len: u64) -> Result<()> {
    rustix::fs::fallocate(fd, FallocateFlags::empty(), start, len).map_err(|error| {
        let what = format!("reserve {len} bytes of shared memory");
        match getrlimit(Resource::Fsize).current {
            Some(limit) if error == Errno::FBIG => Error::io(
                format!(
                    "{what}, which count as a file, where files may have {limit} bytes (`ulimit -f` raises the limit)"
                ),
                error,
            ),
            _ => Error::io(what, error),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: LocalMember = LocalMember { group: WORLD, rank: 0, world_size: 1 };

    #[test]
    fn a_dropped_region_gives_its_memory_back() -> Result<()> {
        let segment = Segment::create()?;
        let blocks = || rustix::fs::fstat(segment.fd()).expect("an open file").st_blocks;
        let before = blocks();
        let start = segment.take(&[1 << 20], 1)?;
        segment.reserve(start, 1 << 20, 0..1)?;
        let region = segment.map(start, 1 << 20, ALONE)?.give_back_on_drop();
        assert!(blocks() > before);
        drop(region);
        assert_eq!(blocks(), before);
        assert!(segment.take(&[1 << 20], 1)? > start, "its place is not used again");
        Ok(())
    }

    #[test]
    fn a_rank_reserves_its_own_part_alone() -> Result<()> {
        let segment = Segment::create()?;
        let blocks = || rustix::fs::fstat(segment.fd()).expect("an open file").st_blocks;
        let (before, part) = (blocks(), 1 << 20);
        let start = segment.take(&[part], 4)?;
        segment.reserve(start, part, 2..3)?;
        // A block has 512 bytes.
        assert_eq!(blocks() - before, part as i64 / 512);
        Ok(())
    }

    #[test]
    fn a_region_maps_its_own_part_and_the_slices_that_it_reduces() -> Result<()> {
        let (part, world_size) = (1 << 20, 16);
        let segment = Segment::create()?;
        let start = segment.take(&[part], world_size)?;
        segment.reserve(start, part, 0..world_size)?;
        let member = LocalMember { group: WORLD, rank: 3, world_size };
        let region = segment.map(start, part, member)?;
        let resident = resident_bytes(&region);
        if resident == 0 {
            println!("left out: this kernel does not fill page tables on demand");
            return Ok(());
        }
        let slices = part / world_size * (world_size - 1);
        assert_eq!(resident, part + slices);
        Ok(())
    }

    #[test]
    fn the_file_can_never_be_executed() -> Result<()> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL;
        if rustix::fs::memfd_create("a try", flags).is_err() {
            println!("left out: kernels before 6.3 have no such files");
            return Ok(());
        }
        let seals = rustix::fs::fcntl_get_seals(Segment::create()?.fd()).expect("its seals");
        // The bit of F_SEAL_EXEC.
        assert!(seals.contains(SealFlags::from_bits_retain(0x20)), "{seals:?}");
        Ok(())
    }

    /// The bytes of a region that are in this process's page table.
    fn resident_bytes(region: &MappedRegion) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("this process's memory");
        let before = region.member().rank * region.own().len();
        let head = format!("{:x}-", region.own().as_ptr() as usize - before);
        let after = &maps[maps.find(&head).expect("the mapping")..];
        let line = after.lines().find(|line| line.starts_with("Rss:")).expect("its resident part");
        line.split_whitespace().nth(1).and_then(|kb| kb.parse::<usize>().ok()).expect("kB") * 1024
    }

    #[test]
    fn slices_cover_all_bytes_once() {
        for (bytes, world_size) in [(0, 3), (1, 5), (64, 2), (1000, 3), (4096, 64), (100_000, 17)] {
            let members =
                (0..world_size).map(|rank| LocalMember { group: WORLD, rank, world_size });
            let end = members.fold(0, |end, member| {
                let slice = member.slice(bytes);
                assert!(slice.is_empty() || slice.start == end, "{bytes} over {world_size}");
                end.max(slice.end)
            });
            assert_eq!(end, bytes);
        }
    }

    #[test]
    fn more_than_a_file_can_have_is_refused_and_takes_nothing() -> Result<()> {
        let segment = Segment::create()?;
        for (part, world_size) in [(1 << 62, 2), (usize::MAX / 2, 64)] {
            let message = segment.take(&[part], world_size).unwrap_err().to_string();
            assert!(message.contains("bytes of shared memory"), "{message}");
        }
        assert_eq!(segment.take(&[1], 1)?, FIRST);
        Ok(())
    }

    #[test]
    fn a_file_that_could_end_this_process_is_refused() -> Result<()> {
        let file = |flags: MemfdFlags| {
            rustix::fs::memfd_create("a stranger's", flags | MemfdFlags::CLOEXEC).expect("a file")
        };
        let refused = |fd: OwnedFd| {
            let message = Segment::received(fd, 2).expect_err("it is refused").to_string();
            assert!(message.contains("shared memory"), "{message}");
        };
        let can_shrink = file(MemfdFlags::empty());
        reserve(&can_shrink, 0, 1 << 20)?;
        refused(can_shrink);
        let sealed = |len| -> Result<OwnedFd> {
            let sealed = file(MemfdFlags::ALLOW_SEALING);
            rustix::fs::fcntl_add_seals(&sealed, SealFlags::SHRINK).expect("a seal");
            reserve(&sealed, 0, len).map(|()| sealed)
        };
        refused(sealed(FIRST)?);
        Segment::received(sealed(3 * FIRST)?, 2)?;
        refused(OwnedFd::from(tempfile::tempfile().expect("a file of a file system")));
        Ok(())
    }
}
