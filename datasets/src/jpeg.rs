//! Whether a JPEG has arrived as a whole.
//!
//! The decoder fills up what is missing at the end of a file with gray, so three quarters of an image would
//! be trained on as a whole one. Pillow and torchvision refuse such a file.

/// Whether the marker of the end follows the first scan of an image that can be decoded.
///
/// In the coded numbers of a scan a zero follows each 0xff, so a marker cannot be a part of them. The segments
/// before the scan may contain a smaller image with its own end.
pub(crate) fn has_its_end(encoded: &[u8]) -> bool {
    const SCAN: u8 = 0xda;
    let mut rest = encoded.get(2..).unwrap_or_default();
    loop {
        let (marker, segment) = match rest {
            [0xff, marker, segment @ ..] if *marker != 0xff => (marker, segment),
            // Fill bytes, or bytes that decoders skip.
            [_, after @ ..] => {
                rest = after;
                continue;
            }
            [] => return false,
        };
        if *marker == SCAN {
            return segment.windows(2).rev().any(|pair| pair == [0xff, 0xd9]);
        }
        // Markers without a segment.
        let len = match (marker, segment.first_chunk()) {
            (0x01 | 0xd0..=0xd7, _) => 0,
            (_, Some(len)) => usize::from(u16::from_be_bytes(*len)),
            (_, None) => return false,
        };
        rest = segment.get(len..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_that_of_the_image_and_not_of_a_smaller_one_in_it() {
        let segment = [0xff, 0xe1, 0, 6, 0xff, 0xd8, 0xff, 0xd9];
        let scan = [0xff, 0xff, 0xda, 0, 2, 1, 0xff, 0, 0xd9];
        let image = |end: &[u8]| [&[0xff, 0xd8], &segment[..], &scan[..], end].concat();
        assert!(has_its_end(&image(&[0xff, 0xd9])));
        assert!(has_its_end(&image(&[7, 0xff, 0xd9, 0, 0, 5])), "other bytes may follow");
        assert!(!has_its_end(&image(&[])) && !has_its_end(&image(&[0; 90])));
        assert!(!has_its_end(&image(&[0xff])) && !has_its_end(&[0xff, 0xd8]) && !has_its_end(&[]));
    }
}
