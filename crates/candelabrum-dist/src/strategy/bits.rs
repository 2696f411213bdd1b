//! MXNet's codes of two bits and of one bit (`gradient_compression-inl.h`).
//!
//! ```text
//! 2bit   r >= t: code 11, r -= t      r <= -t: code 10, r += t      else code 00
//! 1bit   r >  t: code 1,  r -= 1      else code 0, r += 1
//! ```
//!
//! The first element of a byte is in its highest bits. 2bit is decoded to t, -t and 0, and 1bit to 1
//! and -1: the threshold of 1bit is no scale.

/// Elements that are encoded at once.
const BLOCK: usize = 1024;

/// Writes the codes of `values` to `bytes`, 4 in each byte, and leaves in `values` what they lack.
pub fn encode_2bit(bytes: &mut [u8], threshold: f32, values: &mut [f32]) {
    // By blocks and without branches, so that the compiler makes vector code of the first loop.
    for (bytes, values) in bytes.chunks_mut(BLOCK / 4).zip(values.chunks_mut(BLOCK)) {
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
}

/// Adds the decoded elements to `sum`, or replaces it by them if they are the `first`.
pub fn decode_2bit(data: &[u8], threshold: f32, sum: &mut [f32], first: bool) {
    let values = [0.0, 0.0, -threshold, threshold];
    for (byte, sum) in data.iter().zip(sum.chunks_mut(4)) {
        for (sum, shift) in sum.iter_mut().zip([6, 4, 2, 0]) {
            let before = if first { 0.0 } else { *sum };
            *sum = before + values[usize::from((byte >> shift) & 0b11)];
        }
    }
}

/// Writes the codes of `values` to `bytes`, which are zeros, 8 in each byte, and leaves in `values` what they lack.
pub fn encode_1bit(bytes: &mut [u8], threshold: f32, values: &mut [f32]) {
    for (byte, values) in bytes.iter_mut().zip(values.chunks_mut(8)) {
        for (place, value) in values.iter_mut().enumerate() {
            if *value > threshold {
                *value -= 1.0;
                *byte |= 1 << (7 - place);
            } else {
                *value += 1.0;
            }
        }
    }
}

/// Adds the decoded elements to `sum`, or replaces it by them if they are the `first`.
pub fn decode_1bit(data: &[u8], sum: &mut [f32], first: bool) {
    for (byte, sum) in data.iter().zip(sum.chunks_mut(8)) {
        for (sum, shift) in sum.iter_mut().zip([7, 6, 5, 4, 3, 2, 1, 0]) {
            let before = if first { 0.0 } else { *sum };
            *sum = before + if (byte >> shift) & 1 == 1 { 1.0 } else { -1.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_bit(threshold: f32, values: &mut [f32]) -> Vec<u8> {
        let mut bytes = vec![0; values.len().div_ceil(4)];
        encode_2bit(&mut bytes, threshold, values);
        bytes
    }

    /// The bytes that MXNet's kernels write.
    #[test]
    fn the_bytes_are_mxnets() {
        let mut values = [0.5, -0.5, 0.25, 1.75, -2.0];
        let bytes = two_bit(0.5, &mut values);
        assert_eq!(bytes, [0b1110_0011, 0b1000_0000]);
        assert_eq!(values, [0.0, 0.0, 0.25, 1.25, -1.5]);

        let mut values = [0.5, -0.5, 0.0, 1.5, -2.0, 0.75, 0.1, 3.0, 0.2];
        let mut bytes = [0; 2];
        encode_1bit(&mut bytes, 0.0, &mut values);
        assert_eq!(bytes, [0b1001_0111, 0b1000_0000]);
        assert_eq!(values[..5], [-0.5, 0.5, 1.0, 0.5, -1.0]);
        let mut one = [9.0; 9];
        decode_1bit(&bytes, &mut one, true);
        assert_eq!(one, [1.0, -1.0, -1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn a_residual_is_sent_later() {
        let mut residual = [0.3_f32];
        let mut sent = Vec::new();
        for _ in 0..5 {
            let bytes = two_bit(0.5, &mut residual);
            let mut decoded = [9.0];
            decode_2bit(&bytes, 0.5, &mut decoded, true);
            sent.extend(decoded);
            residual[0] += 0.3;
        }
        assert_eq!(sent, [0.0, 0.5, 0.0, 0.5, 0.5]);
    }
}
