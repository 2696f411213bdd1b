//! Memory that buckets use one after the other: a bucket has some from its first gradient until it has been sent and
//! its averages have been taken out.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candelabrum_memory::{ElementType, FlatTensor, Location, Result};

/// The memory. Clones share it.
#[derive(Clone, Debug)]
pub struct BucketPool(Arc<Mutex<SpareMemory>>);

/// What no bucket has at the moment, in the order in which it was given back. So ranks whose buckets come and go in the
/// same order lend the same memory to the same bucket.
#[derive(Debug)]
struct SpareMemory {
    buffers: VecDeque<FlatTensor>,
    location: Location,
    /// Elements of a buffer. A larger bucket gets memory of its own.
    room: usize,
    /// The number of buffers that are kept.
    kept: usize,
    /// The buffers that were allocated because all were lent.
    added: usize,
}

impl BucketPool {
    /// A pool of `buffers`, which have room for `room` f32 numbers each and are at `location`.
    pub fn new(buffers: Vec<FlatTensor>, location: Location, room: usize) -> Self {
        let kept = buffers.len();
        let (buffers, added) = (buffers.into(), 0);
        Self(Arc::new(Mutex::new(SpareMemory { buffers, location, room, kept, added })))
    }

    /// Memory for a bucket of `len` elements, with arbitrary content. If all buffers are lent, it is allocated.
    ///
    /// # Errors
    /// Too little memory.
    pub fn lend(&self, len: usize) -> Result<FlatTensor> {
        let mut spare = self.lock();
        if len > spare.room {
            return FlatTensor::zeros_on(&spare.location, ElementType::F32, len);
        }
        let buffer = match spare.buffers.pop_front() {
            Some(buffer) => buffer,
            None => {
                spare.added += 1;
                FlatTensor::zeros_on(&spare.location, ElementType::F32, spare.room)?
            }
        };
        buffer.with_len(len)
    }

    /// Takes memory back.
    pub fn give_back(&self, buffer: FlatTensor) {
        let mut spare = self.lock();
        if buffer.len() <= spare.room && spare.buffers.len() < spare.kept {
            spare.buffers.push_back(buffer);
        }
    }

    /// The number of buffers that were allocated since the last call because all were lent.
    pub fn take_added(&self) -> usize {
        std::mem::take(&mut self.lock().added)
    }

    /// Elements of a buffer. A larger bucket gets memory of its own.
    pub fn room(&self) -> usize {
        self.lock().room
    }

    /// Calls `f` with all buffers that are not lent now.
    pub fn each_spare(&self, f: &mut dyn FnMut(&FlatTensor)) {
        self.lock().buffers.iter().for_each(f);
    }

    fn lock(&self) -> MutexGuard<'_, SpareMemory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_lent_in_the_order_of_their_return_and_large_buckets_have_their_own() {
        let buffers =
            vec![FlatTensor::from_slice(&[1.0_f32; 8]), FlatTensor::from_slice(&[2.0_f32; 8])];
        let pool = BucketPool::new(buffers, Location::HOST, 8);
        let first = pool.lend(3).unwrap();
        let large = pool.lend(9).unwrap();
        assert_eq!((first.to_vec::<f32>().unwrap(), large.len()), (vec![1.0; 3], 9));
        let second = pool.lend(8).unwrap();
        let third = pool.lend(2).unwrap();
        assert_eq!((second.to_vec::<f32>().unwrap()[0], third.len()), (2.0, 2));
        assert_eq!((pool.take_added(), pool.take_added()), (1, 0));
        for buffer in [large, second, first, third] {
            pool.give_back(buffer);
        }
        // Only two are kept, the second one first.
        assert_eq!(pool.lend(1).unwrap().to_vec::<f32>().unwrap(), [2.0]);
        assert_eq!(pool.lend(1).unwrap().to_vec::<f32>().unwrap(), [1.0]);
        assert_eq!(pool.lend(1).unwrap().to_vec::<f32>().unwrap(), [0.0]);
    }
}
