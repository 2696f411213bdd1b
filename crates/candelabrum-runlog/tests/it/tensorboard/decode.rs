//! A decoder of event files from the description of the format alone: it shares no code and no crate
//! with the writer.

/// What an event of a file says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decoded {
    FileVersion(String),
    Scalar { step: i64, tag: String, value: f32 },
    Session { step: i64, status: u64 },
}

/// The events of a file. Panics where the file is wrong.
pub(crate) fn decode(mut bytes: &[u8]) -> Vec<Decoded> {
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let (header, rest) = bytes.split_at(8);
        let length = u64::from_le_bytes(header.try_into().unwrap()) as usize;
        let (checksum, rest) = rest.split_at(4);
        assert_eq!(checksum, masked_crc(header).to_le_bytes());
        let (message, rest) = rest.split_at(length);
        let (checksum, rest) = rest.split_at(4);
        assert_eq!(checksum, masked_crc(message).to_le_bytes());
        events.extend(event(message));
        bytes = rest;
    }
    events
}

/// A field of a message: a number, or bytes.
enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn event(message: &[u8]) -> Vec<Decoded> {
    let (mut step, mut events, mut has_time) = (0, Vec::new(), false);
    // The step may come after the values, and is left out where it is 0.
    for (field, value) in fields(message) {
        match (field, value) {
            (1, FieldValue::Number(bits)) => has_time = f64::from_bits(bits) > 1.7e9,
            (2, FieldValue::Number(number)) => step = number as i64,
            (3, FieldValue::Bytes(text)) => events.push(Decoded::FileVersion(utf8(text))),
            (5, FieldValue::Bytes(summary)) => {
                for (field, value) in fields(summary) {
                    let FieldValue::Bytes(scalar) = value else { panic!("no message") };
                    assert_eq!(field, 1);
                    events.push(self::scalar(step, scalar));
                }
            }
            (7, FieldValue::Bytes(session)) => {
                let [(1, FieldValue::Number(status))] = fields(session)[..] else {
                    panic!("no status")
                };
                events.push(Decoded::Session { step, status });
            }
            (other, _) => panic!("unknown field {other}"),
        }
    }
    assert!(has_time);
    events
}

fn scalar(step: i64, message: &[u8]) -> Decoded {
    match fields(message)[..] {
        [(1, FieldValue::Bytes(tag)), (2, FieldValue::Number(bits))] => {
            Decoded::Scalar { step, tag: utf8(tag), value: f32::from_bits(bits as u32) }
        }
        _ => panic!("no scalar"),
    }
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The fields of a protobuf message, with their numbers.
fn fields(mut bytes: &[u8]) -> Vec<(u64, FieldValue<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => FieldValue::Number(varint(&mut bytes)),
            1 => FieldValue::Number(u64::from_le_bytes(take(&mut bytes, 8).try_into().unwrap())),
            2 => {
                let length = varint(&mut bytes) as usize;
                FieldValue::Bytes(take(&mut bytes, length))
            }
            5 => FieldValue::Number(
                u32::from_le_bytes(take(&mut bytes, 4).try_into().unwrap()).into(),
            ),
            other => panic!("unknown type {other}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let byte = take(bytes, 1)[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

fn masked_crc(bytes: &[u8]) -> u32 {
    crc(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C, bit by bit: the polynomial of Castagnoli, reflected.
fn crc(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

#[test]
fn the_checksum_is_that_of_the_standard() {
    // RFC 3720, appendix B.4, and the usual check value.
    assert_eq!(crc(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc(b"123456789"), 0xe306_9283);
}
