//! The codes that send some elements: their positions as u32, then their values.

use std::cell::RefCell;

use candelabrum_dist::strategy::select::{Selector, count_of_share};

use crate::wire::{MessageHeader, WireMessage, numbers};

thread_local! {
    /// Memory of selections, which is used again.
    static SCRATCH: RefCell<(Selector, Vec<u32>)> = RefCell::default();
}

pub(super) fn encode_top_k(header: MessageHeader, share: f32, values: &mut [f32]) -> WireMessage {
    let count = count_of_share(share, values.len());
    select(header, values, |selector, values, found| selector.top_k(values, count, found))
}

pub(super) fn encode_from(
    header: MessageHeader,
    magnitude: f32,
    values: &mut [f32],
) -> WireMessage {
    select(header, values, |selector, values, found| selector.at_least(values, magnitude, found))
}

/// Encodes the elements that `choose` finds, and leaves zeros in their places.
fn select(
    header: MessageHeader,
    values: &mut [f32],
    choose: impl FnOnce(&mut Selector, &[f32], &mut Vec<u32>),
) -> WireMessage {
    SCRATCH.with_borrow_mut(|(selector, found)| {
        choose(selector, values, found);
        let mut message = WireMessage::new(header, "", 8 * found.len());
        let (positions, sent) = message.data_mut().split_at_mut(4 * found.len());
        positions.copy_from_slice(bytemuck::cast_slice(found));
        for (to, &position) in sent.chunks_exact_mut(4).zip(found.iter()) {
            let value = std::mem::take(&mut values[position as usize]);
            to.copy_from_slice(&value.to_ne_bytes());
        }
        message
    })
}

/// Refuses positions that are not below `len`, and says why.
pub(super) fn check(data: &[u8], len: usize) -> Result<(), String> {
    if !data.len().is_multiple_of(8) {
        return Err(format!("{} bytes of positions and values", data.len()));
    }
    let positions = numbers::<u32>(&data[..data.len() / 2]);
    match positions.iter().find(|position| **position as usize >= len) {
        Some(position) => Err(format!("the position {position} in a part of {len}")),
        None => Ok(()),
    }
}

/// Adds the elements to `sum`, which begins at zero if they are the `first`. They have been checked.
pub(super) fn decode(data: &[u8], sum: &mut [f32], first: bool) {
    let (positions, values) = data.split_at(data.len() / 2);
    let (positions, values) = (numbers::<u32>(positions), numbers::<f32>(values));
    if first {
        sum.fill(0.0);
    }
    for (&position, value) in positions.iter().zip(values.iter()) {
        sum[position as usize] += value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::MessageKind;

    #[test]
    fn positions_are_checked() {
        let mut values = [0.0, 3.0, -1.0];
        let mut message = encode_from(MessageHeader::new(MessageKind::Push), 1.0, &mut values);
        assert_eq!(values, [0.0; 3]);
        let mut sum = [1.0; 3];
        decode(message.data(), &mut sum, false);
        assert_eq!(sum, [1.0, 4.0, 0.0]);
        message.data_mut()[0] = 3;
        assert!(check(message.data(), 3).unwrap_err().contains("position 3"));
        assert!(check(message.data(), 4).is_ok());
        assert!(check(&[0; 12], 3).is_err());
    }
}
