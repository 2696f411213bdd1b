//! An image as its file has it: decoded, and a window of it in another size.
//!
//! PNG and JPEG are decoded by one small crate each. A crate for every format of images would also bring the
//! management of colors, which takes longer to compile than all of this crate, and which no dataset here needs.

use std::io::Cursor;

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::image_error::ImageError;
use crate::jpeg;
use crate::random_resized_crop::Window;

/// The most bytes of memory for one image. A file of some kilobytes can say that it is larger.
const MOST_BYTES: usize = 512 << 20;

/// The first bytes of the files of each format.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
const JPEG: &[u8] = b"\xff\xd8\xff";
/// Formats that image folders have and that are not decoded here. `?` is any byte.
const OTHERS: [&[u8]; 6] =
    [b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*", b"RIFF????WEBP", b"????ftypavif"];

/// Whether a file that begins with these bytes is an image, of a format that is decoded here or of another one.
pub(crate) fn is_image(start: &[u8]) -> bool {
    let fits = |format: &&[u8]| {
        format.len() <= start.len() && format.iter().zip(start).all(|(a, b)| a == b || *a == b'?')
    };
    [PNG, JPEG].iter().chain(&OTHERS).any(fits)
}

/// The pixels of an image, row by row, with the channels of a pixel together.
#[derive(Debug, PartialEq)]
pub(crate) struct DecodedImage {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// 1 or 3.
    channels: usize,
    values: Vec<u8>,
}

impl DecodedImage {
    /// Decodes a file in gray (1 channel) or in red, green and blue (3 channels), without transparency.
    pub(crate) fn from_encoded(encoded: &[u8], channels: usize) -> Result<Self, ImageError> {
        if encoded.starts_with(PNG) {
            return from_png(encoded, channels);
        }
        if encoded.starts_with(JPEG) {
            return from_jpeg(encoded, channels);
        }
        Err(ImageError::Format)
    }

    /// A window in another width and height, laid out as the image. Each new pixel is an average of the old ones around
    /// it, whose weights fall linearly with their distance, over at least one old pixel and one new pixel.
    pub(crate) fn resized(&self, window: Window, [width, height]: [usize; 2]) -> Vec<u8> {
        let [left, top] = [window.left, window.top].map(|side| side as usize);
        let [old_width, old_height] = [window.width, window.height].map(|side| side as usize);
        let row = |y: usize| {
            let start = ((top + y) * self.width as usize + left) * self.channels;
            &self.values[start..start + old_width * self.channels]
        };
        if [old_width, old_height] == [width, height] {
            return (0..height).flat_map(row).copied().collect();
        }
        let columns: Vec<_> = (0..width).map(|x| Weights::new(x, old_width, width)).collect();
        let mut resized = Vec::with_capacity(width * height * self.channels);
        let mut average = vec![0.0; old_width * self.channels];
        for y in 0..height {
            let rows = Weights::new(y, old_height, height);
            average.fill(0.0);
            for (weight, y) in rows.values.iter().zip(rows.first..) {
                let add = |(sum, value): (&mut f32, &u8)| *sum += f32::from(*value) * weight;
                average.iter_mut().zip(row(y)).for_each(add);
            }
            for column in &columns {
                let pixels = average.chunks_exact(self.channels).skip(column.first);
                let mut pixel = [0.0; 3];
                for (weight, old) in column.values.iter().zip(pixels) {
                    pixel.iter_mut().zip(old).for_each(|(sum, value)| *sum += value * weight);
                }
                let bytes = pixel[..self.channels]
                    .iter()
                    .map(|value| value.clamp(0.0, 255.0).round() as u8);
                resized.extend(bytes);
            }
        }
        resized
    }
}

/// The weights of the old rows or columns, from the first one on, in a new row or column.
struct Weights {
    first: usize,
    values: Vec<f32>,
}

impl Weights {
    /// Of the new row or column `place` of `new` ones, from `old` ones.
    fn new(place: usize, old: usize, new: usize) -> Self {
        let ratio = old as f32 / new as f32;
        let reach = ratio.max(1.0);
        let center = (place as f32 + 0.5) * ratio;
        // `as` takes what is below 0 to 0.
        let first = ((center - reach).floor() as usize).min(old - 1);
        let end = ((center + reach).ceil() as usize).clamp(first + 1, old);
        let weight = |old: usize| (1.0 - ((old as f32 - (center - 0.5)) / reach).abs()).max(0.0);
        let mut values: Vec<_> = (first..end).map(weight).collect();
        let sum: f32 = values.iter().sum();
        values.iter_mut().for_each(|value| *value /= sum);
        Self { first, values }
    }
}

/// Pixels of `samples` bytes in so many channels. Most images have those that are wanted.
fn bytes_converted(pixels: Vec<u8>, samples: usize, channels: usize) -> Vec<u8> {
    if samples == channels {
        return pixels;
    }
    converted(&pixels, samples, channels, |value| value as u8)
}

/// Pixels of `samples` numbers in so many channels, narrowed to bytes.
fn converted<T: Copy + Into<u32>>(
    pixels: &[T],
    samples: usize,
    channels: usize,
    narrow: impl Fn(u32) -> u8,
) -> Vec<u8> {
    let pixels = pixels.chunks_exact(samples);
    let wide = |pixel: &[T]| [0, 1, 2].map(|channel| pixel[channel.min(samples - 1)].into());
    match (samples, channels) {
        (1 | 2, 1) => pixels.map(|pixel| narrow(pixel[0].into())).collect(),
        (1 | 2, _) => pixels.flat_map(|pixel| [narrow(pixel[0].into()); 3]).collect(),
        (_, 1) => pixels.map(|pixel| narrow(luma(wide(pixel)))).collect(),
        _ => pixels.flat_map(|pixel| wide(pixel).map(&narrow)).collect(),
    }
}

/// The brightness of a pixel, as ITU-R BT.709 weighs red, green and blue.
fn luma([red, green, blue]: [u32; 3]) -> u32 {
    (2126 * red + 7152 * green + 722 * blue + 5000) / 10_000
}

fn from_png(encoded: &[u8], channels: usize) -> Result<DecodedImage, ImageError> {
    let limits = png::Limits { bytes: MOST_BYTES };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(encoded), limits);
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info()?;
    let (width, height) = (reader.info().width, reader.info().height);
    let too_large = ImageError::TooLarge { width: width as usize, height: height as usize };
    let Some(bytes) = reader.output_buffer_size().filter(|bytes| *bytes <= MOST_BYTES) else {
        return Err(too_large);
    };
    let mut values = vec![0; bytes];
    let frame = reader.next_frame(&mut values)?;
    values.truncate(frame.buffer_size());
    let samples = frame.color_type.samples();
    let values = if frame.bit_depth == png::BitDepth::Sixteen {
        let pairs = values.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
        converted(&pairs.collect::<Vec<_>>(), samples, channels, |value| {
            ((value + 128) / 257) as u8
        })
    } else {
        bytes_converted(values, samples, channels)
    };
    Ok(DecodedImage { width, height, channels, values })
}

fn from_jpeg(encoded: &[u8], channels: usize) -> Result<DecodedImage, ImageError> {
    let failed = |error: zune_jpeg::errors::DecodeErrors| ImageError::Jpeg(error.to_string());
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(encoded), options);
    decoder.decode_headers().map_err(failed)?;
    let (width, height) = decoder.dimensions().unwrap_or_default();
    // Of a JPEG for print, the decoder makes red, green and blue.
    let color = match decoder.input_colorspace() {
        Some(gray @ ColorSpace::Luma) => gray,
        _ => ColorSpace::RGB,
    };
    decoder.set_options(options.jpeg_set_out_colorspace(color));
    let samples = color.num_components();
    if width * height * samples > MOST_BYTES {
        return Err(ImageError::TooLarge { width, height });
    }
    let values = decoder.decode().map_err(failed)?;
    if !jpeg::has_its_end(encoded) {
        return Err(ImageError::CutShort);
    }
    let values = bytes_converted(values, samples, channels);
    Ok(DecodedImage { width: width as u32, height: height as u32, channels, values })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use image::codecs::jpeg::JpegEncoder;
    use image::imageops::{self, FilterType};
    use image::{DynamicImage, ExtendedColorType, ImageFormat};

    use super::*;

    /// An image of 13 by 7 pixels of this kind, without a pattern.
    fn image(kind: ExtendedColorType) -> DynamicImage {
        let byte = |at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8;
        let pixel = |x: u32, y: u32| [0, 1, 2, 3].map(|channel| byte(4 * (13 * y + x) + channel));
        let rgba = image::RgbaImage::from_fn(13, 7, |x, y| image::Rgba(pixel(x, y)));
        let rgba = DynamicImage::from(rgba);
        match kind {
            ExtendedColorType::L8 => rgba.into_luma8().into(),
            ExtendedColorType::La8 => rgba.into_luma_alpha8().into(),
            ExtendedColorType::Rgb8 => rgba.into_rgb8().into(),
            ExtendedColorType::L16 => rgba.into_luma16().into(),
            ExtendedColorType::Rgb16 => rgba.into_rgb16().into(),
            _ => rgba,
        }
    }

    #[test]
    fn each_kind_of_pixels_is_that_of_the_crate_for_all_formats() {
        use ExtendedColorType::{L8, L16, La8, Rgb8, Rgb16, Rgba8};
        let mut files = Vec::new();
        for kind in [L8, L16, La8, Rgb8, Rgb16, Rgba8] {
            let mut png = Cursor::new(Vec::new());
            image(kind).write_to(&mut png, ImageFormat::Png).unwrap();
            files.push((format!("PNG of {kind:?}"), png.into_inner()));
        }
        for kind in [L8, Rgb8] {
            let mut jpeg = Vec::new();
            image(kind).write_with_encoder(JpegEncoder::new_with_quality(&mut jpeg, 90)).unwrap();
            files.push((format!("JPEG of {kind:?}"), jpeg));
        }
        for (name, file) in files {
            let theirs = image::load_from_memory(&file).unwrap();
            let ours = |channels| DecodedImage::from_encoded(&file, channels).unwrap();
            // The gray of a color is a sum that the other crate rounds in f32.
            let (gray, its_gray) = (ours(1).values, theirs.to_luma8().into_raw());
            let most = if theirs.color().has_color() { 1 } else { 0 };
            let is_near = |(a, b): (&u8, &u8)| a.abs_diff(*b) <= most;
            assert!(
                gray.len() == its_gray.len() && gray.iter().zip(&its_gray).all(is_near),
                "{name} in gray"
            );
            assert_eq!(ours(3).values, theirs.to_rgb8().into_raw(), "{name} in color");
            assert!(is_image(&file[..16]), "{name}");
            for (size, [left, top, width, height]) in [
                ([13, 7], [0, 0, 13, 7]),
                ([5, 3], [0, 0, 13, 7]),
                ([40, 20], [1, 2, 10, 4]),
                ([3, 9], [12, 0, 1, 7]),
                ([1, 1], [3, 3, 2, 2]),
            ] {
                let theirs = theirs.to_rgb8();
                let part = imageops::crop_imm(&theirs, left, top, width, height);
                let [w, h] = size.map(|side| side as u32);
                let theirs = imageops::resize(&*part, w, h, FilterType::Triangle).into_raw();
                let window = Window { left, top, width, height, flip: false };
                assert_eq!(ours(3).resized(window, size), theirs, "{name} in {size:?}");
            }
        }
    }

    #[test]
    fn what_is_no_image_is_an_error_that_says_why() {
        let error = |bytes: &[u8]| DecodedImage::from_encoded(bytes, 3).unwrap_err().to_string();
        assert_eq!(error(b"GIF89a"), "the bytes are neither a PNG nor a JPEG");
        assert!(error(PNG).starts_with("the PNG cannot be decoded: "), "{}", error(PNG));
        assert!(error(JPEG).starts_with("the JPEG cannot be decoded: "), "{}", error(JPEG));
        let mut png = Cursor::new(Vec::new());
        image(ExtendedColorType::Rgb8).write_to(&mut png, ImageFormat::Png).unwrap();
        let png = png.into_inner();
        for len in 0..png.len() - 12 {
            assert!(DecodedImage::from_encoded(&png[..len], 1).is_err(), "the first {len} bytes");
        }
    }

    #[test]
    fn a_small_file_cannot_ask_for_much_memory() {
        let mut png = Vec::new();
        let mut encoder = png::Encoder::new(&mut png, 60_000, 60_000);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header().unwrap();
        writer.write_chunk(png::chunk::IDAT, &[0; 8]).unwrap();
        drop(writer);
        let error = DecodedImage::from_encoded(&png, 3).unwrap_err().to_string();
        assert_eq!(error, "an image of 60000 x 60000 pixels needs more than 512 MiB of memory");
    }

    #[test]
    fn images_of_other_formats_are_images_and_texts_are_not() {
        for start in
            ["GIF89a..", "II*\0....", "MM\0*....", "RIFF1234WEBPVP8 ", "\0\0\0\x20ftypavif"]
        {
            assert!(is_image(start.as_bytes()), "{start}");
        }
        for start in ["", "RIFF1234WAVEfmt ", "a text", "\0\0\0\x20ftypmp42"] {
            assert!(!is_image(start.as_bytes()), "{start}");
        }
    }
}
