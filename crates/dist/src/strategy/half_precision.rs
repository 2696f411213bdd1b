//! fp16 and bf16: half the bytes of fp32, with the sum kept in fp32.
//!
//! Each rank divides by the number of ranks in fp32 *before* the cast (PyTorch's `fp16_compress`
//! hook does so too, SINGA after the sum), so a sum of averages overflows only where the average
//! itself would. The cast rounds to nearest, ties to even. All our backends accumulate half
//! precision in fp32 and round once.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use super::{Message, Strategy, Unit};
use crate::comm::{Buffer, Collective, Communicator, Half, ReduceOp};
use crate::{Error, Result};

/// Elements converted at a time: they stay in the first-level cache.
const BLOCK: usize = 1024;

/// All-reduce with `T` on the wire.
#[derive(Debug)]
pub(super) struct HalfPrecision<T> {
    /// Limits each element of this rank's gradient first: SINGA's `clipping`.
    clip: Option<f32>,
    /// By layout and unit, in memory that the backend reduces fastest; away while it travels.
    buffers: BTreeMap<(usize, usize), Buffer>,
    element: PhantomData<T>,
}

impl<T: Half> HalfPrecision<T> {
    pub(super) fn new(clip: Option<f32>) -> Result<Self> {
        if clip.is_some_and(|limit| limit.is_nan() || limit <= 0.0) {
            let value = clip.unwrap_or_default().to_string();
            return Err(Error::Setting { setting: "clip", value, range: "above 0" });
        }
        Ok(Self { clip, buffers: BTreeMap::new(), element: PhantomData })
    }

    fn buffer(&mut self, unit: &Unit<'_>) -> Buffer {
        let made = self.buffers.remove(&(unit.layout, unit.index));
        // An earlier step that failed never gave it back.
        made.unwrap_or_else(|| Buffer::zeros(T::TYPE, unit.len()))
    }
}

impl<T: Half> Strategy for HalfPrecision<T> {
    fn describe(&self) -> String {
        match self.clip {
            Some(limit) => format!("{} clip={limit}", T::NAME),
            None => T::NAME.to_owned(),
        }
    }

    /// Clipping makes an infinity finite.
    fn shows_bad_numbers(&self) -> bool {
        self.clip.is_none()
    }

    fn prepare(&mut self, units: &[Unit<'_>], comm: &dyn Communicator) -> Result<()> {
        for unit in units {
            let buffer = comm.alloc(T::TYPE, unit.len())?;
            self.buffers.insert((unit.layout, unit.index), buffer);
        }
        Ok(())
    }

    fn forget(&mut self, layout: usize) {
        self.buffers.retain(|&(of, _), _| of != layout);
    }

    fn compress(&mut self, unit: &Unit<'_>, values: &mut [f32]) -> Result<Message> {
        if let Some(limit) = self.clip {
            values.iter_mut().for_each(|value| *value = value.clamp(-limit, limit));
        }
        let mut buffer = self.buffer(unit);
        let wire = buffer.as_mut_slice::<T>()?;
        let ranks = unit.world_size as f32;
        let mut shares = [0.0; BLOCK];
        for (values, wire) in values.chunks(BLOCK).zip(wire.chunks_mut(BLOCK)) {
            let shares = &mut shares[..values.len()];
            for (share, value) in shares.iter_mut().zip(values) {
                *share = value / ranks;
            }
            T::narrow(shares, wire);
        }
        Ok(Message::new(Collective::AllReduce(ReduceOp::Sum), buffer))
    }

    fn aggregate(
        &mut self,
        unit: &Unit<'_>,
        received: Vec<Buffer>,
        values: &mut [f32],
    ) -> Result<Option<Message>> {
        for buffer in received {
            T::widen(buffer.as_slice::<T>()?, values);
            self.buffers.insert((unit.layout, unit.index), buffer);
        }
        Ok(None)
    }
}
