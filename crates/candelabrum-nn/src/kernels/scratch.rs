//! Recycled memory: for gradients in a backward pass, scratch, and the values that a forward saves.
//!
//! A training step requests the same sizes in the same order every time, so after the first steps
//! nothing is allocated. Each thread has its own pool without a lock, so memory stays in the cache
//! of the core that used it. If another thread drops a piece (a backward pass may run on another
//! thread than the forward pass), the piece waits behind a lock for its own thread.

use std::cell::RefCell;
use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::LocalKey;

use candelabrum_memory::FlatTensor;

/// A slice in recycled memory. When dropped, it returns to the pool of the thread that made it.
pub(crate) struct Pooled<T: Poolable> {
    memory: Vec<T>,
    len: usize,
    /// `None` for a slice without memory.
    home: Option<Returned<T>>,
}

/// Pieces of one thread's pool that other threads have dropped.
type Returned<T> = Arc<Mutex<Vec<Vec<T>>>>;

impl<T: Poolable> Pooled<T> {
    /// `len` elements with unspecified contents.
    pub(crate) fn new(len: usize) -> Self {
        let (mut memory, home) =
            T::pool().with_borrow_mut(|pool| (pool.take(len), Arc::clone(&pool.returned)));
        if memory.len() < len {
            memory.resize(len, T::default());
        }
        Self { memory, len, home: Some(home) }
    }

    /// `len` zeros.
    pub(crate) fn zeros(len: usize) -> Self {
        let mut values = Self::new(len);
        values.fill(T::default());
        values
    }

    /// A copy of `values`.
    pub(crate) fn copy_of(values: &[T]) -> Self {
        let mut copy = Self::new(values.len());
        copy.copy_from_slice(values);
        copy
    }

    /// No elements and no memory.
    pub(crate) fn none() -> Self {
        Self { memory: Vec::new(), len: 0, home: None }
    }
}

impl<T: Poolable> Deref for Pooled<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.memory[..self.len]
    }
}

impl<T: Poolable> DerefMut for Pooled<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.memory[..self.len]
    }
}

impl<T: Poolable> Drop for Pooled<T> {
    fn drop(&mut self) {
        let Some(home) = self.home.take() else { return };
        let mut memory = Some(mem::take(&mut self.memory));
        // The pool of a thread that is ending may be gone already. The pool is borrowed only for a
        // moment, and never while a slice is dropped.
        let _ = T::pool().try_with(|pool| match pool.try_borrow_mut() {
            Ok(mut pool) if Arc::ptr_eq(&pool.returned, &home) => {
                memory.take().into_iter().for_each(|memory| pool.put(memory));
            }
            _ => {}
        });
        if let Some(memory) = memory {
            home.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
        }
    }
}

impl<T: Poolable> fmt::Debug for Pooled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pooled({})", self.len)
    }
}

/// A pooled slice of either element type, or f32 numbers on a GPU.
#[derive(Debug)]
pub(crate) enum PooledValues {
    F32(Pooled<f32>),
    F64(Pooled<f64>),
    Gpu(FlatTensor),
}

impl PooledValues {
    /// The bytes of the memory, which may be larger than the values.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::F32(values) => values.memory.capacity() * size_of::<f32>(),
            Self::F64(values) => values.memory.capacity() * size_of::<f64>(),
            Self::Gpu(values) => values.len() * size_of::<f32>(),
        }
    }
}

/// The bytes of this thread's recycled memory that nothing uses now.
pub(crate) fn idle_bytes() -> usize {
    f32::pool().with_borrow(ScratchPool::idle_bytes)
        + f64::pool().with_borrow(ScratchPool::idle_bytes)
}

/// A piece with more than so many times the requested elements is not taken. What a forward saves for the
/// backward is lent until the end of the step: a few numbers for each row would keep the memory of a whole
/// gradient.
const TOO_LARGE: usize = 8;

/// Requests for fewer elements count as requests for so many.
const SMALL: usize = 128;

/// The unused memory of one thread.
#[derive(Debug)]
pub(crate) struct ScratchPool<T> {
    pieces: Vec<Vec<T>>,
    returned: Returned<T>,
    /// The number of elements lent now, and its maximum so far. Pieces in `returned` count as lent.
    lent: usize,
    most_lent: usize,
}

impl<T> ScratchPool<T> {
    fn new() -> Self {
        Self { pieces: Vec::new(), returned: Arc::default(), lent: 0, most_lent: 0 }
    }

    fn idle_bytes(&self) -> usize {
        let returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        let pieces = self.pieces.iter().chain(&*returned);
        pieces.map(|piece| piece.capacity() * size_of::<T>()).sum()
    }

    /// The smallest piece that is large enough and not [too large](TOO_LARGE). If there is none, the largest of
    /// the pieces that are too small is replaced by a new one.
    fn take(&mut self, len: usize) -> Vec<T> {
        let fitting = self.fitting(len).or_else(|| {
            self.collect_returned();
            self.fitting(len)
        });
        let piece = if let Some(index) = fitting {
            self.pieces.swap_remove(index)
        } else {
            let small = self.pieces.iter().enumerate().filter(|(_, piece)| piece.capacity() < len);
            if let Some((index, _)) = small.max_by_key(|(_, piece)| piece.capacity()) {
                drop(self.pieces.swap_remove(index));
            }
            Vec::with_capacity(len)
        };
        self.lent += piece.capacity();
        self.most_lent = self.most_lent.max(self.lent);
        piece
    }

    /// The number of the smallest piece of at least `len` elements that is not too large for them.
    fn fitting(&self, len: usize) -> Option<usize> {
        let most = len.max(SMALL).saturating_mul(TOO_LARGE);
        let pieces = self.pieces.iter().enumerate();
        let fits = pieces.filter(|(_, piece)| (len..=most).contains(&piece.capacity()));
        fits.min_by_key(|(_, piece)| piece.capacity()).map(|(index, _)| index)
    }

    /// Takes the pieces that other threads have dropped.
    fn collect_returned(&mut self) {
        let returned = Arc::clone(&self.returned);
        let mut returned = returned.lock().unwrap_or_else(PoisonError::into_inner);
        returned.drain(..).for_each(|piece| self.put(piece));
    }

    /// Keeps a piece, unless the pool would become larger than this thread needs: pieces of sizes
    /// that are no longer requested must not accumulate.
    fn put(&mut self, piece: Vec<T>) {
        self.lent = self.lent.saturating_sub(piece.capacity());
        let kept: usize = self.pieces.iter().map(Vec::capacity).sum();
        if kept + self.lent + piece.capacity() <= 2 * self.most_lent {
            self.pieces.push(piece);
        }
    }
}

/// An element type whose memory is recycled.
pub(crate) trait Poolable: Copy + Default + 'static {
    /// The memory of this thread.
    fn pool() -> &'static LocalKey<RefCell<ScratchPool<Self>>>;
    fn into_values(values: Pooled<Self>) -> PooledValues;
    /// The values, if they have this type.
    fn of_values(values: PooledValues) -> Option<Pooled<Self>>;
    /// The values, if they have this type.
    fn values(values: &PooledValues) -> Option<&[Self]>;
}

macro_rules! impl_poolable {
    ($float:ident, $variant:ident) => {
        impl Poolable for $float {
            fn pool() -> &'static LocalKey<RefCell<ScratchPool<Self>>> {
                thread_local!(
                    static POOL: RefCell<ScratchPool<$float>> = RefCell::new(ScratchPool::new());
                );
                &POOL
            }

            fn into_values(values: Pooled<Self>) -> PooledValues {
                PooledValues::$variant(values)
            }

            fn of_values(values: PooledValues) -> Option<Pooled<Self>> {
                if let PooledValues::$variant(values) = values { Some(values) } else { None }
            }

            fn values(values: &PooledValues) -> Option<&[Self]> {
                if let PooledValues::$variant(values) = values { Some(values) } else { None }
            }
        }
    };
}

impl_poolable!(f32, F32);
impl_poolable!(f64, F64);

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn memory_comes_back() {
        let first = Pooled::<f32>::new(5000);
        let address = first.as_ptr();
        drop(first);
        assert_eq!(Pooled::<f32>::new(4000).as_ptr(), address);
        assert_eq!(Pooled::<f32>::zeros(5000).as_ptr(), address);
    }

    #[test]
    fn pieces_in_use_do_not_overlap_and_the_best_fit_is_taken() {
        let (large, small) = (Pooled::<f64>::new(9000), Pooled::<f64>::new(90));
        let (large_at, small_at) = (large.as_ptr(), small.as_ptr());
        assert_ne!(large_at, small_at);
        drop((large, small));
        assert_eq!(Pooled::<f64>::new(50).as_ptr(), small_at);
        assert_eq!(Pooled::<f64>::new(5000).as_ptr(), large_at);
        // Values that are kept for long do not take a piece that is far too large for them.
        let saved = Pooled::<f64>::new(91);
        assert_eq!(Pooled::<f64>::new(9000).as_ptr(), large_at);
        drop(saved);
        assert_eq!(Pooled::<f64>::none().len(), 0);
    }

    #[test]
    fn memory_that_another_thread_drops_comes_back() {
        let (send, receive) = mpsc::channel::<Pooled<f32>>();
        let (dropped, wait) = mpsc::channel();
        let other = thread::spawn(move || {
            for values in receive {
                drop(values);
                dropped.send(()).expect("the test waits");
            }
        });
        // A new thread has its own pool.
        let pool = thread::spawn(move || {
            for _ in 0..100 {
                send.send(Pooled::new(3000)).expect("the other thread runs");
                wait.recv().expect("the other thread runs");
            }
            let count =
                |pool: &ScratchPool<f32>| pool.returned.lock().expect("nobody panics").len();
            f32::pool().with_borrow(|pool| (pool.most_lent, count(pool)))
        });
        // One piece, reused a hundred times.
        assert_eq!(pool.join().expect("the thread ends well"), (3000, 1));
        other.join().expect("the thread ends well");
    }
}
