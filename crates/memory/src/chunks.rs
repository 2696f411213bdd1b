//! Large vectors in chunks, on the current rayon pool.
//!
//! A vector is halved, always between two chunks, until one chunk is left. The places of the cuts
//! and the order in which partial sums are added depend only on the length. So the bits of an
//! update or a norm do not depend on the number of threads. With one thread or one chunk, the
//! calling thread processes the halves one after the other.

/// Elements per chunk: 128 KiB of f32 from each of two to five vectors. A chunk is about 10
/// microseconds of work, and passing it to another thread takes well under 1 microsecond.
pub const CHUNK: usize = 1 << 15;

/// A vector, or several of equal length, that can be cut in two.
pub trait Split: Sized + Send {
    /// The length.
    fn elements(&self) -> usize;
    /// The first `at` elements, and the rest.
    fn split(self, at: usize) -> (Self, Self);
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

/// Runs `work` on every chunk of `whole` and adds up the pairs that it returns, in a fixed order.
pub fn by_chunks<S: Split>(whole: S, work: &(impl Fn(S) -> [f64; 2] + Sync)) -> [f64; 2] {
    // Most parameters are small, so they do not even look up the pool.
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

/// The sum of squares of one chunk, in f64 and eight lanes: precise enough, and it vectorises.
pub fn squares(values: &[f32]) -> f64 {
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
    fn squares_of_any_length_add_up() {
        for len in [0, 1, 7, 8, 9, 100] {
            let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let expected: usize = (0..len).map(|i| i * i).sum();
            assert_eq!(squares(&values), expected as f64);
        }
    }
}
