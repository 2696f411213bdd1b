//! The all-reduce of this project, in a buffer of the communicator or in the caller's memory.

use std::time::Duration;

use anyhow::Context;
use candelabrum::dist::{Collective, ElementType, Payload, ReduceOp, World};

use crate::Numbers;
use crate::measure::Ranks;
use crate::talk::{Event, Request};

/// One rank.
pub(crate) struct Ours<'a> {
    world: &'a World,
    numbers: Numbers,
    late: Duration,
    /// `None` only while the buffer is being reduced.
    segment: Option<Payload>,
    slice: Vec<f32>,
}

impl<'a> Ours<'a> {
    pub(crate) fn new(world: &'a World, numbers: Numbers, late_ms: u64) -> Self {
        let late = Duration::from_millis(late_ms);
        Self { world, numbers, late, segment: None, slice: Vec::new() }
    }

    fn values(&mut self) -> anyhow::Result<&mut [f32]> {
        match self.numbers {
            Numbers::Segment => Ok(self.segment.as_mut().context("no buffer")?.as_mut_slice()?),
            Numbers::Slice => Ok(&mut self.slice),
        }
    }
}

impl Ranks for Ours<'_> {
    fn ready(&self) -> Event {
        Event::Ready { backend: self.world.backend(), ranks: self.world.world_size() }
    }

    fn is_root(&self) -> bool {
        self.world.is_root()
    }

    fn share(&mut self, request: Option<Request>) -> anyhow::Result<Option<Request>> {
        let mut words = request.map_or([-1.0, 0.0], |r| [r.elements as f64, r.seconds]);
        self.world.comm().broadcast(&mut words, 0)?;
        let [elements, seconds] = words;
        Ok((elements >= 0.0).then_some(Request { elements: elements as usize, seconds }))
    }

    fn prepare(&mut self, elements: usize) -> anyhow::Result<bool> {
        // Frees the old buffer first, because two large buffers may not fit.
        (self.segment, self.slice) = (None, Vec::new());
        match self.numbers {
            Numbers::Segment => {
                self.segment = Some(self.world.comm().alloc(ElementType::F32, elements)?);
            }
            Numbers::Slice => self.slice = vec![0.0; elements],
        }
        let (rank, ranks) = (self.world.rank(), self.world.world_size());
        for (i, value) in self.values()?.iter_mut().enumerate() {
            *value = known(rank, i);
        }
        self.reduce()?;
        let sum = |i: usize| (0..ranks).map(|rank| known(rank, i)).sum::<f32>();
        let values = self.values()?;
        let right = values.iter().enumerate().all(|(i, &value)| value == sum(i));
        values.fill(0.0);
        Ok(self.max(if right { 0.0 } else { 1.0 })? == 0.0)
    }

    fn reduce(&mut self) -> anyhow::Result<()> {
        let (comm, op) = (self.world.comm(), ReduceOp::Sum);
        match self.numbers {
            Numbers::Segment => {
                let buffer = self.segment.take().context("no buffer")?;
                self.segment = Some(comm.run(Collective::AllReduce(op), buffer)?);
            }
            Numbers::Slice => comm.all_reduce(&mut self.slice, op)?,
        }
        Ok(())
    }

    fn late(&self) -> Duration {
        self.late
    }

    fn barrier(&mut self) -> anyhow::Result<()> {
        Ok(self.world.comm().barrier()?)
    }

    fn max(&mut self, value: f64) -> anyhow::Result<f64> {
        let mut value = [value];
        self.world.comm().all_reduce(&mut value, ReduceOp::Max)?;
        Ok(value[0])
    }
}

/// A rank's number at a place for the check of the sums: a small integer, because f32 adds small
/// integers exactly.
fn known(rank: usize, place: usize) -> f32 {
    ((place + 7 * rank) % 1009) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rank_reduces_and_is_right() -> anyhow::Result<()> {
        let world = World::single();
        for numbers in [Numbers::Segment, Numbers::Slice] {
            let mut ours = Ours::new(&world, numbers, 0);
            assert!(ours.prepare(3000)?);
            ours.reduce()?;
            assert_eq!(ours.values()?, vec![0.0; 3000]);
            assert_eq!(
                ours.share(Some(Request { elements: 3, seconds: 0.5 }))?.map(|r| r.elements),
                Some(3)
            );
            assert_eq!(ours.share(None)?, None);
        }
        Ok(())
    }
}
