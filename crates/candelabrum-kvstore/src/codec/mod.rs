//! Compression of pushed values.
//!
//! A worker adds the residual of earlier pushes to a value, encodes the sum, and keeps what the code
//! has lost as the new residual. The server decodes and adds. Answers to pulls are not compressed, as
//! in MXNet.

mod sparse;

use bytemuck::Pod;
use candelabrum_dist::strategy::bits;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::wire::{MessageHeader, MessageMemory, WireMessage, numbers};
use crate::{Error, Result};

/// Elements that are converted at once. The conversion of one element asks each time what the
/// processor can do.
const BLOCK: usize = 1024;

/// How pushed values are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Compression {
    /// Not at all: 4 bytes for each element.
    #[default]
    None,
    /// fp16, rounded to nearest: 2 bytes. There is no residual. A value out of range is an error.
    Fp16,
    /// bf16, rounded to nearest: 2 bytes. There is no residual. A value out of range is an error.
    Bf16,
    /// MXNet's `2bit`: `threshold`, `-threshold` or 0 for each element, a quarter byte. The default of
    /// MXNet's threshold is 0.5. The rest stays in the residual.
    TwoBit {
        /// The magnitude that is sent.
        threshold: f32,
    },
    /// MXNet's `1bit`: 1 for each element above `threshold`, -1 for all others, an eighth byte. The
    /// rest stays in the residual.
    OneBit {
        /// The limit between the two.
        threshold: f32,
    },
    /// The share `share` of the elements of each part, those of the largest magnitude: 8 bytes for
    /// each of them. The rest stays in the residual (the strategy sparseTopK).
    TopK {
        /// Above 0 and at most 1.
        share: f32,
    },
    /// The elements of magnitude `magnitude` and above: 8 bytes for each of them. The rest stays in
    /// the residual (the strategy sparseThreshold).
    Threshold {
        /// The least magnitude that is sent.
        magnitude: f32,
    },
}

impl Compression {
    /// Refuses settings without meaning.
    ///
    /// # Errors
    /// [`Error::Setting`].
    pub fn check(self) -> Result<()> {
        let (setting, value, good, range) = match self {
            Self::None | Self::Fp16 | Self::Bf16 => return Ok(()),
            Self::TwoBit { threshold } => {
                ("the threshold of 2bit", threshold, threshold > 0.0, "it must be above 0")
            }
            Self::OneBit { threshold } => {
                ("the threshold of 1bit", threshold, true, "it must be a finite number")
            }
            Self::TopK { share } => {
                ("the share of top-k", share, share > 0.0 && share <= 1.0, "above 0, at most 1")
            }
            Self::Threshold { magnitude } => {
                ("the magnitude of a sparse push", magnitude, magnitude >= 0.0, "at least 0")
            }
        };
        if good && value.is_finite() {
            return Ok(());
        }
        Err(Error::Setting { setting, value: value.to_string(), range })
    }

    /// Whether what is not sent is added to the next push of the same key.
    pub fn keeps_residual(self) -> bool {
        !matches!(self, Self::None | Self::Fp16 | Self::Bf16)
    }

    /// [`Self::encode`] for a compression without residual, of which nothing is left. `Err` may also have
    /// the position of a NaN or an infinity.
    pub(crate) fn encode_all(
        self,
        memory: &MessageMemory,
        header: MessageHeader,
        values: &[f32],
    ) -> std::result::Result<WireMessage, usize> {
        let header = MessageHeader { codec: self.code(), elements: values.len() as u64, ..header };
        match self {
            Self::None => {
                let copy = |block: &mut [f32], values: &[f32]| block.copy_from_slice(values);
                encode_blocks(memory, header, values, copy, |value| value.is_finite())
            }
            Self::Fp16 => {
                let round =
                    |block: &mut [f16], values: &[f32]| block.convert_from_f32_slice(values);
                encode_blocks(memory, header, values, round, |half| half.is_finite())
            }
            Self::Bf16 => {
                let round =
                    |block: &mut [bf16], values: &[f32]| block.convert_from_f32_slice(values);
                encode_blocks(memory, header, values, round, |half| half.is_finite())
            }
            _ => self.encode(memory, header, &mut values.to_vec()),
        }
    }

    /// Encodes `values` as a message, and leaves in `values` what was not sent. `Err` has the position
    /// of the first element that the code cannot represent.
    pub(crate) fn encode(
        self,
        memory: &MessageMemory,
        header: MessageHeader,
        values: &mut [f32],
    ) -> std::result::Result<WireMessage, usize> {
        let header = MessageHeader { codec: self.code(), elements: values.len() as u64, ..header };
        Ok(match self {
            Self::None | Self::Fp16 | Self::Bf16 => self.encode_all(memory, header, values)?,
            Self::TwoBit { threshold } => {
                let header = MessageHeader { setting: threshold, ..header };
                let mut message = WireMessage::new(header, "", values.len().div_ceil(4));
                bits::encode_2bit(message.data_mut(), threshold, values);
                message
            }
            Self::OneBit { threshold } => {
                let header = MessageHeader { setting: threshold, ..header };
                let mut message = WireMessage::new(header, "", values.len().div_ceil(8));
                bits::encode_1bit(message.data_mut(), threshold, values);
                message
            }
            Self::TopK { share } => sparse::encode_top_k(header, share, values),
            Self::Threshold { magnitude } => sparse::encode_from(header, magnitude, values),
        })
    }

    fn code(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Fp16 => 1,
            Self::Bf16 => 2,
            Self::TwoBit { .. } => 3,
            Self::OneBit { .. } => 4,
            Self::TopK { .. } | Self::Threshold { .. } => 5,
        }
    }
}

/// A message of the numbers that `convert` makes of `values`, or the position of the first of them that
/// is not finite. Conversion and check go block by block, so they read the memory once.
fn encode_blocks<T: Pod>(
    memory: &MessageMemory,
    header: MessageHeader,
    values: &[f32],
    convert: impl Fn(&mut [T], &[f32]),
    is_finite: impl Fn(&T) -> bool,
) -> std::result::Result<WireMessage, usize> {
    let mut message = memory.message(header, values.len() * size_of::<T>());
    let mut block = [T::zeroed(); BLOCK];
    let places = message.data_mut().chunks_mut(size_of::<T>() * BLOCK);
    for (number, (to, values)) in places.zip(values.chunks(BLOCK)).enumerate() {
        let block = &mut block[..values.len()];
        convert(block, values);
        to.copy_from_slice(bytemuck::cast_slice(block));
        // Without a branch for each number, so that the compiler makes vector code.
        if !block.iter().fold(true, |all, number| all & is_finite(number)) {
            let place = block.iter().position(|number| !is_finite(number));
            return Err(number * BLOCK + place.unwrap_or_default());
        }
    }
    Ok(message)
}

/// Refuses a message that cannot be decoded to `len` numbers, and says why.
pub(crate) fn check(message: &WireMessage, len: usize) -> std::result::Result<(), String> {
    let &MessageHeader { codec, elements, .. } = message.header();
    let data = message.data();
    if elements != len as u64 {
        return Err(format!("{elements} elements for a part of {len}"));
    }
    let expected = match codec {
        0 => 4 * len,
        1 | 2 => 2 * len,
        3 => len.div_ceil(4),
        4 => len.div_ceil(8),
        5 => return sparse::check(data, len),
        other => return Err(format!("the unknown code {other}")),
    };
    if data.len() != expected {
        return Err(format!("{} bytes for {len} elements", data.len()));
    }
    Ok(())
}

/// Whether [`decode`] can decode a part of a message. The part begins at a multiple of 8.
pub(crate) fn has_parts(message: &WireMessage) -> bool {
    message.header().codec < 5
}

/// Adds the elements of a message from `start` on to `sum`, or replaces `sum` by them if they are the
/// `first`. The message has passed [`check`], and `start` is 0 if it [has no parts](has_parts).
pub(crate) fn decode(message: &WireMessage, start: usize, sum: &mut [f32], first: bool) {
    let &MessageHeader { codec, setting, .. } = message.header();
    let data = message.data();
    match codec {
        0 => add(sum, first, numbers::<f32>(&data[4 * start..][..4 * sum.len()]).iter().copied()),
        1 => add_halves::<f16>(sum, first, &numbers(&data[2 * start..][..2 * sum.len()])),
        2 => add_halves::<bf16>(sum, first, &numbers(&data[2 * start..][..2 * sum.len()])),
        3 => bits::decode_2bit(&data[start / 4..], setting, sum, first),
        4 => bits::decode_1bit(&data[start / 8..], sum, first),
        _ => sparse::decode(data, sum, first),
    }
}

fn add_halves<H: Pod>(sum: &mut [f32], first: bool, halves: &[H])
where
    [H]: HalfFloatSliceExt,
{
    let mut values = [0.0; BLOCK];
    for (sum, halves) in sum.chunks_mut(BLOCK).zip(halves.chunks(BLOCK)) {
        let values = &mut values[..halves.len()];
        halves.convert_to_f32_slice(values);
        add(sum, first, values.iter().copied());
    }
}

fn add(sum: &mut [f32], first: bool, values: impl Iterator<Item = f32>) {
    if first {
        for (sum, value) in sum.iter_mut().zip(values) {
            *sum = value;
        }
    } else {
        for (sum, value) in sum.iter_mut().zip(values) {
            *sum += value;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::MessageKind;

    fn encode(compression: Compression, values: &mut [f32]) -> WireMessage {
        compression
            .encode(&MessageMemory::default(), MessageHeader::new(MessageKind::Push), values)
            .unwrap()
    }

    fn decoded(message: &WireMessage, len: usize) -> Vec<f32> {
        let mut values = vec![9.0; len];
        check(message, len).unwrap();
        decode(message, 0, &mut values, true);
        values
    }

    /// Every code with settings for which no addition of its own rounds.
    const EXACT: [Compression; 5] = [
        Compression::None,
        Compression::TwoBit { threshold: 0.5 },
        Compression::OneBit { threshold: 0.0 },
        Compression::TopK { share: 0.1 },
        Compression::Threshold { magnitude: 1.0 },
    ];

    proptest! {
        /// Multiples of 2^-10 below 2^10, of which no sum or difference rounds.
        #[test]
        fn the_sent_values_and_the_rest_add_up_to_the_input(
            input in prop::collection::vec(-1_000_000_i32..1_000_000, 0..300),
        ) {
            let input: Vec<f32> = input.into_iter().map(|x| x as f32 / 1024.0).collect();
            for compression in EXACT {
                let mut rest = input.clone();
                let message = encode(compression, &mut rest);
                if !compression.keeps_residual() {
                    rest.fill(0.0);
                }
                let sent = decoded(&message, input.len());
                for ((sent, rest), input) in sent.iter().zip(&rest).zip(&input) {
                    prop_assert_eq!((sent + rest).to_bits(), input.to_bits() , "{:?}", compression);
                }
            }
        }

        /// Selections are exact for all numbers.
        #[test]
        fn a_selection_sends_some_elements_and_keeps_the_others(
            input in prop::collection::vec(-1e30_f32..1e30, 1..300),
        ) {
            for compression in [EXACT[3], EXACT[4]] {
                let mut rest = input.clone();
                let message = encode(compression, &mut rest);
                for (sent, (rest, input)) in
                    decoded(&message, input.len()).iter().zip(rest.iter().zip(&input))
                {
                    prop_assert!((sent, rest) == (input, &0.0) || (sent, rest) == (&0.0, input));
                }
            }
        }
    }

    #[test]
    fn values_are_added_to_a_sum() {
        for (compression, expected) in [
            (Compression::None, [1.25, -2.0, 0.0]),
            (Compression::Fp16, [1.25, -2.0, 0.0]),
            (Compression::Bf16, [1.25, -2.0, 0.0]),
            (Compression::TwoBit { threshold: 1.0 }, [1.0, -1.0, 0.0]),
            (Compression::OneBit { threshold: 0.0 }, [1.0, -1.0, -1.0]),
            (Compression::TopK { share: 0.34 }, [1.25, -2.0, 0.0]),
            (Compression::Threshold { magnitude: 1.5 }, [0.0, -2.0, 0.0]),
        ] {
            let message = encode(compression, &mut [1.25, -2.0, 0.0]);
            let mut sum = [10.0; 3];
            decode(&message, 0, &mut sum, false);
            assert_eq!(sum, expected.map(|x: f32| x + 10.0), "{compression:?}");
        }
    }

    #[test]
    fn parts_are_those_of_the_whole() {
        let input: Vec<f32> = (0..3000).map(|x| (x as f32).sin()).collect();
        for compression in [EXACT[0], EXACT[1], EXACT[2], Compression::Fp16, Compression::Bf16] {
            let message = encode(compression, &mut input.clone());
            assert!(has_parts(&message));
            let whole = decoded(&message, input.len());
            for start in [0, 8, 1000, 2992] {
                let mut part = vec![0.5; 2048.min(input.len() - start)];
                decode(&message, start, &mut part, true);
                assert_eq!(part[..], whole[start..start + part.len()], "{compression:?} {start}");
            }
        }
        assert!(!has_parts(&encode(EXACT[3], &mut input.clone())));
    }

    #[test]
    fn what_a_code_cannot_represent_is_found() {
        let encode = |compression: Compression, values: &mut [f32]| {
            compression.encode(
                &MessageMemory::default(),
                MessageHeader::new(MessageKind::Push),
                values,
            )
        };
        let encoded = encode(Compression::Fp16, &mut [1.0, 65_520.0]);
        assert_eq!(encoded.unwrap_err(), 1);
        // bf16 has the range of f32 but for the last numbers, which it rounds to infinity.
        let encoded = encode(Compression::Bf16, &mut [1e38, 2.0, f32::MAX]);
        assert_eq!(encoded.unwrap_err(), 2);
        for compression in [Compression::None, Compression::Fp16, Compression::Bf16] {
            let mut values = [1.0; 3 * BLOCK];
            values[2 * BLOCK + 5] = f32::NAN;
            values[2 * BLOCK + 9] = f32::INFINITY;
            assert_eq!(encode(compression, &mut values).unwrap_err(), 2 * BLOCK + 5);
        }
    }

    #[test]
    fn a_message_for_another_length_is_refused() {
        for compression in [EXACT[0], EXACT[1], EXACT[2], EXACT[3], Compression::Fp16] {
            let message = encode(compression, &mut [1.0; 9]);
            assert!(check(&message, 9).is_ok() && check(&message, 8).is_err(), "{compression:?}");
        }
    }

    #[test]
    fn settings_without_meaning_are_named() {
        for (compression, part) in [
            (Compression::TwoBit { threshold: 0.0 }, "2bit is 0"),
            (Compression::OneBit { threshold: f32::NAN }, "1bit is NaN"),
            (Compression::TopK { share: 1.5 }, "1.5"),
            (Compression::Threshold { magnitude: -1.0 }, "-1"),
        ] {
            let message = compression.check().unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
