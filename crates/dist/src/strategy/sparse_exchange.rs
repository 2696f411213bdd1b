//! What the sparse strategies share: the message of positions and values, its sum, and when it is
//! no longer worth sending.
//!
//! A message of K elements is 2K words of 32 bits: K positions, ascending, then K values. Ranks
//! gather each other's messages and add them in rank order, so all end with the same bits.
//!
//! An all-gather of density d costs each rank 8·d·n·(N-1) bytes where a dense all-reduce costs
//! 8·n·(N-1)/N: from d = 1/N on, dense is no dearer, and it loses nothing.

use super::Unit;
use crate::comm::{Buffer, ElementType};
use crate::{Error, Result};

/// Whether sending `count` elements on each rank takes fewer bytes than sending all of them.
pub(super) fn pays(unit: &Unit<'_>, count: usize) -> bool {
    count.saturating_mul(unit.world_size) < unit.len()
}

/// What to tell the user, once, where it does not.
pub(super) fn dense_notice(strategy: &str, unit: &Unit<'_>, count: usize) -> String {
    let (spars, ranks) = (unit.spars, unit.world_size);
    let percent = 100.0 * count as f64 / unit.len().max(1) as f64;
    format!(
        "{strategy} with spars {spars} would send {percent:.1}% of {unit}: over {ranks} ranks that \
         takes as many bytes as the whole from 1/{ranks} on, so such units are sent whole"
    )
}

/// Takes the elements at `positions` out of `values`: zeros stay in their places.
pub(super) fn take_out(positions: &[u32], values: &mut [f32]) -> Vec<f32> {
    positions.iter().map(|&at| std::mem::take(&mut values[at as usize])).collect()
}

/// The message of these elements, padded to `room` of them.
pub(super) fn pack(positions: &[u32], values: &[f32], room: usize) -> Result<Buffer> {
    let mut buffer = Buffer::zeros(ElementType::I32, 2 * room);
    let (front, back) = buffer.as_mut_slice::<i32>()?.split_at_mut(room);
    for (word, &at) in front.iter_mut().zip(positions) {
        *word = at.cast_signed();
    }
    for (word, value) in back.iter_mut().zip(values) {
        *word = value.to_bits().cast_signed();
    }
    Ok(buffer)
}

/// Writes the mean of all ranks' messages into `values`: their sum in rank order, divided by the
/// number of ranks. `counts` says how many elements of its `room` each rank sent.
pub(super) fn average(
    unit: &Unit<'_>,
    gathered: &Buffer,
    room: usize,
    counts: &[usize],
    values: &mut [f32],
) -> Result<()> {
    let words = gathered.as_slice::<i32>()?;
    values.fill(0.0);
    for (rank, (message, &count)) in words.chunks_exact(2 * room.max(1)).zip(counts).enumerate() {
        let (positions, sent) = message.split_at(room);
        for (&at, &bits) in positions.iter().zip(sent).take(count) {
            let Some(value) = values.get_mut(at.cast_unsigned() as usize) else {
                let what = format!("rank {rank} sent element {at} of {unit}");
                return Err(Error::Protocol { what });
            };
            *value += f32::from_bits(bits.cast_unsigned());
        }
    }
    let ranks = unit.world_size as f32;
    values.iter_mut().for_each(|value| *value /= ranks);
    Ok(())
}
