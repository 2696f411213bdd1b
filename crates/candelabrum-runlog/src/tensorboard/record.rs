//! TFRecord: a message with its length and two checksums.
//!
//! | bytes | meaning |
//! |---|---|
//! | 8 | length of the message, little-endian |
//! | 4 | masked CRC-32C of these 8 bytes |
//! | length | the message |
//! | 4 | masked CRC-32C of the message |

use prost::Message;

/// The record of a message.
pub(super) fn frame(message: &impl Message) -> Vec<u8> {
    let length = message.encoded_len();
    let mut record = Vec::with_capacity(length + 16);
    record.extend((length as u64).to_le_bytes());
    record.extend(masked(&record).to_le_bytes());
    // A vector grows, so there is always room.
    message.encode_raw(&mut record);
    record.extend(masked(&record[12..]).to_le_bytes());
    record
}

/// The mask prevents that a checksum of data which contains its own checksum is a constant.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}
