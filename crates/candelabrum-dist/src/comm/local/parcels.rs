//! The memory of parcels: regions of the segment with one part, which their sender uses again and again.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use candelabrum_memory::SharedMemory;
use parking_lot::Mutex;

use super::region::{LocalMember, MappedRegion};
use super::segment::Segment;
use crate::comm::Payload;
use crate::comm::network::{ParcelNote, Parcels, WhenRead};
use crate::{Error, Result};

/// Shorter messages go through the socket.
const LEAST: usize = 64 << 10;

/// The bytes of all parcels of this rank together. When no free one is long enough, a message goes through
/// the socket.
const MOST: usize = 256 << 20;

/// The parcels of a rank.
pub(super) struct LocalParcels {
    segment: Arc<Segment>,
    own: Mutex<OwnRegions>,
    /// Regions of other ranks that no parcel uses now, by their starts.
    opened: Mutex<HashMap<u64, MappedRegion>>,
    /// This value, for the parcels that are open.
    me: Weak<Self>,
}

/// The regions in which this rank sends.
#[derive(Default)]
struct OwnRegions {
    /// By size.
    free: BTreeMap<usize, Vec<MappedRegion>>,
    /// By start: with their receivers.
    lent: HashMap<u64, SizedRegion>,
    bytes: usize,
}

/// A region, and the bytes that were asked for when it was made.
type SizedRegion = (usize, MappedRegion);

/// A region of one part, of which one process at a time has the only reference.
const ALONE: LocalMember = LocalMember { group: 0, rank: 0, world_size: 1 };

impl LocalParcels {
    pub(super) fn new(segment: Arc<Segment>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            segment,
            own: Mutex::default(),
            opened: Mutex::default(),
            me: me.clone(),
        })
    }

    fn draft(&self, len: usize) -> Option<ParcelDraft> {
        if len < LEAST {
            return None;
        }
        let room = self.room(&mut self.own.lock(), len)?;
        Some(ParcelDraft { room: Some(room), parcels: self.me.clone() })
    }

    /// A region of at least `len` bytes that is free, or a new one.
    fn room(&self, own: &mut OwnRegions, len: usize) -> Option<SizedRegion> {
        // Eight sizes up to each power of two, so that messages of similar lengths share memory.
        let size = len.next_multiple_of(len.next_power_of_two() / 8);
        if let Some(region) = own.free.get_mut(&size).and_then(Vec::pop) {
            return Some((size, region));
        }
        if own.bytes + size > MOST {
            let (&size, regions) = own.free.range_mut(size..).find(|(_, free)| !free.is_empty())?;
            return Some((size, regions.pop()?));
        }
        let start = self.segment.take(&[size], 1).ok()?;
        // Without this memory a message is slower, and nothing else is wrong.
        self.segment.reserve(start, size, 0..1).ok()?;
        let Ok(region) = self.segment.map(start, size, ALONE) else {
            self.segment.give_back(start, size);
            return None;
        };
        own.bytes += size;
        Some((size, region))
    }
}

impl Parcels for LocalParcels {
    fn alloc(&self, len: usize) -> Option<Box<dyn SharedMemory>> {
        Some(Box::new(self.draft(len)?))
    }

    fn pack(&self, payload: &mut Payload) -> Option<ParcelNote> {
        let len = payload.byte_len();
        let draft = payload.shared_memory::<ParcelDraft>().filter(|draft| draft.is_of(self));
        let room = draft.and_then(|draft| draft.room.take()).or_else(|| {
            let mut draft = self.draft(len)?;
            // The lock is not held, so several threads can pack at the same time.
            draft.bytes_mut()[..len].copy_from_slice(payload.bytes());
            draft.room.take()
        })?;
        *payload = Payload::empty();
        let (start, size) = (room.1.id(), room.0 as u64);
        self.own.lock().lent.insert(start, room);
        Some(ParcelNote { start, size, len: len as u64 })
    }

    fn open(&self, note: ParcelNote, when_read: WhenRead) -> Result<Box<dyn SharedMemory>> {
        let ParcelNote { start, size, len } = note;
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
        if let Some(room) = own.lent.remove(&start) {
            own.put_back(room);
        }
    }
}

impl OwnRegions {
    fn put_back(&mut self, (size, region): SizedRegion) {
        self.free.entry(size).or_default().push(region);
    }
}

/// The memory of a message that has not been sent.
struct ParcelDraft {
    /// `Some` until the message is sent.
    room: Option<SizedRegion>,
    parcels: Weak<LocalParcels>,
}

impl ParcelDraft {
    fn is_of(&self, parcels: &LocalParcels) -> bool {
        self.parcels.ptr_eq(&parcels.me)
    }
}

impl SharedMemory for ParcelDraft {
    fn bytes(&self) -> &[u8] {
        self.room.as_ref().map_or(&[], |(_, region)| region.own())
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.room.as_mut().map_or(&mut [], |(_, region)| region.own_mut())
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Drop for ParcelDraft {
    fn drop(&mut self) {
        if let (Some(parcels), Some(room)) = (self.parcels.upgrade(), self.room.take()) {
            parcels.own.lock().put_back(room);
        }
    }
}

/// The bytes of another rank's parcel.
struct Parcel {
    /// `Some` until the drop.
    region: Option<MappedRegion>,
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

    use candelabrum_memory::{ElementType, FlatTensor};

    use super::*;

    fn message(len: usize, byte: u8) -> Payload {
        Payload::from_slice(&vec![byte; len])
    }

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
        let mut short = message(LEAST - 1, 1);
        assert_eq!((sender.pack(&mut short), short.len()), (None, LEAST - 1));
        let first = sender.pack(&mut message(LEAST + 1, 1)).expect("room");
        let second = sender.pack(&mut message(LEAST + 1, 2)).expect("room");
        assert_ne!(first.start, second.start, "the first one is under way");
        let opened = open(first)?;
        assert!(opened.bytes().len() == LEAST + 1 && opened.bytes().iter().all(|&b| b == 1));
        drop(opened);
        assert_eq!(read.load(Ordering::Relaxed), 1);
        sender.take_back(first.start);
        let third = sender.pack(&mut message(LEAST + 7, 3)).expect("room");
        assert_eq!(third.start, first.start);
        assert!(open(third)?.bytes().iter().all(|&b| b == 3));
        Ok(())
    }

    #[test]
    fn a_message_that_was_written_in_a_parcel_is_not_copied() -> Result<()> {
        let segment = Arc::new(Segment::create()?);
        let (sender, other) = (LocalParcels::new(Arc::clone(&segment)), LocalParcels::new(segment));
        let write = || {
            let memory = sender.alloc(LEAST + 1).expect("room");
            let mut payload = Payload::from(FlatTensor::shared(ElementType::U8, LEAST + 1, memory));
            payload.bytes_mut().fill(4);
            payload
        };
        let mut payload = write();
        let start = payload
            .shared_memory::<ParcelDraft>()
            .and_then(|draft| Some(draft.room.as_ref()?.1.id()));
        // A message that is not sent gives its memory back.
        drop(payload);
        let mut payload = write();
        let note = sender.pack(&mut payload).expect("room");
        assert!(payload.is_empty());
        assert_eq!((Some(note.start), note.len), (start, LEAST as u64 + 1));
        assert!(other.open(note, Box::new(|| ()))?.bytes().iter().all(|&b| b == 4));
        // The memory of another communicator is copied.
        let note = other.pack(&mut write()).expect("room");
        assert_eq!(sender.own.lock().lent.len(), 1, "the sender's second message was not sent");
        assert!(sender.open(note, Box::new(|| ()))?.bytes().iter().all(|&b| b == 4));
        assert!(sender.alloc(LEAST - 1).is_none());
        Ok(())
    }

    #[test]
    fn there_is_room_for_so_many_bytes_under_way_and_no_more() -> Result<()> {
        let parcels = LocalParcels::new(Arc::new(Segment::create()?));
        let pack = || parcels.pack(&mut message(16 << 20, 1));
        let notes: Vec<ParcelNote> = std::iter::from_fn(pack).take(100).collect();
        assert_eq!(notes.len(), MOST / (16 << 20));
        parcels.take_back(notes[3].start);
        assert_eq!(pack().map(|note| note.start), Some(notes[3].start));
        // A shorter message takes a longer region if there is no other one.
        parcels.take_back(notes[4].start);
        let note = parcels.pack(&mut message(LEAST, 1)).expect("room");
        assert_eq!((note.start, note.size), (notes[4].start, notes[4].size));
        parcels.take_back(note.start);
        assert_eq!(pack().map(|note| note.start), Some(notes[4].start));
        Ok(())
    }

    #[test]
    fn a_note_of_memory_that_is_not_there_is_an_error() -> Result<()> {
        let parcels = LocalParcels::new(Arc::new(Segment::create()?));
        for (start, size) in [(1 << 40, 4096), (0, 1 << 40), (u64::MAX, 4096), (17, 4096)] {
            let note = ParcelNote { start, size, len: 8 };
            assert!(parcels.open(note, Box::new(|| ())).is_err(), "{start} {size}");
        }
        Ok(())
    }
}
