//! The vectors of one parameter's update.

use candelabrum_memory::chunks::{Splittable, by_chunks};

/// The largest number of vectors that a rule can keep for a parameter.
pub const MAX_STATES: usize = 3;

/// A parameter, or a chunk of it, with its gradient and state.
#[derive(Debug)]
pub struct ParamParts<'a> {
    /// The value, which the update writes.
    pub value: &'a mut [f32],
    /// The gradient.
    pub grad: &'a [f32],
    /// The state vectors of the rule.
    pub state: [&'a mut [f32]; MAX_STATES],
}

impl<'a> ParamParts<'a> {
    /// Borrows the same vectors again, for a second pass over them.
    pub fn again(&mut self) -> ParamParts<'_> {
        let state = self.state.each_mut().map(|state| &mut **state);
        ParamParts { value: self.value, grad: self.grad, state }
    }

    /// Runs `work` on every chunk. What is inlined into `work` uses this machine's vectors
    /// ([`candelabrum_memory::simd`]).
    pub fn for_each(self, work: impl Fn(ParamParts<'a>) + Sync) {
        self.sums(
            #[inline(always)]
            |chunk| {
                work(chunk);
                [0.0; 2]
            },
        );
    }

    /// Runs `work` on every chunk and adds up its results in a fixed order.
    pub fn sums(self, work: impl Fn(ParamParts<'a>) -> [f64; 2] + Sync) -> [f64; 2] {
        by_chunks(self, work)
    }
}

impl Splittable for ParamParts<'_> {
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

#[cfg(test)]
mod tests {
    use candelabrum_memory::chunks::CHUNK;

    use super::*;

    #[test]
    fn every_element_is_in_one_chunk_and_no_chunk_is_too_long() {
        for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 5 * CHUNK + 7] {
            let (mut value, grad) = (vec![0.0; len], vec![1.0; len]);
            let mut state = vec![0.0; len];
            let parts = ParamParts {
                value: &mut value,
                grad: &grad,
                state: [&mut state, &mut [], &mut []],
            };
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
}
