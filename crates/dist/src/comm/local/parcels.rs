//! The memory of parcels: regions of the segment with one part, which their sender uses again and again.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use candelabrum_memory::SharedMemory;
use parking_lot::Mutex;

use super::region::{Membership, Region};
use super::segment::Segment;
use crate::comm::network::{Note, Parcels, WhenRead};
use crate::{Error, Result};

/// Shorter messages go through the socket.
const LEAST: usize = 64 << 10;

/// The bytes of all parcels of this rank together. When they are all under way, messages go through the
/// socket.
const MOST: usize = 256 << 20;

/// The parcels of a rank.
pub(super) struct LocalParcels {
    segment: Arc<Segment>,
    own: Mutex<Own>,
    /// Regions of other ranks that no parcel uses now, by their starts.
    opened: Mutex<HashMap<u64, Region>>,
    /// This value, for the parcels that are open.
    me: Weak<Self>,
}

/// The regions in which this rank sends.
#[derive(Default)]
struct Own {
    /// By size.
    free: BTreeMap<usize, Vec<Region>>,
    /// By start: with their receivers.
    lent: HashMap<u64, (usize, Region)>,
    bytes: usize,
}

/// A region of one part, of which one process at a time has the only reference.
const ALONE: Membership = Membership { group: 0, rank: 0, world_size: 1 };

impl LocalParcels {
    pub(super) fn new(segment: Arc<Segment>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            segment,
            own: Mutex::default(),
            opened: Mutex::default(),
            me: me.clone(),
        })
    }

    /// A region of at least `len` bytes that is free, or a new one.
    fn room(&self, own: &mut Own, len: usize) -> Option<(usize, Region)> {
        let size = len.next_power_of_two();
        if let Some(region) = own.free.get_mut(&size).and_then(Vec::pop) {
            return Some((size, region));
        }
        if own.bytes + size > MOST {
            return None;
        }
        let start = self.segment.take(&[size], 1).ok()?;
        // Without this memory a message is slower, and nothing else is wrong.
        self.segment.reserve(start, size, 0..1).ok()?;
        let region = self.segment.map(start, size, ALONE).ok()?;
        own.bytes += size;
        Some((size, region))
    }
}

impl Parcels for LocalParcels {
    fn pack(&self, bytes: &[u8]) -> Option<Note> {
        let len = bytes.len();
        if len < LEAST {
            return None;
        }
        let (size, mut region) = self.room(&mut self.own.lock(), len)?;
        // The lock is not held, so several threads can pack at the same time.
        region.own_mut()[..len].copy_from_slice(bytes);
        let start = region.id();
        self.own.lock().lent.insert(start, (size, region));
        Some(Note { start, size: size as u64, len: len as u64 })
    }

    fn open(&self, note: Note, when_read: WhenRead) -> Result<Box<dyn SharedMemory>> {
        let Note { start, size, len } = note;
        let known = self.opened.lock().remove(&start);
        let region = match known {
            Some(region) => region,
            None => {
                self.segment.check(start, size)?;
                self.segment.map(start, size as usize, ALONE)?
            }
        };
        if len as usize > region.own().len() {
            let what = format!("a parcel of {len} bytes in {size}");
            return Err(Error::Protocol { what });
        }
        let (parcels, when_read) = (self.me.clone(), Some(when_read));
        Ok(Box::new(Parcel { region: Some(region), len: len as usize, parcels, when_read }))
    }

    fn take_back(&self, start: u64) {
        let mut own = self.own.lock();
        if let Some((size, region)) = own.lent.remove(&start) {
            own.free.entry(size).or_default().push(region);
        }
    }
}

/// The bytes of another rank's parcel.
struct Parcel {
    /// `Some` until the drop.
    region: Option<Region>,
    len: usize,
    parcels: Weak<LocalParcels>,
    /// `Some` until the drop.
    when_read: Option<WhenRead>,
}

impl SharedMemory for Parcel {
    fn bytes(&self) -> &[u8] {
        self.region.as_ref().map_or(&[], |region| &region.own()[..self.len])
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.region.as_mut().map_or(&mut [], |region| &mut region.own_mut()[..self.len])
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        // The region is put back first, because its sender may use it again at once.
        if let (Some(parcels), Some(region)) = (self.parcels.upgrade(), self.region.take()) {
            parcels.opened.lock().insert(region.id(), region);
        }
        if let Some(when_read) = self.when_read.take() {
            when_read();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_parcel_is_read_where_it_lies_and_its_memory_is_used_again() -> Result<()> {
        let segment = Arc::new(Segment::create()?);
        let (sender, receiver) =
            (LocalParcels::new(Arc::clone(&segment)), LocalParcels::new(segment));
        let read = Arc::new(AtomicUsize::new(0));
        let open = |note| {
            let read = Arc::clone(&read);
            let count = move || {
                read.fetch_add(1, Ordering::Relaxed);
            };
            receiver.open(note, Box::new(count))
        };
        assert_eq!(sender.pack(&[1; LEAST - 1]), None, "it is short");
        let first = sender.pack(&[1; LEAST + 1]).expect("room");
        let second = sender.pack(&[2; LEAST + 1]).expect("room");
        assert_ne!(first.start, second.start, "the first one is under way");
        let opened = open(first)?;
        assert!(opened.bytes().len() == LEAST + 1 && opened.bytes().iter().all(|&b| b == 1));
        drop(opened);
        assert_eq!(read.load(Ordering::Relaxed), 1);
        sender.take_back(first.start);
        let third = sender.pack(&[3; 2 * LEAST]).expect("room");
        assert_eq!(third.start, first.start);
        assert!(open(third)?.bytes().iter().all(|&b| b == 3));
        Ok(())
    }

    #[test]
    fn there_is_room_for_so_many_bytes_under_way_and_no_more() -> Result<()> {
        let parcels = LocalParcels::new(Arc::new(Segment::create()?));
        let bytes = vec![1; 16 << 20];
        let notes: Vec<Note> = std::iter::from_fn(|| parcels.pack(&bytes)).take(100).collect();
        assert_eq!(notes.len(), MOST / bytes.len());
        parcels.take_back(notes[3].start);
        assert_eq!(parcels.pack(&bytes).map(|note| note.start), Some(notes[3].start));
        Ok(())
    }

    #[test]
    fn a_note_of_memory_that_is_not_there_is_an_error() -> Result<()> {
        let parcels = LocalParcels::new(Arc::new(Segment::create()?));
        for (start, size) in [(1 << 40, 4096), (0, 1 << 40), (u64::MAX, 4096), (17, 4096)] {
            let note = Note { start, size, len: 8 };
            assert!(parcels.open(note, Box::new(|| ())).is_err(), "{start} {size}");
        }
        Ok(())
    }
}
