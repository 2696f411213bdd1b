//! Large parameters by chunks, on the current rayon pool.
//!
//! A vector is halved, always between two chunks, until one chunk is left. Where the cuts are and
//! which partial sums are added to which depends on the length alone, so neither an update nor a
//! norm depends, bit for bit, on the number of threads. With one thread, or one chunk, the halves
//! come one after the other on the calling thread.

use crate::rule::MAX_STATES;

/// Elements per chunk: 128 KiB of f32 from each of two to five vectors, some 10 microseconds of
/// work, against well under one for handing it to another thread.
pub const CHUNK: usize = 1 << 15;

/// A parameter, or a chunk of it: what an update reads and writes.
#[derive(Debug)]
pub struct Parts<'a> {
    /// Its value.
    pub value: &'a mut [f32],
    /// Its gradient.
    pub grad: &'a [f32],
    /// What the rule keeps for it.
    pub state: [&'a mut [f32]; MAX_STATES],
}

impl<'a> Parts<'a> {
    /// The same, so that it can be gone through twice.
    pub fn again(&mut self) -> Parts<'_> {
        let state = self.state.each_mut().map(|state| &mut **state);
        Parts { value: self.value, grad: self.grad, state }
    }

    /// Does `work` on every chunk.
    pub fn for_each(self, work: impl Fn(Parts<'a>) + Sync) {
        self.sums(|chunk| {
            work(chunk);
            [0.0; 2]
        });
    }

    /// Does `work` on every chunk and adds up, in a fixed order, what it gives.
    pub fn sums(self, work: impl Fn(Parts<'a>) -> [f64; 2] + Sync) -> [f64; 2] {
        by_chunks(self, &work)
    }
}

/// What can be cut in two.
pub(crate) trait Split: Sized + Send {
    fn elements(&self) -> usize;
    fn split(self, at: usize) -> (Self, Self);
}

impl Split for Parts<'_> {
    fn elements(&self) -> usize {
        self.value.len()
    }

    fn split(self, at: usize) -> (Self, Self) {
        let (value, value_rest) = self.value.split_at_mut(at);
        let (grad, grad_rest) = self.grad.split_at(at);
        let mut rest = [(); MAX_STATES].map(|()| &mut [] as &mut [f32]);
        let mut index = 0;
        let state = self.state.map(|state| {
            let (head, tail) = state.split_at_mut(at.min(state.len()));
            rest[index] = tail;
            index += 1;
            head
        });
        (Self { value, grad, state }, Self { value: value_rest, grad: grad_rest, state: rest })
    }
}

impl Split for &[f32] {
    fn elements(&self) -> usize {
        self.len()
    }

    fn split(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl Split for &mut [f32] {
    fn elements(&self) -> usize {
        self.len()
    }

    fn split(self, at: usize) -> (Self, Self) {
        self.split_at_mut(at)
    }
}

/// Does `work` on every chunk of `whole` and adds up what it gives.
pub(crate) fn by_chunks<S: Split>(whole: S, work: &(impl Fn(S) -> [f64; 2] + Sync)) -> [f64; 2] {
    // Small parameters are most of them: they do not even ask for the pool.
    let parallel = whole.elements() > CHUNK && rayon::current_num_threads() > 1;
    halves(whole, work, parallel)
}

fn halves<S: Split>(whole: S, work: &(impl Fn(S) -> [f64; 2] + Sync), parallel: bool) -> [f64; 2] {
    let chunks = whole.elements().div_ceil(CHUNK);
    if chunks < 2 {
        return work(whole);
    }
    let (first, second) = whole.split(chunks / 2 * CHUNK);
    let (first, second) = if parallel {
        rayon::join(|| halves(first, work, true), || halves(second, work, true))
    } else {
        (halves(first, work, false), halves(second, work, false))
    };
    [first[0] + second[0], first[1] + second[1]]
}

/// The sum of squares of one chunk, in f64 and eight lanes: as exact as needed, and it vectorises.
pub(crate) fn squares(values: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; 8];
    let (whole, rest) = values.as_chunks::<8>();
    for eight in whole {
        for (lane, &x) in lanes.iter_mut().zip(eight) {
            *lane += f64::from(x) * f64::from(x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += f64::from(x) * f64::from(x);
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_in_one_chunk_and_no_chunk_is_too_long() {
        for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 5 * CHUNK + 7] {
            let (mut value, grad) = (vec![0.0; len], vec![1.0; len]);
            let mut state = vec![0.0; len];
            let parts =
                Parts { value: &mut value, grad: &grad, state: [&mut state, &mut [], &mut []] };
            let [sum, longest] = parts.sums(|chunk| {
                assert!(chunk.value.len() <= CHUNK);
                assert_eq!(chunk.value.len(), chunk.state[0].len());
                assert!(chunk.state[1].is_empty());
                chunk.value.iter_mut().for_each(|x| *x += 1.0);
                chunk.state[0].iter_mut().for_each(|x| *x += 1.0);
                [chunk.grad.len() as f64, 0.0]
            });
            assert_eq!([sum, longest], [len as f64, 0.0]);
            assert!(value.iter().chain(&state).all(|&x| x == 1.0), "{len}");
        }
    }

    #[test]
    fn squares_of_any_length_add_up() {
        for len in [0, 1, 7, 8, 9, 100] {
            let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let expected: usize = (0..len).map(|i| i * i).sum();
            assert_eq!(squares(&values), expected as f64);
        }
    }
}
