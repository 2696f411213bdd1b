//! MXNet's codes of two bits and of one bit (`gradient_compression-inl.h`).
//!
//! ```text
//! 2bit   r >= t: code 11, r -= t      r <= -t: code 10, r += t      else code 00
//! 1bit   r >  t: code 1,  r -= 1      else code 0, r += 1
//! ```
//!
//! The first element of a byte is in its highest bits. 2bit is decoded to t, -t and 0, and 1bit to 1
//! and -1: the threshold of 1bit is no scale.

use crate::wire::{MessageHeader, WireMessage};

/// Elements that are encoded at once.
const BLOCK: usize = 1024;

pub(super) fn encode_2bit(header: MessageHeader, values: &mut [f32]) -> WireMessage {
    let threshold = header.setting;
    let mut message = WireMessage::new(header, "", values.len().div_ceil(4));
    // By blocks and without branches, so that the compiler makes vector code of the first loop.
    for (bytes, values) in message.data_mut().chunks_mut(BLOCK / 4).zip(values.chunks_mut(BLOCK)) {
        let mut codes = [0; BLOCK];
        for (code, value) in codes.iter_mut().zip(values) {
            let (above, below) = (*value >= threshold, *value <= -threshold);
            *value -= if above { threshold } else { 0.0 } - if below { threshold } else { 0.0 };
            *code = (u8::from(above | below) << 1) | u8::from(above);
        }
        for (byte, codes) in bytes.iter_mut().zip(codes.as_chunks::<4>().0) {
            *byte = (codes[0] << 6) | (codes[1] << 4) | (codes[2] << 2) | codes[3];
        }
    }
    message
}

/// Adds the decoded elements to `sum`, or replaces it by them if they are the `first`.
pub(super) fn decode_2bit(data: &[u8], threshold: f32, sum: &mut [f32], first: bool) {
    let values = [0.0, 0.0, -threshold, threshold];
    for (byte, sum) in data.iter().zip(sum.chunks_mut(4)) {
        for (sum, shift) in sum.iter_mut().zip([6, 4, 2, 0]) {
            let before = if first { 0.0 } else { *sum };
            *sum = before + values[usize::from((byte >> shift) & 0b11)];
        }
    }
}

pub(super) fn encode_1bit(header: MessageHeader, values: &mut [f32]) -> WireMessage {
    let threshold = header.setting;
    let mut message = WireMessage::new(header, "", values.len().div_ceil(8));
    for (byte, values) in message.data_mut().iter_mut().zip(values.chunks_mut(8)) {
        for (place, value) in values.iter_mut().enumerate() {
            if *value > threshold {
                *value -= 1.0;
                *byte |= 1 << (7 - place);
            } else {
                *value += 1.0;
            }
        }
    }
    message
}

pub(super) fn decode_1bit(data: &[u8]) -> impl Iterator<Item = f32> {
    data.iter().flat_map(|byte| {
        [7, 6, 5, 4, 3, 2, 1, 0].map(|shift| if (byte >> shift) & 1 == 1 { 1.0 } else { -1.0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::MessageKind;

    fn header(setting: f32) -> MessageHeader {
        MessageHeader { setting, ..MessageHeader::new(MessageKind::Push) }
    }

    /// The bytes that MXNet's kernels write.
    #[test]
    fn the_bytes_are_mxnets() {
        let mut values = [0.5, -0.5, 0.25, 1.75, -2.0];
        let message = encode_2bit(header(0.5), &mut values);
        assert_eq!(message.data(), [0b1110_0011, 0b1000_0000]);
        assert_eq!(values, [0.0, 0.0, 0.25, 1.25, -1.5]);

        let mut values = [0.5, -0.5, 0.0, 1.5, -2.0, 0.75, 0.1, 3.0, 0.2];
        let message = encode_1bit(header(0.0), &mut values);
        assert_eq!(message.data(), [0b1001_0111, 0b1000_0000]);
        assert_eq!(values[..5], [-0.5, 0.5, 1.0, 0.5, -1.0]);
        let one: Vec<f32> = decode_1bit(message.data()).take(9).collect();
        assert_eq!(one, [1.0, -1.0, -1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn a_residual_is_sent_later() {
        let mut residual = [0.3_f32];
        let mut sent = Vec::new();
        for _ in 0..5 {
            let message = encode_2bit(header(0.5), &mut residual);
            let mut decoded = [9.0];
            decode_2bit(message.data(), 0.5, &mut decoded, true);
            sent.extend(decoded);
            residual[0] += 0.3;
        }
        assert_eq!(sent, [0.0, 0.5, 0.0, 0.5, 0.5]);
    }
}
